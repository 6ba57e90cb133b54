"""Interpreter: steps Python functions, one instruction at a time. As it stands it does what CPython does.

A call of a Python function from a stepped one is stepped too; everything else (C functions, classes, callable
objects, coroutines) is called.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_ITERABLE_COROUTINE
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torchrepro.frontend.bytecode.reading import program_of
from torchrepro.frontend.graph_breaks import Control
from torchrepro.frontend.interpreter.binding import bind_arguments
from torchrepro.frontend.interpreter.callers import ABOUT_THE_CALLER, call_from, super_of
from torchrepro.frontend.interpreter.exceptions import chain, raise_again
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.instructions import INSTRUCTIONS
from torchrepro.frontend.interpreter.operations import Operations

_NOT_STEPPED = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE


class Interpreter(Operations):
    frame: Frame | None = None
    """The innermost frame that is being stepped."""

    def run(self, frame: Frame) -> Any:
        """Step until the frame returns; its value."""
        self.proceed(frame)
        return frame.stack.pop()

    def proceed(self, frame: Frame) -> Signal:
        """Step until the frame returns or yields; the value is left on its stack."""
        frame.parent = self.frame
        self.frame = frame
        try:
            while True:
                try:
                    while True:
                        signal = self.step(frame) if frame.handled is None else self._step_handling(frame)
                        if signal is not None:
                            return signal
                except KeyboardInterrupt as error:
                    # It can come between two steps; one that a step let out has no handler here either.
                    if not self.handle(frame, error):
                        raise
        finally:
            self.frame = frame.parent

    def step(self, frame: Frame) -> Signal | None:
        """Run one instruction. If it raises, the frame goes to its handler; without one, `step` raises."""
        index = frame.index
        instruction = frame.program.instructions[index]
        target = instruction.target
        operand = instruction.argument if target is None else target
        try:
            result = INSTRUCTIONS[instruction.name](self, frame, operand)
        except Control:
            raise
        except BaseException as error:
            if self.handle(frame, error):
                return None
            raise
        if result is None:
            frame.index = index + 1
            return None
        if isinstance(result, int):
            frame.index = result
            return None
        frame.index = index + 1
        return result

    def _step_handling(self, frame: Frame) -> Signal | None:
        """Step where an exception is being handled, with CPython handling it too.

        So what is called finds it (`sys.exc_info`, `traceback.print_exc`), and `raise` its `__context__`.
        """
        if sys.exception() is frame.handled or frame.handled is None:
            return self.step(frame)
        traceback = frame.handled.__traceback__
        try:
            raise_again(frame.handled)
        except BaseException:
            frame.handled.__traceback__ = traceback
            return self.step(frame)

    def handle(self, frame: Frame, error: BaseException) -> bool:
        """Go to the handler for what the current instruction raised; whether there is one."""
        handler = frame.program.instructions[frame.index].handler
        if handler is None:
            return False
        del frame.stack[handler.depth :]
        if handler.push_last:
            frame.stack.append(frame.index)
        frame.stack.append(error)
        frame.index = handler.target
        return True

    def throw(self, frame: Frame, error: BaseException) -> None:
        """Raise `error` at the `yield` where a generator's frame rests."""
        frame.index -= 1
        frame.stack.append(None)  # in place of what would be sent; a handler may count it
        if frame.handled is not None:
            chain(error, frame.handled)
        try:
            if not self.handle(frame, error):
                raise_again(error)
        finally:
            del error  # its traceback refers to this function

    def call_function(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind = type(function)
        if kind is FunctionType:
            return self.inline_user_function_return(function, args, kwargs)
        if kind is MethodType:
            if type(function.__func__) is FunctionType:
                return self.inline_user_function_return(function.__func__, (function.__self__, *args), kwargs)
        elif kind is BuiltinFunctionType:
            answer = ABOUT_THE_CALLER.get(function)
            if answer is not None and self.frame is not None:
                return answer(self, self.frame, *args, **kwargs)
        elif function is super and not args and self.frame is not None:
            return super_of(self, self.frame)
        return call_from(self.frame, function, args, kwargs) if self.frame else function(*args, **kwargs)

    def inline_user_function_return(
        self, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a Python function by stepping it."""
        if function.__code__.co_flags & _NOT_STEPPED:
            return function(*args, **kwargs)
        bound = bind_arguments(function, args, kwargs)
        return self.inline_call(Frame.of_function(program_of(function.__code__), function, bound))

    def inline_call(self, frame: Frame) -> Any:
        """Run a function's frame; that of a generator is kept until it is asked for a value."""
        if frame.program.code.co_flags & CO_GENERATOR:
            return SteppedGenerator(self, frame)
        return self.run(frame)
