"""Record a failing frame: the function, its variables, the globals it read and its closure, in a bundle.

A frame at its start is a call, so the bundle is that of a whole call (`bundle/user_calls.py`): arguments are
data, code is source text that is run on `--trust source` alone, globals and cells have the values they have
now. `torchrepro check` replays it: plain Python against the function as captured by this front end.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.user_calls import UserCall, repro_of_call
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


@dataclass(frozen=True, eq=False)
class _Frame:
    """A frame as it was when its function was called. It holds the live objects."""

    function: FunctionType
    locals: Mapping[str, Any]
    globals: Mapping[str, Any]
    cells: Mapping[str, Any]
    """The contents of the cells that it shares with the functions around it, but for empty ones."""

    def call(self) -> UserCall:
        """Return the call that makes this frame."""
        parameters = inspect.signature(self.function, follow_wrapped=False).parameters
        unknown = set(self.locals) ^ set(parameters)
        if unknown:
            raise CannotSerialise(
                f"the frame of {self.function.__qualname__} is not at its start"
                f" ({', '.join(sorted(unknown))})",
                next_step="record the state that the function was called with",
            )
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in parameters.items():
            value = self.locals[name]
            match parameter.kind:
                case parameter.VAR_POSITIONAL:
                    args += value
                case parameter.VAR_KEYWORD:
                    kwargs |= value
                case parameter.KEYWORD_ONLY:
                    kwargs[name] = value
                case _:
                    args.append(value)
        return UserCall(self.function, tuple(args), kwargs)

    def notes(self, error: BaseException | None) -> Iterator[str]:
        failed = "" if error is None else f", failed with {type(error).__name__}"
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        yield f"a frame of {name}, line {_line_of(self.function, error)}{failed}"
        for what, found in (("globals read", self.globals), ("variables closed over", self.cells)):
            if found:
                yield f"{what}: {', '.join(sorted(found))}"

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield everything in the frame, with the words for where it is."""
        for kind, named in (("local", self.locals), ("global", self.globals), ("cell", self.cells)):
            yield from ((f"the {kind} {name}", value) for name, value in named.items())


def keep_failure(
    function: FunctionType, state: FrameState, error: Exception, directory: Path, compiler: Compiler
) -> None:
    """Record the frame in which capture failed, and say so in a note on its error. Raises nothing.

    `state` is that of the function's start; what Python has run since may have changed objects in it.
    """
    try:
        kind = verdict_of(error).kind
        path = record_frame(
            function, state, None, error, directory / f"{new_run_id()}-{kind}", compiler=compiler
        )
    except (TorchReproError, OSError) as refused:
        error.add_note(f"torchrepro could not record the frame: {refused}")
    else:
        error.add_note(f"torchrepro has recorded the frame: torchrepro check --trust source {path}")


def record_frame(
    function: FunctionType,
    state: FrameState,
    globals_read: Mapping[str, Any] | None,
    error: BaseException | None,
    path: Path,
    *,
    compiler: Compiler = OWN_CAPTURE,
) -> Path:
    """Save a frame as a bundle that `torchrepro check` replays. Call it outside of tracing.

    Without `globals_read` it is all that the function's own code names. `CannotSerialise`, naming the
    variable, where a value is neither data nor code.
    """
    named = _globals_named_by(function) if globals_read is None else globals_read
    outer = {name: contents(cell) for name, cell in state.cells.items()}
    cells = {name: value for name, value in outer.items() if value is not EMPTY}
    frame = _Frame(function, dict(state.locals), dict(named), cells)
    call = frame.call()
    verdict = None if error is None else verdict_of(error)
    repro = replace(
        repro_of_call(call.function, call.args, call.kwargs, compiler=compiler, ambient=capture_ambient()),
        backward=False,
        expected=None if verdict is None else Signature.of(verdict),
        notes=tuple(frame.notes(error)),
    )
    try:
        return save_bundle(repro, path, verdict=verdict)
    except CannotSerialise as refused:
        raise _naming_the_value(frame, refused) from refused


def _naming_the_value(frame: _Frame, refused: CannotSerialise) -> CannotSerialise:
    """Return the refusal with the name of the variable that caused it."""
    for where, value in frame.values():
        alone = repro_of_call(torch.clone, (value,), {}, compiler=Compiler("eager"), ambient=Ambient())
        try:
            write_with_source(alone)
        except CannotSerialise:
            name, kind = frame.function.__qualname__, f"{type(value).__module__}.{type(value).__qualname__}"
            return CannotSerialise(
                f"the frame of {name} cannot be kept: {where} is a {kind} ({refused.fact})",
                next_step="make it inside the function, or pass plain data",
            )
    return refused


def _globals_named_by(function: FunctionType) -> dict[str, Any]:
    found = (each.argval for each in dis.get_instructions(function) if each.opname == "LOAD_GLOBAL")
    return {name: function.__globals__[name] for name in found if name in function.__globals__}


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
