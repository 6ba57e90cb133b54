"""The whole flow in one readable file: from a bundle or a user's model to a verdict and a bundle.

    program ── capture ──► Repro ── judge ──► Verdict ── locate ──► Suspect ── minify ──► Repro ── report

Each step that runs a compiler does so in a process of its own, so a segfault, a hang or a full memory is a
verdict like any other and never the end of the tool. Nothing here imports torch: a wrong path is answered at
once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from torchrepro.ambient import telling_environment
from torchrepro.errors import TorchReproError
from torchrepro.signature import Signature
from torchrepro.verdict import Kind, Verdict

if TYPE_CHECKING:
    from torchrepro.bundle.manifest import Manifest
    from torchrepro.minify.session.following import OnMessage
    from torchrepro.minify.session.result import Minified
    from torchrepro.minify.session.settings import MinifySettings
    from torchrepro.request import ModelRequest

OnPhase = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on a bundle, beside what was recorded."""

    verdict: Verdict
    signature: Signature
    expected: Signature | None

    @property
    def reproduces(self) -> bool:
        """Whether it fails as recorded; for a bundle without a record, whether it fails at all."""
        if self.expected is None or not self.expected.kind.fails:
            return self.verdict.fails
        return self.verdict.fails and self.expected.matches(self.signature)


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict on a user's model, and the bundle that shows it (None: not asked for, or not possible)."""

    verdict: Verdict
    signature: Signature
    bundle: Path | None = None
    notes: tuple[str, ...] = ()


def check_bundle(
    bundle: Path,
    *,
    time_limit: float | None = None,
    strict: bool = False,
    tolerance: float | None = None,
    trusted: tuple[str, ...] = (),
    on_phase: OnPhase = lambda phase: None,
) -> Checked:
    """Run a bundle and compare its failure with the recorded one.

    Without a time limit it has 300 s; a recorded hang has a little more than it had then.
    """
    from torchrepro.bundle.read import read_manifest
    from torchrepro.isolate.supervise import judged_in_isolation

    manifest = read_manifest(bundle)
    payload = {
        "bundle": str(bundle.resolve()),
        "strict": strict,
        "tolerance": tolerance,
        "trusted": list(trusted),
    }
    verdict = judged_in_isolation(
        "torchrepro.runner.jobs:check",
        payload,
        time_limit=time_limit or _time_limit_of(manifest),
        environ=compiler_environment(manifest.ambient.environ),
        on_phase=on_phase,
    )
    return Checked(verdict, Signature.of(verdict), manifest.expected)


def _time_limit_of(manifest: Manifest) -> float:
    if manifest.expected is None or manifest.expected.kind is not Kind.HANG:
        return 300.0
    recorded = float((manifest.verdict or {}).get("seconds") or 0.0)
    return min(300.0, 30.0 + 2 * recorded)


def compare_model(
    request: ModelRequest,
    *,
    save_to: Path | None = None,
    size_cap: int = 1 << 30,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Compared:
    """Judge a user's model; where it fails and `save_to` is given, keep the guilty graph as a bundle.

    Tensors beyond `size_cap` bytes in total are kept as recipes, and the bundle says which.
    """
    from torchrepro.isolate.supervise import judged_in_isolation

    request = replace(request, environ=telling_environment())
    verdict = judged_in_isolation(
        "torchrepro.runner.jobs:compare",
        msgspec.to_builtins(request),
        time_limit=time_limit,
        environ=compiler_environment(),
        on_phase=on_phase,
    )
    compared = Compared(verdict, Signature.of(verdict))
    if save_to is None or not verdict.fails:
        return compared
    bundle, notes = save_guilty_graph(
        request, verdict, save_to, size_cap=size_cap, time_limit=time_limit, on_phase=on_phase
    )
    return replace(compared, bundle=bundle, notes=notes)


def save_guilty_graph(
    request: ModelRequest,
    verdict: Verdict,
    save_to: Path,
    *,
    size_cap: int,
    time_limit: float,
    on_phase: OnPhase = lambda phase: None,
) -> tuple[Path | None, tuple[str, ...]]:
    """Record the model's graphs, judge each, and save the first that fails in the same way as the whole."""
    from torchrepro.bundle.load import load_bundle, trust_own
    from torchrepro.bundle.naming import new_run_id
    from torchrepro.bundle.read import read_manifest
    from torchrepro.bundle.save import save_bundle
    from torchrepro.isolate.process import run_isolated
    from torchrepro.isolate.supervise import raise_reported

    with tempfile.TemporaryDirectory(prefix="torchrepro-") as scratch:
        on_phase("record")
        outcome = run_isolated(
            "torchrepro.runner.jobs:record",
            {"request": msgspec.to_builtins(request), "directory": scratch, "size_cap": size_cap},
            time_limit=time_limit,
            environ=compiler_environment(),
        )
        raise_reported(outcome)
        if outcome.result is None:
            return None, ("no bundle: recording the graphs did not come to an end",)
        for path in map(Path, outcome.result["bundles"]):
            trusted = trust_own(read_manifest(path))
            checked = check_bundle(path, time_limit=time_limit, trusted=trusted, on_phase=on_phase)
            if checked.verdict.kind is verdict.kind:
                repro = replace(load_bundle(path, trusted=trusted), expected=checked.signature)
                target = save_to / f"{new_run_id()}-{verdict.kind.value}"
                bundle = save_bundle(repro, target, verdict=checked.verdict, size_cap=size_cap)
                return bundle, tuple(outcome.result["problems"])
    count = len(outcome.result["bundles"])
    reason = (
        f"no bundle: none of the {count} captured graphs fails by itself, so capture is the suspect"
        if count
        else "no bundle: no graph could be recorded"
    )
    return None, (reason, *outcome.result["problems"])


def minify_bundle(
    bundle: Path,
    settings: MinifySettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    on_message: OnMessage = lambda message: None,
) -> Minified:
    """The smallest repro that fails as the one in the bundle does, with its script, in a run directory.

    An interrupted run goes on where it was, and a finished one is answered at once; `fresh` starts over. The
    first Ctrl-C ends the search with the best so far, which is verified, the second raises KeyboardInterrupt.
    """
    from torchrepro.bundle.manifest import devices_of
    from torchrepro.bundle.read import read_manifest
    from torchrepro.isolate.fork_safety import hide_devices
    from torchrepro.isolate.leftovers import end_leftovers
    from torchrepro.minify.registry import chosen_passes
    from torchrepro.minify.session.following import died, result_of, run_search
    from torchrepro.minify.session.identity import Identity
    from torchrepro.minify.session.run_directory import held, run_directory
    from torchrepro.minify.session.settings import MinifySettings, SearchRequest

    settings = settings or MinifySettings()
    manifest = read_manifest(bundle)
    chosen_passes(settings.passes, settings.skip)  # a wrong name is answered at once
    identity = Identity.of(bundle, oracle=settings.oracle)
    directory, elsewhere = run_directory(out, beside=bundle)
    with held(directory) as lock:
        end_leftovers(directory.mark)  # of a run that was killed
        started_over = directory.begin(identity, fresh=fresh)
        finished = directory.finished(settings)
        if finished is not None:
            return finished
        request = SearchRequest(
            bundle=str(bundle.resolve()),
            directory=str(directory.path),
            settings=settings,
            seed=str(cache_directory() / "warm" / identity.toolchain),
            parent=os.getpid(),
            lock=lock,
        )
        environ = {
            **compiler_environment(manifest.ambient.environ),
            "TORCHINDUCTOR_CACHE_DIR": str(directory.cache),
            "OPENBLAS_NUM_THREADS": "1",  # the search process forks, and has no other thread
        }
        if not devices_of(manifest):
            hide_devices(environ)
        outcome = run_search(request, environ=environ, mark=directory.mark, on_message=on_message)
        if died(outcome) and outcome.phase == "warm":
            request = replace(request, warm=False)
            outcome = run_search(request, environ=environ, mark=directory.mark, on_message=on_message)
        return result_of(outcome, directory, notes=(elsewhere, started_over))


def compiler_environment(recorded: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a judging process.

    Inductor's caches go to a directory of our own and the caches of whole graphs are off: a hit in either can
    hide the failure. What is shared there is keyed by the source of a kernel, and the precompiled header,
    which costs ten seconds, stays warm. Of a recorded environment only switches are taken, no program to run.
    """
    chosen = {
        name: value
        for name, value in telling_environment(recorded or {}).items()
        if name not in ("CC", "CXX") and "/" not in value
    }
    return {
        **chosen,
        "TORCHINDUCTOR_CACHE_DIR": str(cache_directory() / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # The judge watches its own compilations itself.
        "TORCHREPRO_WATCH": "0",
    }


def cache_directory() -> Path:
    """`TORCHREPRO_CACHE_DIR`, else the user's cache directory."""
    chosen = os.environ.get("TORCHREPRO_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchrepro"


def exit_code_of_check(checked: Checked) -> int:
    """0 passes, 1 fails as recorded, 2 fails otherwise, 125 cannot be tested: as `git bisect run` wants."""
    if checked.verdict.kind in (Kind.INVALID, Kind.NOT_COMPARABLE):
        return 125
    if not checked.verdict.fails:
        return 0
    return 1 if checked.reproduces else 2


def exit_code_of_compare(compared: Compared) -> int:
    """0 same, 1 differs or fails, 125 cannot be tested."""
    if compared.verdict.kind in (Kind.INVALID, Kind.NOT_COMPARABLE):
        return 125
    return 1 if compared.verdict.fails else 0


def require_testable(verdict: Verdict) -> None:
    """Raise for a verdict that says nothing about the compiler, because eager itself fails."""
    if verdict.kind is Kind.INVALID:
        raise TorchReproError(verdict.summary, next_step="make it run without torch.compile first")
