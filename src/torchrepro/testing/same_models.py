"""`assert_same_models`: a model and its compiled self give the same; if not, the test fails with a bundle.

The comparison is that of `torchrepro compare` (`execute/user_model.py`), but in this process: a suite has
hundreds of tests, and a fresh process takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchrepro.bundle.archive import new_run_id
from torchrepro.catch.compiled_target import CompiledTarget, target_of
from torchrepro.catch.save_repro import kept_by_watch, save_repro
from torchrepro.catch.search_here import SearchHere
from torchrepro.catch.session import current_session
from torchrepro.catch.settings import WatchSettings
from torchrepro.execute.backends import compiler_of
from torchrepro.execute.compilers import require_known
from torchrepro.execute.user_model import (
    NOTHING_COMPILED,
    Built,
    CaseOptions,
    Factory,
    ModelTrial,
    as_built,
    judge_trial,
)
from torchrepro.nouns.errors import TorchReproError, in_a_line
from torchrepro.nouns.repro import Compiler, ModelRequest
from torchrepro.nouns.sections import of_verdict
from torchrepro.nouns.verdict import Kind, Signature, Verdict
from torchrepro.report.text import lines_of_sections
from torchrepro.testing.artefacts import facts_of
from torchrepro.torch_api import dynamo

_NAME = "the model"
_SHOWN = 3
"""Values that differ, in the message."""


class ModelsDiffer(AssertionError):
    """The compiled model fails or is further from the truth than eager. Has the verdict and the bundle."""

    def __init__(self, message: str, verdict: Verdict, bundle: Path | None) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.bundle = bundle
        """None where no bundle could be written; the message says why."""


def assert_same_models(
    model: Callable[..., Any],
    inputs: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    backward: bool = True,
    strict: bool = False,
    tol: float | None = None,
    out: Path | str | None = None,
    minify: bool = False,
) -> None:
    """Raise `ModelsDiffer`, an AssertionError, unless a model and its compiled self give the same.

    `inputs` is a tuple of arguments, a dict of keyword arguments, or one tensor; `backend` to `fullgraph` are
    those of `torch.compile`, and for a model that is compiled already its own are used. Compared are outputs,
    mutated inputs, buffers and, with `backward` and where an output needs them, gradients, by the rule of
    docs/judging.md, or `strict`, or within `tol`. The failing graph is saved as a bundle in `out` (default:
    `torchrepro-out`), and minified with `minify`. The model, its inputs and gradients stay as they were.

    TorchReproError if nothing can be said: eager fails, or is not deterministic, or nothing was compiled.
    """
    __tracebackhide__ = True
    given: dict[str, Any] = {
        "mode": mode,
        "options": dict(options or {}),
        "dynamic": dynamic,
        "fullgraph": fullgraph,
    }
    target = _target(model, backend, given)
    built = as_built((target.users, inputs), _NAME)
    built = replace(built, kwargs={**built.kwargs, **(kwargs or {})})
    session = current_session()
    kept_before = () if session is None else tuple(session.kept)
    verdict = _judged(built, target.compiler, backward=backward, strict=strict, tol=tol)
    if not verdict.fails:
        _require_compared(verdict)
        return
    directory = WatchSettings.from_environ().directory if out is None else Path(out).absolute()
    bundle, reason = None, ""
    try:
        bundle = kept_by_watch(verdict)
        if bundle is None or bundle in kept_before:
            path = directory / f"{new_run_id()}-{verdict.kind.value}"
            rule: dict[str, Any] = {"backward": None if backward else False, "strict": strict, "tol": tol}
            bundle = save_repro(
                model, built.args, built.kwargs, path, backend=backend, **given, **rule, failure=verdict
            )
    except Exception as exc:  # whatever it is, the failure of the model is what the test is told
        bundle = None
        reason = f"no bundle: {in_a_line(exc)}"
    if bundle is not None and minify:
        SearchHere(bundle, ("minify",)).wait()
    raise ModelsDiffer(_message(verdict, bundle, reason), verdict, bundle) from None


def _target(
    model: Callable[..., Any], backend: str | Callable[..., Any], given: Mapping[str, Any]
) -> CompiledTarget:
    compiled = target_of(model)
    if compiled is not None:
        return compiled
    named, notes = compiler_of(backend)
    return CompiledTarget(model, replace(named, **given), notes)


def _judged(built: Built, compiler: Compiler, *, backward: bool, strict: bool, tol: float | None) -> Verdict:
    require_known(compiler)
    request = ModelRequest(
        _NAME, compiler, backward=None if backward else False, strict=strict, tolerance=tol
    )
    factory = Factory(lambda: built, _NAME, CaseOptions(), once=built)
    # What earlier tests compiled must not decide what this one compiles: after eight recompilations Dynamo
    # runs a function uncompiled, and after two sizes it compiles for any.
    dynamo.reset()
    before = _captured_graphs()
    verdict = judge_trial(ModelTrial(request, factory, compiler))
    if verdict.kind is Kind.PASS and _captured_graphs() == before:
        raise TorchReproError(NOTHING_COMPILED, next_step="pass what torch.compile can capture")
    return verdict


def _captured_graphs() -> int:
    """Return how many graphs Dynamo has captured. Checked on torch 2.11 to 2.15 (`unique_graphs`)."""
    return int(dynamo.counters["stats"]["unique_graphs"])


def _require_compared(verdict: Verdict) -> None:
    """Raise if nothing was compared: a test that passes would claim that it was."""
    verdict.require_testable()
    if verdict.kind is Kind.NOT_COMPARABLE:
        raise TorchReproError(str(verdict), next_step="seed its generators, or compare a part that is steady")


def _message(verdict: Verdict, bundle: Path | None, reason: str) -> str:
    facts = [("signature", Signature.of(verdict))] if bundle is None else list(facts_of(bundle))
    section = of_verdict(verdict.with_notes(reason), facts, limit=_SHOWN)
    return "\n".join(line.text for line in lines_of_sections([section], None))
