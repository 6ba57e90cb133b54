"""Tracer: runs a frame symbolically, on values of the trace, until it returns or must stop.

A break is detected only when the instruction that cannot be captured is tried. So tracing restarts, and stops
right before it (the speculation log). Nothing of the user's was changed: both attempts take the same path.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from bytecode.instr import InstrLocation

from torchrepro.frontend.bytecode.program import NULL, Handler
from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason, Control, Where
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import AmbientFacts, AmbientIs, Unbound
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.interpreter import Interpreter
from torchrepro.frontend.interpreter.operations import Variables
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Cell, FrameState, Local, Source, StackSlot
from torchrepro.frontend.trace import python_builtins
from torchrepro.frontend.trace.attributes import TracedAttributes
from torchrepro.frontend.trace.calls import TracedCalls
from torchrepro.frontend.trace.classes import MISSING, Classes, is_single, is_trusted_space
from torchrepro.frontend.trace.items import TracedItems
from torchrepro.frontend.trace.operators import TracedOperators
from torchrepro.frontend.trace.recorder import ModuleStack, Recorder
from torchrepro.frontend.trace.values import Pending, Values
from torchrepro.frontend.trace.world import World
from torchrepro.nouns.errors import HarnessError

_MOVES = """
    RESUME NOP LOAD_FAST STORE_FAST POP_TOP SWAP COPY PUSH_NULL LOAD_CONST LOAD_GLOBAL LOAD_DEREF LOAD_CLOSURE
    JUMP
"""
_MOVERS = frozenset(_MOVES.split())
"""Instructions that only move values."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The n-th visit of an instruction of the outermost frame."""

    index: int
    visit: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why capture cannot go past a stop."""

    reason: BreakReason
    where: Where
    inside: bool = False
    """In a function that the instruction calls: it is traced separately when Python calls it."""
    frames: tuple[Where, ...] = ()
    """From the outermost frame to the place, where known."""
    position: InstrLocation | None = None
    """Of the instruction in the innermost frame: what a traceback would underline."""


class Reached(Control):
    """The attempt is at the instruction before which the region ends."""


class Diverged(HarnessError):
    """A second attempt met other instructions than the first: the path depends on outside state."""


@dataclass(slots=True)
class SpeculationLog:
    path: list[int] = field(default_factory=list)
    """Instructions of the outermost frame, in the order in which the longest attempt met them."""
    failures: dict[Stop, Failure] = field(default_factory=dict)
    position: int = 0
    exact: bool = False
    """Whether Python chooses among tensors (`max`): which of them it was is seen later."""
    _visits: Counter[int] = field(default_factory=Counter)

    def restart(self) -> None:
        self.position = 0
        self._visits.clear()

    def visit(self, index: int) -> None:
        """Record that the outermost frame is about to run an instruction; raise `Reached` at a stop."""
        if self.position < len(self.path):
            if self.path[self.position] != index:
                raise Diverged(
                    f"instruction {index} in place of {self.path[self.position]} in a second trace"
                )
        else:
            self.path.append(index)
        self._visits[index] += 1
        self.position += 1
        if self.current in self.failures:
            raise Reached

    @property
    def current(self) -> Stop:
        """The instruction that is running, or was just reached."""
        index = self.path[self.position - 1]
        return Stop(index, self._visits[index])

    def stop_at(self, position: int) -> Stop:
        """Return the stop at a position of the path."""
        index = self.path[position]
        return Stop(index, self.path[: position + 1].count(index))


@dataclass(frozen=True, slots=True, eq=False)
class Returned:
    """The frame returned."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Stopped:
    """The frame is at an instruction that, by the log, cannot be captured."""

    frame: Frame
    failure: Failure


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An instruction could not be captured: start again and stop before it."""

    failure: Failure


Outcome = Returned | Stopped | Failed


class TracedVariables(Variables):
    """Variables during a trace: a value is adopted when its variable is first read."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.world = tracer, tracer.world
        self.values, self.dicts = tracer.values, tracer.dicts

    def load_local(self, frame: Frame, name: str) -> Any:
        if frame is self.tracer.root and name not in frame.locals and name not in self.tracer.bound:
            self.values.guards.add(Unbound(Local(name)))
        value = super().load_local(frame, name)
        if type(value) is Pending:
            value = frame.locals[name] = self.tracer.settled(value)
        return value

    def load_global(self, frame: Frame, name: str) -> Any:
        space = frame.globals
        if is_trusted_space(space):
            value = space.get(name, NULL)
            if value is NULL:
                return self.load_builtin(frame, name)
            if is_constant(value) or is_single(value) or is_a(value, types.FunctionType):
                self.tracer.classes.guard_entry(space, str(space.get("__name__")), name)
                return value
        value = self.dicts.get(self.world.globals_of(space), name)
        return self.load_builtin(frame, name) if value is MISSING else value

    def load_builtin(self, frame: Frame, name: str) -> Any:
        value = super().load_builtin(frame, name)
        self.tracer.classes.guard_entry(frame.builtins, "builtins", name)
        return value

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        self.dicts.set(self.world.globals_of(frame.globals), name, value)

    def delete_global(self, frame: Frame, name: str) -> None:
        known = self.world.globals_of(frame.globals)
        if not self.dicts.has(known, name):
            raise NameError(f"name '{name}' is not defined", name=name)
        self.dicts.delete(known, name)

    def load_cell(self, cell: types.CellType) -> Any:
        value = self.world.cell_contents(cell)
        if type(value) is Pending:
            value = self.tracer.settled(value)
            self.world.cell_for_writing(cell).cell_contents = value
        return value

    def store_cell(self, cell: types.CellType, value: Any) -> None:
        self.world.cell_for_writing(cell).cell_contents = value

    def delete_cell(self, cell: types.CellType) -> None:
        del self.world.cell_for_writing(cell).cell_contents

    def make_function(self, function: types.FunctionType) -> types.FunctionType:
        return self.values.mark_fresh(function)  # type: ignore[no-any-return]

    def import_name(self, frame: Frame, name: str, level: int, fromlist: Any) -> Any:
        if (str(frame.globals.get("__package__")) if level else name) in sys.modules:
            return super().import_name(frame, name, level, fromlist)
        raise Break(BreakKind.OUTSIDE, f"module {name} is imported for the first time")

    def import_from(self, module: Any, name: str) -> Any:
        if is_a(module, types.ModuleType) and name in vars(module):
            return self.tracer.attributes.load(module, name)
        return super().import_from(module, name)


class Tracer(Interpreter):
    """Owns what a trace consists of: recorder, values, world, and the parts that instructions call."""

    variables: TracedVariables
    attributes: TracedAttributes
    operators: TracedOperators
    items: TracedItems
    calls: TracedCalls

    def __init__(
        self, function: types.FunctionType, log: SpeculationLog, changing: frozenset[Source] = frozenset()
    ) -> None:
        """Prepare a trace. `changing`: numbers that vary between calls; reading one ends the region."""
        self.function, self.log = function, log
        self.inlined: Counter[Where] = Counter()
        """Functions that were inlined into their callers, and how often."""
        self.recorder = Recorder(self._places_of_operation, self.module_stack)
        self.values = Values(self.recorder)
        self.world = World(self.values, changing)
        self.dicts = self.world.dicts
        self.classes = Classes(self)
        self.calls = TracedCalls(self)
        self.variables = TracedVariables(self)
        self.attributes = TracedAttributes(self)
        self.generators = WeakSet()
        self.operators = TracedOperators(self)
        self.items = TracedItems(self)
        self.values.guards.add(AmbientIs(self.values.kept.hold(torch, "torch"), AmbientFacts.now()))
        self.root: Frame | None = None
        self.bound: frozenset[str] = frozenset()
        """Variables of the outermost frame that had a value where it was entered."""
        self.closed = False
        self.protected = False
        """Whether an operation was recorded whose error a handler of the user's would see."""
        self._raised: BaseException | None = None
        self._raised_at: tuple[tuple[Where, ...], InstrLocation | None] = ((), None)
        self._modules: list[tuple[str, torch.nn.Module]] = []

    def trace(self, index: int, state: FrameState) -> Outcome:
        """Run the function from an instruction on, with the recorder active."""
        self.log.restart()
        frame = self.root = self._entered(index, state)
        try:
            value = self.run(frame)
            self._leave(frame)
        except Reached:
            return Stopped(frame, self.log.failures[self.log.current])
        except Break as found:
            return Failed(self._failure(found.reason))
        except RecursionError as error:
            return Failed(self._failure(BreakReason(BreakKind.UNSUPPORTED, f"too deep: {error}")))
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            text = f"{type(error).__name__}: {error}".splitlines()[0] + notes
            return Failed(self._failure(BreakReason(BreakKind.RAISES, text)))
        return Returned(self.settled(value))

    def _leave(self, frame: Frame) -> None:
        """Drop the variables as a return does: generators that are not kept elsewhere are closed."""
        for name in frame.program.code.co_varnames:
            frame.locals.pop(name, None)
        frame.cells.clear()
        if self.escaped is not None:
            raise self.escaped

    def _entered(self, index: int, state: FrameState) -> Frame:
        frame = Frame(
            self.function, {name: Pending(value, Local(name)) for name, value in state.locals.items()}
        )
        frame.cells = dict(state.cells)
        for name, cell in state.cells.items():
            self.values.register(cell, cell, Cell(name))
        frame.stack = [
            NULL if value is NULL else Pending(value, StackSlot(place))
            for place, value in enumerate(state.stack)
        ]
        frame.index = index
        self.bound = frozenset(state.locals)
        return frame

    def _failure(self, reason: BreakReason) -> Failure:
        assert self.root is not None
        frames, position = self._raised_at
        frames = frames or (self.root.where,)
        inside = len(frames) > 1 and reason.kind is not BreakKind.RAISES and not reason.frames
        return Failure(reason, frames[-1], inside, frames, position)

    def close(self) -> None:
        """End the trace: no frame runs any more."""
        self.closed = True

    def forget(self) -> None:
        """Release references to the user's objects, so that finalisers run on time."""
        self.world.forget()
        self.recorder.forget()
        if self.root is not None:
            self.root.locals.clear()
            self.root.cells.clear()
            self.root.stack.clear()
        self.root = self._raised = None
        self._modules.clear()

    def throw(self, frame: Frame, error: BaseException) -> None:
        # A generator left over from the trace is closed when it is collected, without running its code.
        if self.closed:
            raise error
        super().throw(frame, error)

    @property
    def innermost(self) -> Frame:
        """The frame that runs now."""
        assert self.frame is not None
        return self.frame

    # The outermost frame

    def step(self, frame: Frame) -> Signal | None:
        if frame is self.root:
            self.log.visit(frame.index)
            if frame.program.instructions[frame.index].name not in _MOVERS:
                self._settle(frame)
        try:
            signal = super().step(frame)
            if self.escaped is not None:
                raise self.escaped
            return signal
        except BaseException as error:
            if error is not self._raised and not _is_own(frame):
                self._raised = error  # further out, the frames that it passed through are gone
                self._raised_at = self.places(), frame.program.instructions[frame.index].position
            raise

    def _settle(self, frame: Frame) -> None:
        for place, value in enumerate(frame.stack):
            if type(value) is Pending:
                frame.stack[place] = self.settled(value)

    def settled(self, value: Any) -> Any:
        return self.world.adopt(value.value, value.source) if type(value) is Pending else value

    def places(self) -> tuple[Where, ...]:
        """Return the user's frames, innermost last."""
        found: list[Where] = []
        frame = self.frame
        while frame is not None:
            if not _is_own(frame):
                found.append(frame.where)
            frame = frame.parent
        return tuple(reversed(found))

    def _places_of_operation(self) -> tuple[Where, ...]:
        frame = self.frame
        while frame is not None and not self.protected:
            self.protected, frame = _is_protected(frame), frame.parent
        return self.places()

    def note_inlined(self, function: types.FunctionType) -> None:
        code = function.__code__
        if code.co_filename != python_builtins.__file__:
            self.inlined[Where(code.co_filename, code.co_firstlineno, code.co_qualname)] += 1

    # Modules

    @contextmanager
    def inside_module(self, module: torch.nn.Module) -> Iterator[None]:
        self._modules.append((str(self.values.source_of(module) or type(module).__name__), module))
        try:
            yield
        finally:
            self._modules.pop()

    def module_stack(self) -> ModuleStack:
        return {f"{place}_{name}": (name, type(module)) for place, (name, module) in enumerate(self._modules)}


def _is_protected(frame: Frame) -> bool:
    """Return whether a handler of the user's runs in a frame if the current instruction raises.

    A `with` block of torch's own modes does not count: the modes are restored anyway.
    """
    return any(not _leaves_mode(frame, handler) for handler in frame.handlers(frame.index))


def _leaves_mode(frame: Frame, handler: Handler) -> bool:
    in_with = frame.program.instructions[handler.target + 1].name == "WITH_EXCEPT_START"
    owner = getattr(frame.stack[handler.depth - 1], "__self__", None) if in_with else None
    return type(owner).__module__.partition(".")[0] == "torch"


def _is_own(frame: Frame) -> bool:
    """Return whether it runs one of `python_builtins`, which the user does not see."""
    return frame.program.code.co_filename == python_builtins.__file__
