"""SteppedGenerator: what an interpreted generator function returns. Its body is run on demand."""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.graph_breaks import Control
from torchrepro.frontend.interpreter.frame import Frame, Signal

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

_AFTER_YIELD_FROM = (2, 6)
"""The argument of the `RESUME` that follows a `yield from`; 3.13 may add a bit."""


class SteppedGenerator:
    """Forwards to a generator of CPython that runs the frame, and so has its exact protocol.

    CPython's generator checks the first value sent and re-entry, closes when it is collected, and converts a
    `StopIteration` of the body.
    """

    __slots__ = ("__weakref__", "_driver", "close", "frame", "send", "throw")

    def __init__(self, interpreter: Interpreter, frame: Frame) -> None:
        self.frame = frame
        self._driver: Any = _drive(interpreter, frame)
        # Not our own methods, which would be interpreted.
        self.send = self._driver.send
        self.throw = self._driver.throw
        self.close = self._driver.close
        interpreter.generators.add(self)

    @property
    def must_be_closed(self) -> bool:
        """Whether a handler (`finally`, `with`) runs when it is dropped: it is suspended inside of one."""
        suspended = self.frame.index > 0 and self._driver.gi_frame is not None
        return suspended and any(True for _ in self.frame.handlers(self.frame.index - 1))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Programs check `isinstance(value, GeneratorType)`.
        return GeneratorType

    def __iter__(self) -> SteppedGenerator:
        return self

    def __next__(self) -> Any:
        return next(self._driver)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot pickle 'generator' object")

    def __repr__(self) -> str:
        return f"<stepped generator {self.frame.program.code.co_qualname}>"


def _drive(interpreter: Interpreter, frame: Frame) -> Generator[Any, Any, Any]:
    closing = False
    try:
        while interpreter.proceed(frame) is Signal.YIELD:
            frame.parent = None  # the next caller becomes its parent
            yielded: tuple[Any] | None = (frame.stack.pop(),)
            while yielded is not None:
                try:
                    sent = yield yielded[0]
                except Control:
                    raise
                except BaseException as error:
                    thrown = error
                else:
                    frame.stack.append(sent)
                    break
                # Outside of `except`: what the frame does next is not done while handling the error.
                closing = closing or isinstance(thrown, GeneratorExit)
                try:
                    yielded = _throw(interpreter, frame, thrown)
                finally:
                    del thrown
        return frame.stack.pop()
    except Control as control:
        if not closing:
            raise
        interpreter.escaped = control  # CPython would drop it where a collected generator is closed
    finally:
        frame.locals.clear()  # a generator that has ended keeps nothing alive
        frame.cells.clear()


def _throw(interpreter: Interpreter, frame: Frame, error: BaseException) -> tuple[Any] | None:
    """Raise `error` where the frame is suspended. At a `yield from` the iterator gets it, and may yield."""
    if frame.program.instructions[frame.index].argument in _AFTER_YIELD_FROM:
        inner = frame.stack[-1]
        try:
            if isinstance(error, GeneratorExit):
                if hasattr(inner, "close"):
                    interpreter.calls.call_method(inner, "close", (), {})
            elif hasattr(inner, "throw"):
                return (interpreter.calls.call_method(inner, "throw", (error,), {}),)
        except Control:
            raise
        except BaseException as raised:
            error = raised
        if isinstance(error, StopIteration) and sys.version_info < (3, 12):
            # Later versions have an instruction for this, CLEANUP_THROW.
            frame.stack[-1] = error.value
            send = frame.program.instructions[frame.index - 2]
            assert send.name == "SEND"
            assert send.target is not None
            frame.index = send.target
            return None
    try:
        interpreter.throw(frame, error)
    finally:
        del error  # its traceback refers to this function
    return None
