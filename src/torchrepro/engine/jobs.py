"""Jobs that run in a candidate's own process: each takes a repro and plain data, and returns plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from torchrepro.judge.compare import tensors_in
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.torch_api.patching import replaced

_COMPILER = "/torch/_inductor/"
_CODE = ("_compile_to_module_lines", "codecache.py", "async_compile.py")
"""Names in the stack frames that compile, load or run generated code."""


class PastTheFailure(BaseException):
    """The compiler got further than the baseline did. Not an `Exception`, so that no handler catches it."""


def fails_before_code(verdict: Verdict) -> bool:
    """Return whether a failure is an exception raised by inductor before generated code is compiled."""
    if verdict.kind is not Kind.COMPILE_ERROR or verdict.raised is None:
        return False
    frames = verdict.raised.traceback.replace("\\", "/")
    return _COMPILER in frames and not any(name in frames for name in _CODE)


def is_compiled_once(repro: Repro) -> bool:
    """Return whether inductor compiles one graph only: no backward, no second capture, no earlier call."""
    if repro.place is Place.AFTER_AOT:
        return True
    if repro.place is Place.BEFORE_CAPTURE or repro.earlier:
        return False
    held = (repro.inputs, list(repro.graph.parameters()), list(repro.graph.buffers()))
    with_gradients = any(tensor.requires_grad for _, tensor in tensors_in(held))
    return repro.backward is False or not repro.ambient.grad_enabled or not with_gradients


@contextmanager
def ending_before_code() -> Iterator[None]:
    """Raise `PastTheFailure` once inductor has generated code, in place of compiling it.

    Only for a candidate's own process. Checked on torch 2.13 (`GraphLowering._compile_to_module_lines`); if
    that does not exist, everything is compiled and run.
    """
    from torchrepro.torch_api.inductor import GraphLowering

    if not hasattr(GraphLowering, _CODE[0]):
        yield
        return

    def end(*args: object) -> NoReturn:
        raise PastTheFailure

    with replaced(GraphLowering, _CODE[0], end):
        yield


def judge(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the verdict on a candidate."""
    from torchrepro.cut.hints import last_words, working_on
    from torchrepro.execute.judge_repro import judge_repro
    from torchrepro.judge.models import Judged

    judged = Judged()
    with last_words(payload["time_limit"]):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, judged=judged)
    doing = working_on(judged.raised) if judged.raised is not None else ""
    return msgspec.to_builtins(verdict.with_notes(doing) if doing else verdict)


def judge_before_code(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the verdict on a candidate where the baseline fails before code is generated."""
    if not is_compiled_once(repro):
        return judge(repro, payload, phase)
    try:
        with ending_before_code():
            return judge(repro, payload, phase)
    except PastTheFailure:
        # Not a pass, because it was not run.
        summary = "not run: the compiler got further than the original did"
        return msgspec.to_builtins(Verdict(Kind.NOT_COMPARABLE, summary=summary))


def judge_announced(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the verdict on a candidate whose kernels print the ops that they are about to compute."""
    from torchrepro.cut.hints import WORKING_ON
    from torchrepro.torch_api.inductor import ops_announced

    with ops_announced(WORKING_ON):
        return judge(repro, payload, phase)


def judge_rounds(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge one compilation on each set of inputs (`cut/batches.py`)."""
    from torchrepro.cut.batches import verdicts_of_rounds

    verdicts = verdicts_of_rounds(repro, own=payload["own"], seconds=payload["seconds"], phase=phase)
    return [msgspec.to_builtins(verdict) for verdict in verdicts]


def record(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Run eagerly and write every intermediate value to the file at `path`."""
    from torchrepro.cut.record_values import observed_values, write_values

    phase("eager")
    write_values(observed_values(repro, limit=payload["limit"]), Path(payload["path"]))
    return True


def generate(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the code that inductor generates for a candidate, which is not compiled; none if it fails."""
    from torchrepro.execute.generate_code import generate_for

    codes: list[str] = []
    return codes if generate_for(repro, phase, codes.append) else []


def measure(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge a candidate; return what torch's own comparisons say of the run, and the generated code."""
    from torchrepro.execute.generate_code import taking_code
    from torchrepro.execute.judge_repro import judge_repro
    from torchrepro.execute.torch_comparisons import measurements, tensors_of
    from torchrepro.judge.models import Judged

    judged, codes = Judged(), list[str]()
    with taking_code(repro, codes.append):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, judged=judged)
    sides = {side: tensors_of(run) for side, run in judged.runs.items()}
    return {"answers": measurements(repro, verdict, sides, phase), "code": codes}
