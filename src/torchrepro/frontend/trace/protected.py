"""Whether a handler of the user's is around the operation that runs now."""

from __future__ import annotations

from torchrepro.frontend.bytecode.program import Handler
from torchrepro.frontend.interpreter.frame import Frame


def is_protected(frame: Frame) -> bool:
    """Whether code of the user's runs in a frame where what it runs now raises.

    A `with` block of torch's own modes is not meant: the modes are put back anyway.
    """
    instructions = frame.program.instructions
    handler = instructions[frame.index].handler
    while handler is not None:
        first = instructions[handler.target]
        if first.name == "PUSH_EXC_INFO" and not _leaves_mode(frame, handler):
            return True
        handler = first.handler
    return False


def _leaves_mode(frame: Frame, handler: Handler) -> bool:
    if frame.program.instructions[handler.target + 1].name != "WITH_EXCEPT_START":
        return False
    leave = frame.stack[handler.depth - 1]
    return type(getattr(leave, "__self__", None)).__module__.partition(".")[0] == "torch"
