"""`save_repro`: save one call as a bundle after it has happened, typically in an `except` block.

Nothing of the program is run again in this process. Its graphs are recorded in a fork and judged in
separate processes; the exception in flight decides which of them is saved.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.bundle.archive import Content, new_run_id, write_bundle_files
from torchrepro.bundle.load import load_verified
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.catch.compiled_target import CompiledTarget, target_of
from torchrepro.catch.search_here import SearchHere
from torchrepro.catch.session import current_session, looking_away
from torchrepro.catch.settings import WatchSettings
from torchrepro.engine.processes.fork_safety import device_in_use, fork_child
from torchrepro.execute.backends import compiler_of
from torchrepro.execute.compilers import compile_model, require_known
from torchrepro.execute.record_graphs import ANY_SIZE, record_graphs, save_graphs
from torchrepro.judge.execute import verdict_of
from torchrepro.nouns.errors import AccuracyError, BundleError, TorchReproError
from torchrepro.nouns.repro import Repro, telling_environment
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.save_bundle import save_bundle
from torchrepro.state.ambient import capture_ambient
from torchrepro.torch_api import dynamo

if TYPE_CHECKING:
    from torchrepro.engine.check_bundle import Checked


_RECORDING_LIMIT = 300.0
"""Time limit for running the call once, without a compiler."""


def save_repro(
    model: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    path: Path | str | None = None,
    *,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    whole: bool = False,
    minify: bool = False,
    backward: bool | None = None,
    strict: bool = False,
    tol: float | None = None,
    failure: Verdict | None = None,
) -> Path:
    """Save the call `model(*args, **kwargs)` as a bundle, and return the bundle's path.

    `model` is a module or function, compiled or not, or a `torch.export.ExportedProgram`. For a compiled one
    its own compiler and options are used; for others pass them here as for `torch.compile`. Of several graphs
    the one that fails is saved, in an `except` block the one that fails with that exception. If none fails
    alone, or with `whole`, the whole call is saved, with its source code. `minify`: minify it too, in forks
    of this process if possible; the result is in `BUNDLE.minified`. `backward`, `strict` and `tol` say how it
    is judged, as for `torchrepro compare`. `failure`: what was seen of it, if no exception is being handled.

    Neither the model nor its inputs, gradients, generators or compiled code are changed.
    """
    if path is not None and Path(path).exists():
        raise BundleError(f"{path} exists already", next_step="choose another name")
    _require_arguments(model, args, kwargs)
    # What the watch has kept may be the same kind of failure of another call: with an exception it is not.
    raised = _failure_in_flight() if failure is None else None
    bundle = None if raised is None or whole else kept_by_watch(raised)
    failure = failure or raised
    if bundle is not None:
        bundle = bundle if path is None else _copied(bundle, Path(path))
    else:
        compiler = {"mode": mode, "options": dict(options or {}), "dynamic": dynamic, "fullgraph": fullgraph}
        target = target_of(model) or _target_with(model, backend or "inductor", compiler)
        with looking_away(), tempfile.TemporaryDirectory(prefix="torchrepro-") as scratch:
            asked = {"backward": backward, "strict": strict or None, "tolerance": tol}
            rule = {name: value for name, value in asked.items() if value is not None}
            call = _Call(target, tuple(args), dict(kwargs or {}), rule, failure, Path(scratch))
            exported = isinstance(model, torch.export.ExportedProgram)
            graph = None if whole or exported else call.failing_graph()
            bundle = call.saved(graph or call.judged(call.whole()), path)
    if minify:
        SearchHere(bundle, ("minify",)).wait()
    return bundle


def _target_with(
    model: Any, backend: str | Callable[..., Any], compiler: Mapping[str, Any]
) -> CompiledTarget:
    named, notes = compiler_of(backend)
    asked = replace(named, **compiler)
    if not callable(backend):
        require_known(asked)
    return CompiledTarget(model, asked, notes)


_Judged = tuple[Repro, Verdict]


@dataclass(frozen=True, eq=False)
class _Call:
    """The call to save."""

    target: CompiledTarget
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rule: dict[str, Any]
    """Fields of the repro: how it is judged."""
    failure: Verdict | None
    """The verdict derived from the exception in flight, or given."""
    scratch: Path

    @property
    def expected(self) -> Signature | None:
        return None if self.failure is None else Signature.of(self.failure)

    def saved(self, judged: _Judged, path: Path | str | None) -> Path:
        """Save the bundle with its verdict and expected failure, and return its path."""
        settings = WatchSettings.from_environ()
        repro, verdict = judged
        target = Path(path) if path else settings.directory / f"{new_run_id()}-{verdict.kind.value}"
        expected = Signature.of(verdict) if verdict.fails else None
        repro = replace(repro, expected=expected, notes=(*repro.notes, *self.target.notes))
        return save_bundle(repro, target, verdict=verdict, size_cap=settings.size_cap)

    def failing_graph(self) -> _Judged | None:
        """Return the graph that fails with the exception in flight, else one with a failure of that kind."""
        from torchrepro.engine.check_bundle import first_failing

        bundles = self._recorded()
        unjudged: list[TorchReproError] = []

        def judged() -> Iterator[tuple[Path, Verdict]]:
            for bundle in bundles:
                try:
                    yield bundle, _checked(bundle).verdict
                except TorchReproError as exc:  # it cannot run in another process: its compiler has no name
                    unjudged.append(exc)

        kind = None if self.expected is None else self.expected.kind
        found = first_failing(judged(), kind, self.expected)
        if found is not None:
            return load_verified(found[0]), found[1]
        if self.failure is not None and len(bundles) == len(unjudged) == 1:
            return self._as_the_program_saw_it(
                load_verified(bundles[0]), f"it could not be judged: {unjudged[0]}"
            )
        return None

    def whole(self) -> Repro:
        """Return a repro of the whole call, capture included; of an exported program, its graph."""
        from torchrepro.bundle.exported import repro_of_exported

        more: Any = {"compiler": self.target.compiler, "ambient": capture_ambient()}
        function: Any = self.target.function
        if isinstance(function, torch.export.ExportedProgram):
            repro = repro_of_exported(function, self.args or None, self.kwargs or None, **more)
        else:
            repro = repro_of_call(function, self.args, self.kwargs, **more)
        return replace(repro, **self.rule)

    def judged(self, repro: Repro) -> _Judged:
        """Judge a repro in its own process; if that disagrees with the program's failure, keep the latter."""
        bundle = save_bundle(repro, self.scratch / "call", script=False)
        try:
            checked = _checked(bundle)
        except TorchReproError as exc:
            if self.failure is None:
                raise
            return self._as_the_program_saw_it(repro, f"it could not be judged: {exc}")
        if self.failure is None or (self.expected and self.expected.matches(checked.signature)):
            return repro, checked.verdict
        note = f"in a process of its own it does not fail as in the program: {checked.verdict}"
        return self._as_the_program_saw_it(repro, note)

    def _as_the_program_saw_it(self, repro: Repro, note: str) -> _Judged:
        assert self.failure is not None
        return replace(repro, notes=(*repro.notes, note)), self.failure

    def _recorded(self) -> list[Path]:
        """Record a bundle for each graph that capture makes of the call."""
        done = in_a_fork(self._record, _RECORDING_LIMIT) if can_fork() else self._record_elsewhere()
        names = sorted(self.scratch.glob("graph_*"), key=lambda path: int(path.name.rpartition("_")[2]))
        return names if done else []

    def _record(self) -> None:
        """Record the graphs in a fork of this process, where it may reset Dynamo and run the model."""
        dynamo.reset()

        def call(backend: Callable[..., Any]) -> None:
            plain = replace(self.target.compiler, options={}, mode=None)
            compile_model(plain, self.target.function, backend=backend)(*self.args, **self.kwargs)

        repros, _ = record_graphs(call, self.target.compiler, environ=telling_environment())
        save_graphs([replace(repro, **self.rule) for repro in repros], self.scratch)

    def _record_elsewhere(self) -> bool:
        """Record the graphs in a fresh process, from the source of the call; return whether it finished."""
        from torchrepro.engine.processes.fresh_process import compiler_environment, run_isolated

        repro = self.whole()
        bundle = save_bundle(repro, self.scratch / "to_record", size_cap=ANY_SIZE, script=False)
        outcome = run_isolated(
            "torchrepro.execute.record_graphs:record_bundle",
            {"bundle": str(bundle), "trusted": list(names_it_runs(read_manifest(bundle)))},
            time_limit=_RECORDING_LIMIT,
            environ=compiler_environment(repro.ambient.environ),
        )
        return outcome.result is not None


def _checked(bundle: Path) -> Checked:
    from torchrepro.engine.check_bundle import check_bundle

    return check_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))


def _require_arguments(model: Any, args: Any, kwargs: Any) -> None:
    if not callable(model) and not isinstance(model, torch.export.ExportedProgram):
        raise TorchReproError(
            f"model is a {type(model).__name__}", next_step="pass a module, a function or an exported program"
        )
    if not isinstance(args, tuple | list):
        raise TorchReproError(
            f"args is a {type(args).__name__}", next_step="pass a tuple: save_repro(model, (x,))"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TorchReproError(f"kwargs is a {type(kwargs).__name__}", next_step="pass a dict")


def _failure_in_flight() -> Verdict | None:
    """Return the verdict derived from the exception that is being handled, or None."""
    exc = sys.exception()
    if isinstance(exc, AccuracyError) and exc.verdict is not None:
        return exc.verdict
    return verdict_of(exc) if isinstance(exc, Exception) else None


def kept_by_watch(failure: Verdict) -> Path | None:
    """Return the bundle that the watch of this process has saved for the same failure, or None."""
    session = current_session()
    signature = Signature.of(failure)
    for bundle in reversed(session.kept if session is not None else []):
        try:
            expected = read_manifest(bundle).expected
        except BundleError:
            continue  # moved or removed by the user meanwhile
        if expected is not None and expected.matches(signature):
            return bundle
    return None


def _copied(bundle: Path, path: Path) -> Path:
    files: dict[str, Content] = {
        file.name: partial(shutil.copyfile, file) for file in sorted(bundle.iterdir()) if file.is_file()
    }
    return write_bundle_files(path, files)


def can_fork() -> bool:
    """Return whether a fork is safe: no accelerator in use, and no process group, which it would disturb."""
    distributed = torch.distributed
    return not device_in_use() and not (distributed.is_available() and distributed.is_initialized())


def in_a_fork(work: Callable[[], object], time_limit: float) -> bool:
    """Run some work in a fork of this process; return whether it succeeded in time."""

    def succeed() -> bool:
        torch.set_num_threads(1)  # so that it does not need torch's other threads
        work()
        return True

    with fork_child(lambda reporter: reporter.answer(succeed)) as child:
        child.begin(time_limit)
        return child.wait().result is True
