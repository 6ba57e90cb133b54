"""Enters a function midway: code that takes a frame's variables and stack as arguments and goes on there.

The code made here is the function's own, behind a few instructions that put the stack back and jump. Its
arguments are the slots of the frame: a variable that inner functions share is passed as its cell, which then
is where the original code has put it, so that `super()`, closures and `locals()` find what they look for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import Bytecode, Instr, Label
from bytecode.flags import CompilerFlags
from bytecode.instr import UNSET, CellVar, FreeVar, InstrLocation, TryBegin, TryEnd

from torchrepro.frontend.bytecode.flow import edges, stack_before, stack_effect
from torchrepro.frontend.bytecode.program import (
    FOR_ITER_SKIPS,
    NOWHERE,
    NULL,
    NULL_AFTER_CALLABLE,
    Handler,
    Instruction,
    Program,
    program_of,
)
from torchrepro.frontend.source import FrameState


@dataclass(frozen=True, slots=True)
class Point:
    """Where a frame is entered, and the shape of its stack there."""

    index: int
    nulls: tuple[bool, ...] = ()
    """Which stack slots are NULL, the bottom first."""


def _reached_from(
    program: Program, point: Point, bound: frozenset[str]
) -> tuple[tuple[Point, frozenset[str], bool], ...]:
    """Return where the instruction at `point` may lead, the next place first. The start runs up to `RESUME`.

    Each comes with the variables that have a value or a cell there, and whether a jump leads to it. Exact,
    since it starts from an actual frame: the NULLs and bound variables after an instruction follow from those
    before it.
    """
    if point.index == 0:
        index = body_start(program)
        made = {str(each.argument) for each in program.instructions[:index] if each.name == "MAKE_CELL"}
        return ((Point(index), bound | made, False),)
    instruction = program.instructions[point.index]
    after = _bound_after(instruction, point.nulls, bound)
    return tuple(
        (Point(index, _nulls_after(instruction, point.nulls, bound, jumped)), after, jumped)
        for index, jumped in edges(program, point.index)
    )


def body_start(program: Program) -> int:
    """Return the index of the first instruction after those that set a frame up."""
    return next(index for index, each in enumerate(program.instructions) if each.name == "RESUME") + 1


def _nulls_after(
    instruction: Instruction, nulls: tuple[bool, ...], bound: frozenset[str], jumped: bool
) -> tuple[bool, ...]:
    match instruction.name, instruction.argument:
        case "PUSH_NULL", _:
            return (*nulls, True)
        case "LOAD_FAST_AND_CLEAR", name:
            return (*nulls, name not in bound)
        case "COPY", int(depth):
            return (*nulls, nulls[-depth])
        case "SWAP", int(depth):
            swapped = list(nulls)
            swapped[-1], swapped[-depth] = swapped[-depth], swapped[-1]
            return tuple(swapped)
    change = stack_effect(instruction, jumped)
    after = nulls[:change] if change < 0 else nulls + (False,) * change
    if instruction.name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return (*after[:-1], False)  # the result takes the place of a NULL
    return after


def _bound_after(instruction: Instruction, nulls: tuple[bool, ...], bound: frozenset[str]) -> frozenset[str]:
    match instruction.name, instruction.argument:
        case "STORE_FAST", str(name):
            return bound - {name} if nulls[-1] else bound | {name}
        case "MAKE_CELL", str(name):
            return bound | {name}
        case "DELETE_FAST" | "LOAD_FAST_AND_CLEAR", str(name):
            return bound - {name}
    return bound


_GENERATORS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)


@dataclass(frozen=True, slots=True, eq=False)
class Continuation:
    """What a stepped frame returns: the next instruction, and the state of the frame."""

    index: int
    state: FrameState


def point_of(index: int, stack: Sequence[Any]) -> Point:
    return Point(index, tuple(value is NULL for value in stack))


def why_not_enterable(program: Program, index: int) -> str | None:
    """Return why a frame cannot be entered at an instruction; None where it can."""
    code = program.code
    if code.co_flags & _GENERATORS:
        return "the frame of a generator or coroutine belongs to its object"
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "this is the body of a class or module, not of a function"
    if 0 < index < body_start(program):
        return "the frame is being set up"
    stack = stack_before(program)[index]
    if stack is None:
        return "the program never comes here"
    return "an exception is being handled" if stack[1] else None


@lru_cache(maxsize=4096)
def resumed_code(program: Program, point: Point, bound: frozenset[str]) -> CodeType:
    """Return code that enters at `point` and runs to the function's end; a generator only at its start."""
    if point.index:
        _check(program, point)
    assembler = Assembler(program)
    _enter_at(assembler, point, bound, assembler.label(point.index))
    assembler.body()
    return _finish(assembler, point, bound)


@lru_cache(maxsize=4096)
def stepped_code(program: Program, point: Point, bound: frozenset[str]) -> CodeType:
    """Return code that enters at `point`, runs one instruction and returns a `Continuation`.

    If the instruction returns, so does the code. If it raises and the function handles that, the code runs
    from there to the end of the function, and returns what the function returns.
    """
    _check(program, point)
    assembler = Assembler(program)
    step = Label()
    _enter_at(assembler, point, bound, step)
    assembler.body()
    assembler.made.append(step)
    instruction = program.instructions[point.index]
    places = _reached_from(program, point, bound)
    jump = Label() if len(places) > 1 else None
    assembler.guard(instruction.handler)
    if point.index == 0:
        for each in program.instructions[: body_start(program)]:
            assembler.add(each)
    elif instruction.name != "JUMP":
        # 3.13 looks for the handler of a Python call one instruction too early, which must be in its range.
        assembler.emit("NOP", None, instruction.position)
        assembler.add(instruction, jump)
    assembler.guard(None)
    for reached, known, jumped in places:
        if jumped and jump is not None:
            assembler.made.append(jump)
            if instruction.name == "FOR_ITER":
                for name in ("END_FOR", "POP_TOP")[:FOR_ITER_SKIPS]:
                    assembler.emit(name)
        _hand_back(assembler, reached, known, instruction.position)
    return _finish(assembler, point, bound)


@lru_cache(maxsize=4096)
def loop_exits(program: Program, index: int) -> frozenset[int]:
    """Return where the innermost loop around an instruction leads to; empty where there is none to run."""
    around = [
        (each.target, place)
        for place, each in enumerate(program.instructions)
        if each.target is not None and each.target <= index <= place
    ]
    # A comprehension replaces the cell of its variable: `locals()` would meet a slot without one.
    swaps_cells = program.code.co_cellvars and any(
        each.name == "LOAD_FAST_AND_CLEAR" for each in program.instructions
    )
    if not around or swaps_cells or why_not_enterable(program, index) is not None:
        return frozenset()
    head, last = max(around, key=lambda jump: (jump[0], jump[1]))
    stacks = stack_before(program)
    inside = [place for place in range(head, last + 1) if stacks[place] is not None]
    exits = {after for place in inside for after, _ in edges(program, place)}.difference(
        range(head, last + 1)
    )
    depth = stacks[index] or (0, 0)
    enterable = (
        why_not_enterable(program, each) is None and (stacks[each] or depth) <= depth for each in exits
    )
    return frozenset(exits if all(enterable) else ())


@lru_cache(maxsize=4096)
def looped_code(program: Program, point: Point, bound: frozenset[str]) -> CodeType:
    """Return code that enters at `point`, runs the loop around it and returns a `Continuation` behind it."""
    _check(program, point)
    assembler = Assembler(program)
    _enter_at(assembler, point, bound, assembler.label(point.index))
    assembler.body(loop_exits(program, point.index), point.nulls)
    return _finish(assembler, point, bound)


def run_loop(function: FunctionType, index: int, state: FrameState) -> Any:
    """Run the loop around an instruction; return a `Continuation`, or what the function returns in it."""
    left = enter(looped_code, function, index, state)
    if type(left) is not Continuation:
        return left
    bound = {name: value for name, value in left.state.locals.items() if name not in state.cells}
    return Continuation(left.index, FrameState(bound, state.cells, left.state.stack))


def _left_loop(index: int, nulls: tuple[bool, ...], found: dict[str, Any]) -> Continuation:
    """Return a continuation behind a loop, given `locals()`: what is bound depends on how it was left."""
    slots = [_stack_name(depth) for depth in range(len(nulls))]
    stack = tuple(NULL if null else found[name] for null, name in zip(nulls, slots, strict=True))
    bound = {name: value for name, value in found.items() if name not in slots}
    return Continuation(index, FrameState(bound, {}, stack))


def enter(
    make: Callable[[Program, Point, frozenset[str]], CodeType],
    function: FunctionType,
    index: int,
    state: FrameState,
) -> Any:
    """Run a function from an instruction on, with the code of `make`, in a frame that consists of `state`."""
    program = program_of(function.__code__)
    shared = {name: state.cells[name] for name in program.code.co_cellvars if name in state.cells}
    code = make(program, point_of(index, state.stack), frozenset(state.locals).union(shared))
    closure = tuple(state.cells[name] for name in code.co_freevars)
    entered = FunctionType(code, function.__globals__, function.__name__, None, closure)
    slots = {_stack_name(depth): value for depth, value in enumerate(state.stack)}
    slots.update(state.locals)
    slots.update(shared)
    names = code.co_varnames[: code.co_argcount]
    # The first one is passed even where it is unbound: the code deletes it again.
    return entered(*(slots.get(name) for name in names[:1]), *(slots[name] for name in names[1:]))


def _continuation(
    index: int,
    names: tuple[str, ...],
    code: CodeType,
    slots: tuple[Any, ...],
    cells: tuple[CellType, ...],
    stack: tuple[Any, ...],
) -> Continuation:
    """Return a continuation, called at the end of stepped code with the frame's slots; some hold cells."""
    values = dict(zip(names, slots, strict=True))
    inner = {name: values.pop(name) for name in code.co_cellvars if isinstance(values.get(name), CellType)}
    outer = dict(zip(code.co_freevars, cells, strict=True))
    return Continuation(index, FrameState(values, outer | inner, stack))


def _check(program: Program, point: Point) -> None:
    """Raise `ValueError` for a place or a stack that does not match the code: entering there would crash."""
    reason = why_not_enterable(program, point.index)
    if reason is not None:
        raise ValueError(f"{program.code.co_qualname} cannot be entered at {point.index}: {reason}")
    depth, _ = stack_before(program)[point.index] or (None, 0)
    if depth != len(point.nulls):
        raise ValueError(f"a stack of {len(point.nulls)} slots at {point.index}, where the code has {depth}")


def _first_argument(program: Program) -> frozenset[str]:
    return frozenset(program.locals[:1] if program.code.co_argcount else ())


def _stack_name(depth: int) -> str:
    return f"<stack {depth}>"


def _enter_at(assembler: Assembler, point: Point, bound: frozenset[str], target: Label) -> None:
    program = assembler.program
    position = program.instructions[point.index].position
    if point.index:
        if program.code.co_freevars:
            assembler.emit("COPY_FREE_VARS", len(program.code.co_freevars), position)
        assembler.emit("RESUME", 0, position)
        for name in _first_argument(program) - bound:
            assembler.emit("DELETE_FAST", name, position)
        for depth, null in enumerate(point.nulls):
            if null:
                assembler.emit("PUSH_NULL", None, position)
            else:
                assembler.emit("LOAD_FAST", _stack_name(depth), position)
                assembler.emit("DELETE_FAST", _stack_name(depth), position)
    assembler.jump(target, position)


def _hand_back(assembler: Assembler, point: Point, bound: frozenset[str], position: InstrLocation) -> None:
    """Emit the return of a `Continuation`: the stack goes into variables, as NULLs cannot be passed."""
    code = assembler.program.code
    names = tuple(name for name in dict.fromkeys(code.co_varnames + code.co_cellvars) if name in bound)
    for depth in reversed(range(len(point.nulls))):
        assembler.emit("STORE_FAST", _stack_name(depth), position)
    callee = (("LOAD_CONST", partial(_continuation, point.index, names, code)), ("PUSH_NULL", None))
    for name, argument in callee if NULL_AFTER_CALLABLE else reversed(callee):
        assembler.emit(name, argument, position)
    for name in names:
        assembler.emit("LOAD_FAST", name, position)
    assembler.emit("BUILD_TUPLE", len(names), position)
    for name in code.co_freevars:
        assembler.emit("LOAD_CLOSURE", name, position)
    assembler.emit("BUILD_TUPLE", len(code.co_freevars), position)
    for depth, null in enumerate(point.nulls):
        if null:
            assembler.emit("LOAD_CONST", NULL, position)
        else:
            assembler.emit("LOAD_FAST", _stack_name(depth), position)
    assembler.emit("BUILD_TUPLE", len(point.nulls), position)
    assembler.emit("CALL", 3, position)
    assembler.emit("RETURN_VALUE", None, position)


def _finish(assembler: Assembler, point: Point, bound: frozenset[str]) -> CodeType:
    """Return the code. The first argument stays first, as `super()` requires."""
    code = assembler.program.code
    passed = bound | _first_argument(assembler.program)
    names = dict.fromkeys(name for name in code.co_varnames + code.co_cellvars if name in passed)
    slots = (_stack_name(depth) for depth, null in enumerate(point.nulls) if not null)
    variables = len(code.co_varnames) + len(code.co_cellvars) + len(code.co_freevars)
    depth = code.co_stacksize + 8  # `_hand_back` also pushes its callee and the items of a tuple
    return assembler.code((*names, *slots), depth + max(variables, depth))


_OF_CELLS = frozenset({"LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "MAKE_CELL"})


@dataclass(slots=True)
class Assembler:
    """Assembles a code object from instructions, undoing what `program_of` writes out.

    `at` has the labels of the program's instructions, for handlers and jumps.
    """

    program: Program
    made: Bytecode = field(default_factory=Bytecode)
    at: dict[int, Label] = field(default_factory=dict)
    _guard: TryBegin | None = None
    _guarded_by: Handler | None = None

    def body(self, exits: frozenset[int] = frozenset(), nulls: tuple[bool, ...] = ()) -> None:
        """Append the whole program, each instruction at its label; at `exits` the frame is handed back."""
        for index, instruction in enumerate(self.program.instructions):
            self.guard(None if index in exits else instruction.handler)
            self.made.append(self.label(index))
            if index in exits:
                self._hand_over(index, nulls)
                continue
            target, backward = None, False
            if instruction.target is not None:
                skipped = FOR_ITER_SKIPS if instruction.name == "FOR_ITER" else 0
                target, backward = self.label(instruction.target - skipped), instruction.target <= index
            self.add(instruction, target, backward)
        self.guard(None)

    def _hand_over(self, index: int, nulls: tuple[bool, ...]) -> None:
        """Emit the return of a `Continuation` behind a loop, whose stack is the lower part of that in it."""
        position = self.program.instructions[index].position
        depth, _ = stack_before(self.program)[index] or (0, 0)
        for slot in reversed(range(depth)):
            self.emit("STORE_FAST", _stack_name(slot), position)
        for callee in (partial(_left_loop, index, nulls[:depth]), locals):
            loads = (("LOAD_CONST", callee), ("PUSH_NULL", None))
            for name, argument in loads if NULL_AFTER_CALLABLE else reversed(loads):
                self.emit(name, argument, position)
        self.emit("CALL", 0, position)
        self.emit("CALL", 1, position)
        self.emit("RETURN_VALUE", None, position)

    def add(self, instruction: Instruction, target: Label | None = None, backward: bool = False) -> None:
        """Append one instruction in the form of the running Python."""
        for name, argument in self._native(instruction.name, instruction.argument, target, backward):
            self.made.append(Instr(name, argument, location=instruction.position))

    def emit(self, name: str, argument: object = None, position: InstrLocation = NOWHERE) -> None:
        """Append an instruction that the program does not have."""
        self.add(Instruction(name, argument, None, None, position))

    def jump(self, target: Label, position: InstrLocation) -> None:
        """Append a jump to a label further on."""
        self.made.append(Instr("JUMP_FORWARD", target, location=position))

    def guard(self, handler: Handler | None) -> None:
        """Send exceptions raised from here on to `handler`."""
        if handler == self._guarded_by:
            return
        if self._guard is not None:
            self.made.append(TryEnd(self._guard))
        self._guarded_by, self._guard = handler, None
        if handler is not None:
            self._guard = TryBegin(self.label(handler.target), handler.push_last, handler.depth)
            self.made.append(self._guard)

    def label(self, index: int) -> Label:
        return self.at.setdefault(index, Label())

    def code(self, arguments: tuple[str, ...], stack_size: int) -> CodeType:
        """Return code with these positional arguments and the name, file and variables of the program."""
        code, made = self.program.code, self.made
        made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
        made.first_lineno = code.co_firstlineno
        made.flags = CompilerFlags(code.co_flags) & ~(CompilerFlags.VARARGS | CompilerFlags.VARKEYWORDS)
        made.argnames, made.argcount = list(arguments), len(arguments)
        made.cellvars, made.freevars = list(code.co_cellvars), list(code.co_freevars)
        # Recomputed depths start from an empty stack: wrong code where a frame is entered midway.
        return made.to_code(stacksize=stack_size, compute_exception_stack_depths=False)

    def _native(
        self, name: str, argument: object, target: Label | None, backward: bool
    ) -> list[tuple[str, object]]:
        if target is not None:
            return [(_directed(name, backward), target)]
        match name, argument:
            case "LOAD_ATTR", str() if sys.version_info >= (3, 12):
                return [(name, (False, argument))]
            case "LOAD_GLOBAL", str():
                return [(name, (False, argument))]
            case "LOAD_SUPER_ATTR", str():
                return [(name, (False, True, argument))]
            case "LOAD_FAST", _ if sys.version_info >= (3, 12):
                return [("LOAD_FAST_CHECK", argument)]  # an unbound variable must raise, and not crash
            case name, str() if name in _OF_CELLS:
                if name == "LOAD_CLOSURE" and sys.version_info >= (3, 13):
                    name = "LOAD_FAST"
                kind = CellVar if argument in self.program.code.co_cellvars else FreeVar
                return [(name, kind(argument))]
            case "CALL", int():
                return [*_precall(argument), (name, argument)]
            case "CALL_KW", (int(count), names):
                if sys.version_info >= (3, 13):
                    return [("LOAD_CONST", names), (name, count)]
                return [("KW_NAMES", names), *_precall(count), ("CALL", count)]
        return [(name, UNSET if argument is None and name != "LOAD_CONST" else argument)]


def _precall(count: int) -> list[tuple[str, object]]:
    return [("PRECALL", count)] if sys.version_info < (3, 12) else []


def _directed(name: str, backward: bool) -> str:
    direction = "BACKWARD" if backward else "FORWARD"
    if name == "JUMP":
        return f"JUMP_{direction}"
    if name.startswith("POP_JUMP_IF") and sys.version_info < (3, 12):
        return name.replace("POP_JUMP_", f"POP_JUMP_{direction}_")
    return name
