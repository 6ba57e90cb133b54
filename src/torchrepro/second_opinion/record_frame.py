"""Record a failing frame: the function, its variables, the globals it read and its closure, in a bundle.

A frame at its start is a call, so the bundle is that of a whole call (`bundle/user_calls.py`): arguments are
data, code is source text that is run only with `--trust source`, globals and cells have their current
values. `torchrepro check` replays it: plain Python against the function as captured by this front end.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.frontend.source import FrameState
from torchrepro.judge.execute import verdict_of
from torchrepro.nouns.errors import CannotSerialise, TorchReproError
from torchrepro.nouns.repro import Ambient, Compiler, Frontend
from torchrepro.nouns.verdict import Signature
from torchrepro.script.save_bundle import save_bundle
from torchrepro.state.ambient import capture_ambient
from torchrepro.user_code.closure.user_modules import EMPTY, contents
from torchrepro.user_code.graph_source import write_with_source

OWN_CAPTURE = Compiler(frontend=Frontend.TORCHREPRO)


def keep_failure(
    function: FunctionType, state: FrameState, error: Exception, directory: Path, compiler: Compiler
) -> None:
    """Record the frame in which capture failed, and add a note about it to the error. Never raises.

    `state` is that of the function's start; code that has run since may have changed objects in it.
    """
    try:
        path = directory / f"{new_run_id()}-{verdict_of(error).kind}"
        record_frame(function, state, error, path, compiler=compiler)
    except (TorchReproError, OSError) as refused:
        error.add_note(f"torchrepro could not record the frame: {refused}")
    else:
        error.add_note(f"torchrepro has recorded the frame: torchrepro check --trust source {path}")


def record_frame(
    function: FunctionType,
    state: FrameState,
    error: BaseException | None,
    path: Path,
    *,
    compiler: Compiler = OWN_CAPTURE,
) -> Path:
    """Save a frame as a bundle that `torchrepro check` replays. Call it outside of tracing.

    `CannotSerialise`, naming the variable, where a value is neither data nor code.
    """
    signature = inspect.signature(function, follow_wrapped=False)
    unknown = set(state.locals) ^ set(signature.parameters)
    if unknown:
        raise CannotSerialise(
            f"the frame of {function.__qualname__} is not at its start ({', '.join(sorted(unknown))})",
            next_step="record the state that the function was called with",
        )
    call = inspect.BoundArguments(
        signature, OrderedDict((name, state.locals[name]) for name in signature.parameters)
    )
    read = (each.argval for each in dis.get_instructions(function) if each.opname == "LOAD_GLOBAL")
    named = {name: function.__globals__[name] for name in read if name in function.__globals__}
    outer = {name: contents(cell) for name, cell in state.cells.items()}
    cells = {name: value for name, value in outer.items() if value is not EMPTY}
    failed = "" if error is None else f", failed with {type(error).__name__}"
    where = f"{function.__module__}.{function.__qualname__}, line {_line_of(function, error)}"
    notes = [f"a frame of {where}{failed}"]
    for what, found in (("globals read", named), ("variables closed over", cells)):
        notes += [f"{what}: {', '.join(sorted(found))}"] if found else []
    verdict = None if error is None else verdict_of(error)
    repro = replace(
        repro_of_call(function, call.args, call.kwargs, compiler=compiler, ambient=capture_ambient()),
        backward=False,
        expected=None if verdict is None else Signature.of(verdict),
        notes=tuple(notes),
    )
    try:
        return save_bundle(repro, path, verdict=verdict)
    except CannotSerialise as refused:
        for kind, values in (("local", state.locals), ("global", named), ("cell", cells)):
            for name, value in values.items():
                if not _can_be_kept(value):
                    kept = f"{type(value).__module__}.{type(value).__qualname__}"
                    raise CannotSerialise(
                        f"the frame of {function.__qualname__} cannot be kept: the {kind} {name} is a {kept}"
                        f" ({refused.fact})",
                        next_step="make it inside the function, or pass plain data",
                    ) from refused
        raise


def _can_be_kept(value: Any) -> bool:
    alone = repro_of_call(torch.clone, (value,), {}, compiler=Compiler("eager"), ambient=Ambient())
    try:
        write_with_source(alone)
    except CannotSerialise:
        return False
    return True


def _line_of(function: FunctionType, error: BaseException | None) -> int:
    """Return the innermost line of the function itself that an error came through."""
    code = function.__code__
    trace = [] if error is None else traceback.extract_tb(error.__traceback__)
    lines = [
        frame.lineno
        for frame in trace
        if (frame.filename, frame.name) == (code.co_filename, code.co_name) and frame.lineno is not None
    ]
    return lines[-1] if lines else code.co_firstlineno
