"""Dispatch: the loop that runs a captured function: region, Python where a region ends, next region.

It is a loop, not recursion: a program that breaks in each of ten thousand iterations stays two frames deep.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Hashable
from contextlib import nullcontext
from typing import Any

from torchrepro.frontend.bytecode.program import NULL, NULL_AFTER_CALLABLE, Instruction, Program, program_of
from torchrepro.frontend.bytecode.resume import (
    Continuation,
    enter,
    loop_exits,
    point_of,
    resumed_code,
    run_loop,
    stepped_code,
    why_not_enterable,
)
from torchrepro.frontend.codegen.objects import is_full
from torchrepro.frontend.graph_breaks import BreakKind
from torchrepro.frontend.interpreter.frame import where_of
from torchrepro.frontend.runtime.cache import (
    FrameCache,
    Sources,
    caches_of,
    further_on,
    has_new_number,
    variable_of,
)
from torchrepro.frontend.runtime.capture import Capture, Region, not_whole
from torchrepro.frontend.runtime.faults import RunByPython
from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.source import FrameState
from torchrepro.torch_api.facts import user_modes_active

_lock = threading.RLock()

_ROUNDS, _FEW = 3, 8
"""A loop that breaks is run by Python after so many rounds where graphs compute less than that in a round."""


class _Done(threading.local):
    operations = 0
    """How many operations graphs of this thread have computed."""


_done = _Done()


class _Rounds:
    """How often a call has passed each place of its function, and what graphs computed in between."""

    def __init__(self) -> None:
        self._passed: dict[int, tuple[int, int]] = {}

    def are_idle(self, index: int) -> bool:
        """Return whether graphs did little since this place was last passed, and it was passed often."""
        count, before = self._passed.get(index, (0, 0))
        self._passed[index] = count + 1, _done.operations
        return count >= _ROUNDS and _done.operations - before < _FEW


def _unlock() -> None:
    """Replace the lock in a forked child: the thread that held it does not exist there."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock)


def dispatch(function: types.FunctionType, state: FrameState, settings: Settings) -> Any:
    """Call a function whose arguments are bound, through captured regions."""
    program = program_of(function.__code__)
    index = 0
    changing: Sources = frozenset()
    start = None if settings.on_failure is None else state
    rounds = _Rounds()
    while True:
        try:
            region = _region(function, program, index, state, settings, changing)
        except Exception as error:
            if start is not None and settings.on_failure is not None:
                settings.on_failure(function, start, error)
            raise
        try:
            result: Any = region and region.code.run(state.locals, state.cells, state.stack)
        except RunByPython:
            result, region = None, None
        if region is None:  # outside of the handler: errors from here on have no `__context__`
            return enter(resumed_code, function, index, state)
        _done.operations += region.captured.op_count
        if region.end is None:
            return result
        state = result  # releases the previous state
        if region.finish:
            result = enter(resumed_code, function, region.end, state)
            if settings.fullgraph and region.failure is not None:
                raise not_whole(function, region.failure)  # it raises only where tensors have no data
            return result
        if region.failure is not None and region.failure.inside:
            state = _with_traced_callee(program.instructions[region.end], state, settings)
        del result
        stepped = enter(stepped_code, function, region.end, state)
        if region.changing and type(stepped) is Continuation:
            stepped, changing = _past_numbers(function, program, region, state.stack, stepped, settings)
        if type(stepped) is not Continuation:
            return stepped
        index, state = stepped.index, stepped.state
        del stepped
        if rounds.are_idle(index) and settings.ranks is None and loop_exits(program, index):
            left = run_loop(function, index, state)
            if type(left) is not Continuation:
                return left
            index, state = left.index, left.state
            del left


def _past_numbers(
    function: types.FunctionType,
    program: Program,
    region: Region,
    before: tuple[Any, ...],
    stepped: Any,
    settings: Settings,
) -> tuple[Any, Sources]:
    """Run in Python while a varying number is on the stack; return also the varying sources after that."""
    assert region.end is not None
    changing = further_on(region.changing)
    if region.failure is None or region.failure.reason.kind is not BreakKind.CHANGING:
        return stepped, changing
    changing |= variable_of(program.instructions[region.end])
    while has_new_number(stepped.state.stack, before):
        index, state = stepped.index, stepped.state
        if why_not_enterable(program, index) is not None:
            return enter(resumed_code, function, index, state), changing
        instruction = program.instructions[index]
        if instruction.name == "STORE_FAST":
            changing |= variable_of(instruction)
        state = _with_traced_callee(instruction, state, settings)
        stepped = enter(stepped_code, function, index, state)
        if type(stepped) is not Continuation:
            break
    return stepped, changing


def _region(
    function: types.FunctionType,
    program: Program,
    index: int,
    state: FrameState,
    settings: Settings,
    changing: Sources,
) -> Region | None:
    """Return the region for this call; None where there can be none, or the cache is full."""
    point = point_of(index, state.stack)
    caches = caches_of(function.__code__)
    key: Hashable = (settings, point, id(function.__globals__), _wrapped(function))
    cache = caches.get(key) or caches.setdefault(key, FrameCache(settings.limit))
    region = cache.find(state)
    ranks = settings.ranks
    if region is not None and ranks is None:
        return region
    if why_not_enterable(program, index) is not None or user_modes_active():
        return None
    if ranks is not None:
        found = None if region is None else region.captured.graph_module
        if ranks.some_rank_misses(function, point.index, found):
            region = None
    if region is not None:
        return region
    with _lock, nullcontext() if ranks is None else ranks.failures_told(function, point.index):
        where = where_of(program, point.index)
        if cache.full and (settings.fullgraph or ranks is not None or not cache.open_up(where, state)):
            cache.warn(where, state)
            return None
        cache.changing |= changing
        region = Capture(function, point.index, state, settings, cache.changing).run()
        cache.add(region)
    for watcher in settings.watchers:
        watcher(region)
    return region


def _wrapped(function: types.FunctionType) -> tuple[int, ...]:
    """Return ids of the code that a closure wraps: all wrappers of one decorator share their own code."""
    contents = [cell.cell_contents for cell in function.__closure__ or () if is_full(cell)]
    return tuple(id(each.__code__) for each in contents if isinstance(each, types.FunctionType))


def _with_traced_callee(instruction: Instruction, state: FrameState, settings: Settings) -> FrameState:
    """Replace the callee in which capture failed by its captured form, so that its parts become regions."""
    from torchrepro.frontend.runtime.wrapping import traced_callable

    match instruction.name, instruction.argument:
        case ("CALL", int(count)) | ("CALL_KW", (int(count), _)):
            above = count
        case "CALL_FUNCTION_EX", int(flags):
            above = 1 + (flags & 1)
        case _:
            return state
    stack, slot = list(state.stack), -above - 2
    # Up to Python 3.12 the callable is above a NULL, or below its first argument.
    if not NULL_AFTER_CALLABLE and stack[slot] is NULL:
        slot += 1
    stack[slot] = traced_callable(stack[slot], settings)
    return FrameState(state.locals, state.cells, tuple(stack))
