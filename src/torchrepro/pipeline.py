"""The whole flow in one readable file: from a bundle or a user's model to a verdict and a bundle.

    program ── capture ──► Repro ── judge ──► Verdict ── locate ──► Suspect ── minify ──► Repro ── report

Each step that runs a compiler does so in a process of its own, so a segfault, a hang or a full memory is a
verdict like any other and never the end of the tool. Nothing here imports torch: a wrong path is answered at
once.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from torchrepro.engine.check_bundle import Checked, OnPhase, check_bundle, time_limit_of
from torchrepro.engine.processes.environment import compiler_environment
from torchrepro.nouns.ambient import telling_environment
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Kind, Verdict

if TYPE_CHECKING:
    from torchrepro.bundle.manifest import Manifest
    from torchrepro.engine.search.parent import OnMessage
    from torchrepro.locate.settings import LocateSettings
    from torchrepro.minify.settings import MinifySettings
    from torchrepro.nouns.located import Located
    from torchrepro.nouns.minified import Minified
    from torchrepro.nouns.request import ModelRequest
    from torchrepro.report.contents import Contents
    from torchrepro.second_opinion.explanation import Agreement, CaptureExplanation

__all__ = [
    "Checked",
    "Compared",
    "Explained",
    "check_bundle",
    "compare_model",
    "explain_model",
    "locate_bundle",
    "minify_bundle",
    "report_on",
]


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict on a user's model, and the bundle that shows it (None: not asked for, or not possible)."""

    verdict: Verdict
    signature: Signature
    bundle: Path | None = None
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()


@dataclass(frozen=True, slots=True)
class Explained:
    """How a user's model becomes graphs, and what was asked about that."""

    explanation: CaptureExplanation
    fullgraph: bool = False
    """Whether it was to be one graph."""
    verified: Agreement | None = None
    """With plain Python; None: not asked for."""

    @property
    def failed(self) -> tuple[str, ...]:
        """What was asked for and is not so, each in one line."""
        told, dynamo = self.explanation, self.explanation.dynamo
        found = []
        if self.fullgraph and not told.whole:
            found.append("it is not one graph, as was asked for")
        agreements = [] if self.verified is None else [self.verified]
        agreements += [] if dynamo is None else dynamo.agreements
        found += [f"{each.who} differs from Python: {each.detail}" for each in agreements if not each.same]
        return tuple(dict.fromkeys(found))


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
    from torchrepro.engine.processes.supervise import judged_in_isolation

    request = replace(request, environ=telling_environment())
    verdict = judged_in_isolation(
        "torchrepro.execute.jobs:compare",
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


def explain_model(
    request: ModelRequest,
    *,
    verify: bool = False,
    dynamo: bool = False,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Explained:
    """How a user's model becomes graphs by our own front end; nothing but its forward call is run.

    `verify` runs it in plain Python beside; `dynamo` asks TorchDynamo for a second opinion.
    """
    from torchrepro.engine.processes.fresh_process import run_isolated
    from torchrepro.engine.processes.supervise import raise_reported
    from torchrepro.second_opinion.explanation import Agreement, CaptureExplanation

    request = replace(request, environ=telling_environment())
    outcome = run_isolated(
        "torchrepro.second_opinion.explain_model:explain",
        {"request": msgspec.to_builtins(request), "verify": verify, "dynamo": dynamo},
        time_limit=time_limit,
        environ=compiler_environment(),
        on_phase=on_phase,
    )
    raise_reported(outcome)
    if outcome.result is None:
        death = f"no end after {time_limit:g} s" if outcome.timed_out else f"it died ({outcome.signal})"
        raise TorchReproError(
            f"nothing can be told of {request.target}: {death}",
            next_step="raise --time-limit" if outcome.timed_out else "try it with torchrepro compare",
        )
    verified = outcome.result["verified"]
    return Explained(
        CaptureExplanation.from_dict(outcome.result),
        fullgraph=outcome.result["fullgraph"],
        verified=None if verified is None else msgspec.convert(verified, Agreement),
    )


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
    from torchrepro.bundle.archive import new_run_id
    from torchrepro.bundle.load import load_bundle, trust_own
    from torchrepro.bundle.read import read_manifest
    from torchrepro.engine.processes.fresh_process import run_isolated
    from torchrepro.engine.processes.supervise import raise_reported
    from torchrepro.script.save_bundle import save_bundle

    with tempfile.TemporaryDirectory(prefix="torchrepro-") as scratch:
        on_phase("record")
        outcome = run_isolated(
            "torchrepro.execute.jobs:record",
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


def save_whole_call(
    request: ModelRequest,
    verdict: Verdict,
    save_to: Path,
    *,
    size_cap: int = 1 << 30,
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Path:
    """A bundle of the call of a user's model itself, for a failure that none of its graphs shows."""
    from torchrepro.bundle.archive import new_run_id
    from torchrepro.engine.processes.fresh_process import run_isolated
    from torchrepro.engine.processes.supervise import raise_reported

    on_phase("record")
    path = save_to.absolute() / f"{new_run_id()}-{verdict.kind.value}"
    request = replace(request, environ=telling_environment())
    outcome = run_isolated(
        "torchrepro.execute.jobs:keep_call",
        {"request": msgspec.to_builtins(request), "path": str(path), "size_cap": size_cap},
        time_limit=time_limit,
        environ=compiler_environment(),
    )
    raise_reported(outcome)
    if outcome.result is None:
        raise TorchReproError(
            "the whole call could not be kept: building the model did not come to an end",
            next_step="raise the time with torchrepro compare --time-limit",
        )
    return path


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
    from torchrepro.bundle.read import read_manifest
    from torchrepro.engine.search.identity import Identity
    from torchrepro.engine.search.parent import searched
    from torchrepro.engine.search.run_directory import held
    from torchrepro.minify.registry import chosen_passes
    from torchrepro.minify.run_directory import run_directory
    from torchrepro.minify.settings import MinifySettings
    from torchrepro.nouns.minified import Minified

    settings = settings or MinifySettings()
    read_manifest(bundle)  # a wrong path and a wrong name are answered at once
    chosen_passes(settings.passes, settings.skip)
    identity = Identity.of(bundle, oracle=settings.oracle)
    directory, elsewhere = run_directory(out, beside=bundle)
    with held(directory) as lock:
        started_over = directory.begin(identity, fresh=fresh)
        finished = directory.finished(settings)
        if finished is not None:
            return finished
        answer = searched(
            "torchrepro.minify.job:minify",
            bundle,
            directory,
            settings,
            toolchain=identity.toolchain,
            lock=lock,
            on_message=on_message,
            kept=lambda: f"; the best so far is in {directory.best}" if directory.best.exists() else "",
        )
        found = msgspec.convert(answer, Minified)
        notes = (note for note in (elsewhere, started_over) if note)
        return replace(found, notes=(*notes, *found.notes))


def locate_bundle(
    bundle: Path,
    settings: LocateSettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
    on_message: OnMessage = lambda message: None,
) -> Located:
    """Who is guilty of the failure in a bundle: the stage, what is inside it, the graph, the op, the kernel.

    The answer is kept in `located/` in the bundle, and given again at once unless `fresh`. The first Ctrl-C
    ends it with what was found so far, the second raises KeyboardInterrupt.
    """
    from torchrepro.bundle.read import read_manifest
    from torchrepro.engine.search.identity import Identity
    from torchrepro.engine.search.parent import searched
    from torchrepro.engine.search.run_directory import held
    from torchrepro.locate.settings import LocateSettings, locate_directory
    from torchrepro.nouns.located import Located

    settings = settings or LocateSettings()
    read_manifest(bundle)  # a wrong path is answered at once
    identity = Identity.of(bundle)
    directory, elsewhere = locate_directory(out, bundle)
    with held(directory) as lock:
        directory.begin(identity, fresh=fresh)
        finished = directory.finished()
        if finished is not None:
            return finished
        answer = searched(
            "torchrepro.locate.job:locate",
            bundle,
            directory,
            settings,
            toolchain=identity.toolchain,
            lock=lock,
            on_message=on_message,
        )
        found = msgspec.convert(answer, Located, strict=False)
        return replace(found, notes=(elsewhere, *found.notes)) if elsewhere else found


def report_on(
    bundle: Path,
    *,
    run: bool = True,
    against: str = "",
    trusted: tuple[str, ...] = (),
    time_limit: float | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> Contents:
    """What is known of a bundle, of a directory of `minify`, or of the minimal bundle in it.

    Only where values are wrong is it `run`, for the map of their errors. `against` names another environment:
    a bundle, a report in JSON, or `here`. `torchrepro.report.formats.rendered` makes a page or a text of it.
    """
    from torchrepro.report.collect import collect
    from torchrepro.report.environments import other_place
    from torchrepro.report.rerun import Measured, measured
    from torchrepro.report.run_files import surroundings_of

    surroundings_of(bundle)  # a wrong path is answered at once

    def measure(found: Path, manifest: Manifest) -> Measured:
        return measured(
            found,
            trusted=trusted,
            time_limit=time_limit or time_limit_of(manifest),
            environ=compiler_environment(manifest.ambient.environ),
            on_phase=on_phase,
        )

    other = other_place(against) if against else None
    return collect(bundle, measure=measure if run else None, other=other)


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


def exit_code_of_capture(explained: Explained) -> int:
    """0 captured, in however many graphs; 1 not as was asked for (one graph, the result of Python)."""
    return 1 if explained.failed else 0


def require_testable(verdict: Verdict) -> None:
    """Raise for a verdict that says nothing about the compiler, because eager itself fails."""
    if verdict.kind is Kind.INVALID:
        raise TorchReproError(verdict.summary, next_step="make it run without torch.compile first")
