"""Interpreter: runs Python functions, one instruction at a time. Its parts say what happens to values."""

from __future__ import annotations

import sys
from inspect import CO_GENERATOR
from typing import Any
from weakref import WeakSet

from torchrepro.frontend.graph_breaks import Control
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.instructions import INSTRUCTIONS
from torchrepro.frontend.interpreter.instructions.table import chain, raise_again
from torchrepro.frontend.interpreter.operations import Attributes, Calls, Items, Operators, Variables


class Interpreter:
    """Owns the parts that instructions call, and the frames."""

    variables: Variables
    attributes: Attributes
    operators: Operators
    items: Items
    calls: Calls
    frame: Frame | None = None
    """The innermost frame that is running."""
    generators: WeakSet[SteppedGenerator]
    """Those that are alive."""
    escaped: Control | None = None
    """Raised while a generator was closed, where it cannot propagate."""

    def run(self, frame: Frame) -> Any:
        """Run a frame until it returns; return its value."""
        self.proceed(frame)
        return frame.stack.pop()

    def enter(self, frame: Frame) -> Any:
        """Run a function's frame; for a generator function, return a generator that runs it on demand."""
        if frame.program.code.co_flags & CO_GENERATOR:
            return SteppedGenerator(self, frame)
        return self.run(frame)

    def proceed(self, frame: Frame) -> Signal:
        """Run a frame until it returns or yields; the value is left on its stack."""
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
                    # It can arrive between two steps; one raised by a step has no handler in this frame.
                    if not frame.handle(error):
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
            if frame.handle(error):
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
        """Run an instruction where an exception is being handled, with CPython handling it too.

        So called code can read it (`sys.exc_info`, `traceback.print_exc`), and `raise` sets `__context__`.
        """
        if sys.exception() is frame.handled or frame.handled is None:
            return self.step(frame)
        traceback = frame.handled.__traceback__
        try:
            raise_again(frame.handled)
        except BaseException:
            frame.handled.__traceback__ = traceback
            return self.step(frame)

    def throw(self, frame: Frame, error: BaseException) -> None:
        """Raise `error` at the `yield` at which a generator's frame is suspended."""
        frame.index -= 1
        frame.stack.append(None)  # in place of the sent value; a handler's stack depth may include it
        if frame.handled is not None:
            chain(error, frame.handled)
        try:
            if not frame.handle(error):
                raise_again(error)
        finally:
            del error  # its traceback refers to this function
