"""Splits functions at instructions they run, in this Python: `python all_splits.py PLACE EVERY [CASE]...`.

Needs `torchrepro` and `bytecode` on the path and no torch. PLACE is a file that says what was entered last,
should this process crash; EVERY is 1 for all instructions, 3 for each third.
"""

from __future__ import annotations

import faulthandler
import inspect
import mmap
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from torchrepro.frontend.bytecode.flow import live_before
from torchrepro.frontend.bytecode.program import program_of
from torchrepro.frontend.bytecode.resume import (
    Continuation,
    enter,
    loop_exits,
    resumed_code,
    run_loop,
    stepped_code,
    why_not_enterable,
)
from torchrepro.frontend.source import FrameState

Called = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
Case = Callable[[list[Any]], Called]
"""Makes a function and its arguments anew; side effects go into the list."""
Note = Callable[[str, int], None]


@dataclass(frozen=True)
class Outcome:
    """All that a caller can see of a call."""

    result: str
    raised: tuple[str, str] | None
    frames: tuple[tuple[str, int | bool | None], ...]
    """Function and line of every frame of the traceback that is in the function's file."""
    seen: str


@dataclass(frozen=True)
class Split:
    """One function, split everywhere."""

    name: str
    case: Case
    note: Note = lambda what, index: None
    """Told what is about to be entered."""

    def check(self, every: int = 1) -> list[str]:
        """Compare each way to run the function with a plain call; the names of the instructions stepped.

        Each place costs a run from the start. Of `every` places one is tried, which depends on the name.
        """
        expected = self.plainly()
        places: list[int] = []
        whole = self.stepwise(sys.maxsize, False, places)
        assert whole == expected, f"{self.name}: stepped to the end\n  {whole}\nnot\n  {expected}"
        for steps in range(1 + zlib.crc32(self.name.encode()) % every, len(places), every):
            if places[:steps].count(places[steps]) > 1:
                continue  # the third round of a loop adds nothing but time
            for way in ("all", "live", "loop"):
                got = self.stepwise(steps, way == "live", [], loop=way == "loop")
                assert got == expected, (
                    f"{self.name}: resumed at {places[steps]}, {way}\n  {got}\nnot\n  {expected}"
                )
        function, _ = _started(self.case([]))
        return [program_of(function.__code__).instructions[place].name for place in places]

    def plainly(self) -> Outcome:
        seen: list[Any] = []
        function, args, kwargs = self.case(seen)
        return _outcome(lambda: function(*args, **kwargs), seen, function)

    def stepwise(self, steps: int, only_live: bool, places: list[int], *, loop: bool = False) -> Outcome:
        """`steps` instructions one by one, then the rest in one go, or the loop there and then the rest."""
        seen: list[Any] = []
        function, state = _started(self.case(seen))

        def run() -> Any:
            *_, got = self._stepped(function, state, steps, places)
            if (
                loop
                and isinstance(got, Continuation)
                and loop_exits(program_of(function.__code__), got.index)
            ):
                self.note(f"{self.name}: loop", got.index)
                got = run_loop(function, got.index, got.state)
            if not isinstance(got, Continuation):
                return got
            rest = got.state
            if only_live:
                live = live_before(program_of(function.__code__), got.index)
                values = {name: value for name, value in rest.locals.items() if name in live}
                rest = FrameState(values, rest.cells, rest.stack)
            self.note(f"{self.name}: resume", got.index)
            return enter(resumed_code, function, got.index, rest)

        return _outcome(run, seen, function)

    def _stepped(
        self, function: FunctionType, state: FrameState, steps: int, places: list[int]
    ) -> Iterator[Any]:
        """A function run one instruction at a time: its continuations, and in the end its result."""
        program, index = program_of(function.__code__), 0
        for _ in range(steps):
            reason = why_not_enterable(program, index)
            assert reason is None, f"instruction {index} was reached, but: {reason}"
            places.append(index)
            self.note(f"{self.name}: step", index)
            got = enter(stepped_code, function, index, state)
            yield got
            if not isinstance(got, Continuation):
                return
            index, state = got.index, got.state


def _outcome(run: Callable[[], Any], seen: list[Any], function: Callable[..., Any]) -> Outcome:
    try:
        return Outcome(repr(run()), None, (), repr(seen))
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        file = function.__code__.co_filename
        # 3.11 fuses instructions of what runs often, and an unbound variable is then found a line too early.
        fused = isinstance(error, UnboundLocalError) and sys.version_info < (3, 12)
        own = tuple((frame.name, fused or frame.lineno) for frame in frames if frame.filename == file)
        return Outcome("", (type(error).__name__, str(error)), own, repr(seen))


def _started(called: Called) -> tuple[FunctionType, FrameState]:
    """The frame of a function at its first instruction."""
    function, args, kwargs = called
    if isinstance(function, MethodType):
        function, args = function.__func__, (function.__self__, *args)
    assert isinstance(function, FunctionType)
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return function, FrameState(dict(bound.arguments), cells)


def _without_arguments(function: Callable[[], Any]) -> Case:
    return lambda seen: (function, (), {})


def main(file: str, every: int, names: list[str]) -> None:
    sys.path.append(str(Path(__file__).parents[3]))
    from split_functions import CASES

    from tests.frontend.interpreter.language import FEATURES

    cases = {**{name: _without_arguments(feature) for name, feature in FEATURES.items()}, **CASES}
    faulthandler.enable()
    with open(file, "r+b") as opened:
        place = mmap.mmap(opened.fileno(), 0)

    def note(what: str, index: int) -> None:
        place[:] = f"{what} at {index}".encode().ljust(
            len(place)
        )  # outlives a crash, and costs no system call

    kinds: list[str] = []
    for name in names or cases:
        kinds += Split(name, cases[name], note).check(every)
    print(f"{len(names or cases)} functions, split at {len(kinds)} places: {' '.join(sorted(set(kinds)))}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
