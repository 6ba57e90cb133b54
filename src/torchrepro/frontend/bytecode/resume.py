"""Enter a function midway: code that takes a frame's variables and stack as arguments and continues there.

The code made here is the function's own, behind a few instructions that put the stack back and jump. Its
arguments are the slots of the frame: a variable that inner functions share is passed as its cell, which then
is where the original code has put it, so that `super()`, closures and `locals()` find what they look for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType
from typing import Any

from bytecode import Label
from bytecode.instr import InstrLocation

from torchrepro.frontend.bytecode.assembler import Assembler
from torchrepro.frontend.bytecode.flow import edges, stack_before, stack_effect
from torchrepro.frontend.bytecode.program import FOR_ITER_SKIPS, NULL, Instruction, Program, program_of
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
    assembler.body(loop_exits(program, point.index), partial(_leave_loop, assembler, point.nulls))
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
    assembler.load_callable(partial(_continuation, point.index, names, code), position)
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


def _leave_loop(assembler: Assembler, nulls: tuple[bool, ...], index: int) -> None:
    """Emit the return of a `Continuation` behind a loop, whose stack is the lower part of that in it."""
    position = assembler.program.instructions[index].position
    depth, _ = stack_before(assembler.program)[index] or (0, 0)
    for slot in reversed(range(depth)):
        assembler.emit("STORE_FAST", _stack_name(slot), position)
    for callee in (partial(_left_loop, index, nulls[:depth]), locals):
        assembler.load_callable(callee, position)
    assembler.emit("CALL", 0, position)
    assembler.emit("CALL", 1, position)
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
