"""Judge a bundle in a fresh process. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.provenance import standing_of
from torchrepro.bundle.read import read_manifest, require_complete
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    judged_in_isolation,
    result_in_isolation,
    run_isolated,
)
from torchrepro.engine.sandbox.chosen import sandbox_for
from torchrepro.engine.search.run_directory import seed_here
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Frontend, Place
from torchrepro.nouns.verdict import Kind, Signature, Verdict

OnPhase = Callable[[str], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on a bundle, and what was recorded."""

    verdict: Verdict
    signature: Signature
    expected: Signature | None
    sandbox: str = ""
    """The sandbox in which it was run, in words; empty: none, it is the user's own or trusted."""

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()

    @property
    def reproduces(self) -> bool:
        """Whether it fails as recorded; for a bundle without a record, whether it fails at all."""
        if self.expected is None or not self.expected.kind.fails:
            return self.verdict.fails
        return self.verdict.fails and self.expected.matches(self.signature)

    @property
    def exit_code(self) -> int:
        """0 passes, 1 fails as recorded, 2 fails otherwise, 125 cannot be tested: for `git bisect run`."""
        if not self.verdict.testable:
            return 125
        if not self.verdict.fails:
            return 0
        return 1 if self.reproduces else 2


def check_bundle(
    bundle: Path,
    *,
    time_limit: float | None = None,
    strict: bool = False,
    tolerance: float | None = None,
    trusted: tuple[str, ...] = (),
    frontend: Frontend | None = None,
    on_phase: OnPhase = lambda phase: None,
    on_code: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Checked:
    """Run a bundle and compare its failure with the recorded one.

    The default time limit is 300 s, or for a recorded hang a little more than it took then. `frontend`
    replaces the recorded frontend for a bundle of a whole call. `on_code` is called with the code that
    inductor generates for each graph. `environ` are variables of the user: they replace recorded ones.
    """
    manifest = read_manifest(bundle)
    require_complete(bundle, manifest)
    if frontend is not None and manifest.place is not Place.BEFORE_CAPTURE:
        raise TorchReproError(
            f"this bundle is a graph that was captured already ({manifest.place})",
            next_step="leave out --frontend, or save the whole call (torchrepro run --whole)",
        )
    more = {"frontend": frontend, "strict": strict, "tolerance": tolerance, "code": on_code is not None}
    told: list[str] = []

    def take(message: Mapping[str, Any]) -> None:
        told.extend(filter(None, [message.get("sandbox")]))
        if on_code is not None and "code" in message:
            on_code(message["code"])

    with isolation_for(bundle, manifest, time_limit, trusted, on_phase) as (payload, how):
        how["environ"].update(environ or {})
        verdict = judged_in_isolation(
            "torchrepro.execute.judge_repro:check", {**payload, **more}, on_message=take, **how
        )
    return Checked(verdict, Signature.of(verdict), manifest.expected, sandbox="".join(told[:1]))


def generate_code(
    bundle: Path, *, time_limit: float | None = None, trusted: tuple[str, ...] = ()
) -> list[str]:
    """Return the code that inductor generates for each graph of a bundle, and compile and run none of it.

    It is empty where that is known only after a run, and where the compiler does not finish.
    """
    manifest = read_manifest(bundle)
    require_complete(bundle, manifest)
    codes: list[str] = []

    def take(message: Mapping[str, Any]) -> None:
        codes.extend([message["code"]] if "code" in message else [])

    job = "torchrepro.execute.generate_code:generate"
    with isolation_for(bundle, manifest, time_limit, trusted) as (payload, how):
        return codes if run_isolated(job, payload, on_message=take, **how).result is True else []


def ask_about_bundle(
    job: str, bundle: Path, payload: Mapping[str, Any], *, time_limit: float | None = None
) -> Any:
    """Return what a job answers about a bundle, which it loads in a fresh process, sandboxed if need be."""
    with isolation_for(bundle, read_manifest(bundle), time_limit, ()) as (own, how):
        unfinished = f"{bundle.name} could not be examined"
        return result_in_isolation(job, {**own, **payload}, unfinished=unfinished, **how)


@contextmanager
def isolation_for(
    bundle: Path,
    manifest: Manifest,
    time_limit: float | None,
    trusted: tuple[str, ...],
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the payload and the settings of `run_isolated` for a job on a bundle, in a sandbox if need be."""
    standing = standing_of(bundle, manifest, trusted)
    payload = {"bundle": str(bundle.resolve()), "trusted": list(standing.trusted)}
    seconds = time_limit or time_limit_of(manifest)
    environ = {**compiler_environment(manifest.ambient.environ, own=standing.own), **standing.environ}
    with sandbox_for(
        bundle, manifest, standing, seed=seed_here(), time_limit=seconds, on_phase=on_phase
    ) as sandbox:
        yield (
            payload,
            {"time_limit": seconds, "environ": environ, "on_phase": on_phase, "sandbox": sandbox},
        )


class _EagerHasRun(Exception):
    """Ends a check once eager has run: the phase that follows tells whether it raised."""


def eager_fails(bundle: Path) -> bool:
    """Return whether a bundle fails without any compiler as well; run no more of it, in a fresh process."""

    def end_after_eager(phase: str) -> None:
        if phase in ("reference", "compile"):
            raise _EagerHasRun(phase)

    try:
        return check_bundle(bundle, on_phase=end_after_eager).verdict.kind is Kind.INVALID
    except _EagerHasRun as after:
        return str(after) == "compile"  # the float64 run comes first where eager passes


def first_failing(
    judged: Iterable[tuple[Item, Verdict]], kind: Kind | None, expected: Signature | None = None
) -> tuple[Item, Verdict] | None:
    """Return the first item that fails as `expected` says, else the first that fails with this kind.

    The graphs of a call are judged one after the other: those after the culprit need not be compiled.
    """
    alike = None
    for item, verdict in judged:
        if not verdict.fails or (kind is not None and verdict.kind is not kind):
            continue
        if expected is None or expected.matches(Signature.of(verdict)):
            return item, verdict
        alike = alike or (item, verdict)
    return alike


def time_limit_of(manifest: Manifest) -> float:
    """Return the seconds that a bundle may take: 300, or a little more than a recorded hang took."""
    if manifest.expected is None or manifest.expected.kind is not Kind.HANG:
        return 300.0
    recorded = (manifest.verdict or {}).get("seconds")
    if not isinstance(recorded, int | float) or not recorded > 0:
        return 30.0
    return min(300.0, 30.0 + 2 * recorded)
