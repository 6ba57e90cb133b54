"""Splits functions at every instruction they run, in this Python: `python all_splits.py [CASE]...`.

Needs `torchrepro` and `bytecode` on the path and no torch. What it is about to enter is printed before it does, so
that after a crash the last line says where.
"""

from __future__ import annotations

import faulthandler
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import split_functions

from torchrepro.frontend.program.liveness import live_before
from torchrepro.frontend.program.program import Program
from torchrepro.frontend.program.reading import program_of
from torchrepro.frontend.program.resume import (
    Continuation,
    bound_in,
    enter,
    point_of,
    resumed_code,
    stepped_code,
    why_not_enterable,
)
from torchrepro.frontend.state import FrameState

Maker = Callable[[Program, Any, frozenset[str]], CodeType]
_made: dict[tuple[Any, ...], CodeType] = {}


@dataclass(frozen=True)
class Outcome:
    """All that a caller can see of a call."""

    result: str
    raised: tuple[str, str] | None
    frames: tuple[tuple[str, int | None], ...]
    """Function and line of every frame of the user's in the traceback."""
    seen: str


def outcome(run: Callable[[], Any], seen: list[Any], file: str) -> Outcome:
    split_functions.COUNTER = 0
    try:
        return Outcome(repr(run()), None, (), repr(seen))
    except Exception as error:
        frames = tuple(
            (frame.name, frame.lineno)
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == file
        )
        return Outcome("", (type(error).__name__, str(error)), frames, repr(seen))


def at_start(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FrameState:
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return FrameState(dict(bound.arguments), cells)


def entered(make: Maker, function: FunctionType, index: int, state: FrameState) -> Any:
    program = program_of(function.__code__)
    point, bound = point_of(index, state), bound_in(program, state)
    key = (make, function.__code__, point, bound)
    if key not in _made:
        _made[key] = make(program, point, bound)
    return enter(_made[key], function, state)


def stepped(
    function: FunctionType, state: FrameState, limit: int, say: Callable[[int], None]
) -> Iterator[Any]:
    """A function run one instruction at a time: its continuations, or in the end its result."""
    program, index = program_of(function.__code__), 0
    for _ in range(limit):
        reason = why_not_enterable(program, index)
        assert reason is None, f"instruction {index} was reached, but: {reason}"
        say(index)
        got = entered(stepped_code, function, index, state)
        yield got
        if not isinstance(got, Continuation):
            return
        index, state = got.index, got.state


def split(name: str, case: split_functions.Case) -> tuple[int, set[str]]:
    """Check one function; how often it was split, and the kinds of instructions stepped."""

    def fresh() -> tuple[FunctionType, FrameState, list[Any]]:
        seen: list[Any] = []
        function, args, kwargs = case(seen)
        if isinstance(function, MethodType):
            function, args = function.__func__, (function.__self__, *args)
        assert isinstance(function, FunctionType)
        return function, at_start(function, args, kwargs), seen

    def plainly() -> Outcome:
        seen: list[Any] = []
        function, args, kwargs = case(seen)
        return outcome(lambda: function(*args, **kwargs), seen, split_functions.__file__)

    def after(steps: int, resume: bool, only_live: bool, places: list[int]) -> Outcome:
        """`steps` instructions one by one, and then the rest in one go."""
        function, state, seen = fresh()

        def say(index: int) -> None:
            places.append(index)
            print(f"{name}: step at {index}", flush=True)

        def run() -> Any:
            got: Any = None
            for got in stepped(function, state, steps, say):
                pass
            if not (resume and isinstance(got, Continuation)):
                return got
            rest = got.state
            if only_live:
                live = live_before(program_of(function.__code__), got.index)
                rest = FrameState(
                    {name: value for name, value in rest.locals.items() if name in live},
                    rest.cells,
                    rest.stack,
                )
            print(f"{name}: resume at {got.index}", flush=True)
            return entered(resumed_code, function, got.index, rest)

        return outcome(run, seen, split_functions.__file__)

    expected = plainly()
    places: list[int] = []
    whole = after(sys.maxsize, resume=False, only_live=False, places=places)
    assert whole == expected, f"{name}: stepped to the end\n  {whole}\nbut plainly\n  {expected}"
    for steps in range(1, len(places)):
        for only_live in (False, True):
            got = after(steps, resume=True, only_live=only_live, places=[])
            assert got == expected, (
                f"{name}: resumed at instruction {places[steps]}, {only_live=}\n  {got}\nbut plainly\n  {expected}"
            )
    program = program_of(fresh()[0].__code__)
    return len(places), {program.instructions[place].name for place in places}


def main(names: list[str]) -> None:
    faulthandler.enable()
    splits, kinds = 0, set[str]()
    for name, case in split_functions.CASES.items():
        if not names or name in names:
            count, stepped_kinds = split(name, case)
            splits, kinds = splits + count, kinds | stepped_kinds
    print(
        f"split {len(split_functions.CASES)} functions at {splits} places, {len(kinds)} kinds of instruction"
    )
    print(" ".join(sorted(kinds)))


if __name__ == "__main__":
    main(sys.argv[1:])
