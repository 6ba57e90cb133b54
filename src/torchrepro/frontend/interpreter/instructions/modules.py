"""Imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.instructions.table import instruction

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter


@instruction("IMPORT_NAME")
def import_name(op: Interpreter, frame: Frame, name: str) -> None:
    fromlist, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(op.import_name(frame, name, fromlist, level))


@instruction("IMPORT_FROM")
def import_from(op: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(op.import_from(frame.stack[-1], name))
