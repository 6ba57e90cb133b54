"""Variables during a trace: a value is adopted when its variable is first read."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Unbound
from torchrepro.frontend.interpreter.frame import Frame
from torchrepro.frontend.interpreter.operations import Variables
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Local
from torchrepro.frontend.trace.classes import MISSING, is_single, is_trusted_space
from torchrepro.frontend.trace.values import Pending

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer


class TracedVariables(Variables):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.world = tracer, tracer.world
        self.values, self.dicts = tracer.values, tracer.dicts

    def load_local(self, frame: Frame, name: str) -> Any:
        if frame is self.tracer.root and name not in frame.locals and name not in self.tracer.bound:
            self.values.guards.add(Unbound(Local(name)))
        value = super().load_local(frame, name)
        if type(value) is Pending:
            value = frame.locals[name] = self.world.adopt(value.value, value.source)
        return value

    def load_global(self, frame: Frame, name: str) -> Any:
        space = frame.globals
        if is_trusted_space(space):
            value = space.get(name, NULL)
            if value is NULL:
                return self.load_builtin(frame, name)
            if is_constant(value) or is_single(value) or is_a(value, types.FunctionType):
                return value
        known = self.world.globals_of(space, f"globals of {space.get('__name__', '?')}")
        value = self.dicts.get(known, name)
        return self.load_builtin(frame, name) if value is MISSING else value

    def load_builtin(self, frame: Frame, name: str) -> Any:
        value = super().load_builtin(frame, name)
        self.tracer.classes.guard_entry(frame.builtins, "builtins", name)
        return value

    def store_global(self, frame: Frame, name: str, value: Any) -> None:
        known = self.world.globals_of(frame.globals, f"globals of {frame.globals.get('__name__', '?')}")
        self.dicts.set(known, name, value)

    def delete_global(self, frame: Frame, name: str) -> None:
        known = self.world.globals_of(frame.globals, f"globals of {frame.globals.get('__name__', '?')}")
        if not self.dicts.has(known, name):
            raise NameError(f"name '{name}' is not defined", name=name)
        self.dicts.delete(known, name)

    def load_cell(self, cell: types.CellType) -> Any:
        value = self.world.cell_contents(cell)
        if type(value) is Pending:
            value = self.world.adopt(value.value, value.source)
            self.world.cell_for_writing(cell).cell_contents = value
        return value

    def store_cell(self, cell: types.CellType, value: Any) -> None:
        self.world.cell_for_writing(cell).cell_contents = value

    def delete_cell(self, cell: types.CellType) -> None:
        del self.world.cell_for_writing(cell).cell_contents

    def make_function(self, function: types.FunctionType) -> types.FunctionType:
        self.values.mark_fresh(function)
        return function

    def import_name(self, frame: Frame, name: str, fromlist: Any, level: int) -> Any:
        if level == 0 and name in sys.modules:
            return super().import_name(frame, name, fromlist, level)
        if level and f"{frame.globals.get('__package__')}" in sys.modules:
            return super().import_name(frame, name, fromlist, level)
        raise Break(BreakKind.OUTSIDE, f"module {name} is imported for the first time")

    def import_from(self, module: Any, name: str) -> Any:
        if is_a(module, types.ModuleType) and name in vars(module):
            return self.tracer.attributes.load(module, name)
        return super().import_from(module, name)
