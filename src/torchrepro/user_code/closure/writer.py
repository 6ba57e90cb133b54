"""From live objects to the text that defines them, by following every name that their code looks up."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchrepro.graph_text.syntax import unused_name
from torchrepro.nouns.errors import CannotSerialise, class_path
from torchrepro.torch_api.ops import OpNamespace
from torchrepro.user_code.closure import installed_path, is_installed_module
from torchrepro.user_code.closure.live_objects import (
    Defined,
    Locals,
    changed_attributes,
    has_state,
    holds_tensors,
    is_decorated,
    is_made_by_package,
    same_literal,
)
from torchrepro.user_code.closure.pieces import PieceWriter
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition
from torchrepro.user_code.closure.text import ModuleText
from torchrepro.user_code.closure.user_modules import (
    EMPTY,
    UserModule,
    contents,
    definition_of,
    dotted_imports,
    home_of,
    import_of,
    inner_function,
    is_user_class,
    is_user_function,
)
from torchrepro.user_code.closure.values import CODE, SCALARS, ValueWriter

Key = tuple[int, str]
"""A global of the user: the identity of the namespace, and the name."""


class ClosureWriter:
    """One closure: the text, and next to it tensors and notes."""

    def __init__(self) -> None:
        self.text = ModuleText()
        self.tensors: dict[str, torch.Tensor] = {}
        self.notes: dict[str, None] = {}
        self.values = ValueWriter(self)
        self._pieces = PieceWriter(self)
        self._locals = Locals()
        self._globals: dict[Key, tuple[UserModule, str]] = {}
        self._waiting: dict[Key, None] = {}
        self._started: set[Key] = set()
        self._done: set[Key] = set()
        self._code: dict[int, str] = {}  # expressions by identity; `_alive` keeps the ids valid
        self._alive: list[Any] = []

    def write(self, objects: list[Any]) -> tuple[str, ...]:
        """Define the objects and return the names that they have in the text."""
        for value in objects:
            self._locals.discover(value)
        names = tuple(self._named(value) for value in objects)
        self._define_waiting()
        if self._waiting:
            raise _need_one_another(self._waiting)
        return names

    def _named(self, value: Any) -> str:
        if not self.is_code(value):
            wanted = type(value).__name__.lower()
            return self._held(value, wanted, wanted)
        expression = self.refer(value)
        return expression if expression.isidentifier() else self.alias(expression)

    # References

    def refer(self, value: Any) -> str:
        """Return the expression for a function, class, module or decorated function; define it first."""
        self._alive.append(value)
        if isinstance(value, OpNamespace):
            return self._operators(value)
        if isinstance(value, types.ModuleType):
            if is_installed_module(value.__name__):
                return self.text.import_module(value.__name__)
            raise CannotSerialise(
                f"the user's module {value.__name__} is used as a value",
                next_step="name what is used of it: module.function",
            )
        name = getattr(value, "__name__", None)
        if isinstance(name, str) and getattr(builtins, name, None) is value:
            return name
        path = installed_path(value)
        if path is not None:
            return f"{self.text.import_module(path[0])}.{path[1]}"
        if id(value) in self._code:
            return self._code[id(value)]
        home = home_of(value)
        if home is None:
            return self._local(value)
        if isinstance(home.owner, type):
            return f"{self.refer(home.owner)}{home.path}"
        return f"{self.global_name(home.owner, home.name, eager=True)}{home.path}"

    def _operators(self, namespace: OpNamespace) -> str:
        """Return the expression for a namespace of operators (`aten = torch.ops.aten`)."""
        return f"{self.text.import_module('torch')}{namespace.__name__.removeprefix('torch')}"

    def alias(self, expression: str) -> str:
        """Give an expression a name of its own, which no local variable can hide."""
        name = self.text.take(expression.replace(".", "_"))
        self._define_waiting()
        self._add(f"{name} = {expression}")
        return name

    # Globals of the user's modules

    def global_name(self, module: UserModule, name: str, *, eager: bool) -> str | None:
        """Return what a global is called in the text; None for builtins and names that are not bound.

        It is eager where the module itself needs it while it runs, with its own dependencies; else
        it is defined anywhere in the text.
        """
        if name not in module.globals or (name.startswith("__") and name.endswith("__")):
            return None
        key = (id(module.globals), name)
        if key not in self._globals:
            imported = self._imported(module, name, eager=eager)
            if imported is not None:
                return imported
            self._globals[key] = module, self.text.take(name)
        if key not in self._done and key not in self._started:
            self._waiting[key] = None
        if eager and key not in self._done:
            self._define(key)
            self._define_waiting()
        return self._globals[key][1]

    def _define(self, key: Key) -> None:
        if key in self._started:
            raise _StillBeingDefined
        self._started.add(key)
        self._waiting.pop(key, None)
        try:
            self._define_global(key)
        except _StillBeingDefined:
            self._waiting[key] = None
            if len(self._started) == 1:  # nothing is left that could be defined first
                raise _need_one_another([key]) from None
            raise
        finally:
            self._started.discard(key)
        self._done.add(key)

    def _define_waiting(self) -> None:
        """Define everything that is pending, except what needs a definition that has only begun."""
        passed_over: set[Key] = set()
        while ready := [key for key in self._waiting if key not in passed_over]:
            try:
                self._define(ready[0])
            except _StillBeingDefined:
                passed_over.add(ready[0])

    def _imported(self, module: UserModule, name: str, *, eager: bool) -> str | None:
        """Keep the origin of what is imported: a package, or the user's module that defines it."""
        value = module.globals[name]
        if isinstance(value, OpNamespace):
            return self._operators(value)
        if isinstance(value, types.ModuleType):
            if not is_installed_module(value.__name__):
                return self.refer(value)
            for dotted in dotted_imports(module, name):
                self.text.also_import(dotted)
            return self.text.import_module(value.__name__, name)
        source = import_of(module, name)
        if source is None:
            return None
        if is_installed_module(source[0]):
            return self.text.import_from(*source, name)
        return self.global_name(UserModule(vars(sys.modules[source[0]])), source[1], eager=eager)

    def _define_global(self, key: Key) -> None:
        (module, as_name), name = self._globals[key], key[1]
        value = module.globals[name]
        statements = module.bindings(name)
        only = statements[0] if len(statements) == 1 else None
        if is_user_function(value) or is_user_class(value):
            self._define_code(module, value, only, as_name)
        elif isinstance(only, DEFINITIONS):
            self._define_by_definition(module, only, as_name, value, decorators=True)
        else:
            self._define_value(module, value, only, name, as_name)

    def _define_code(self, module: UserModule, value: Any, only: ast.stmt | None, as_name: str) -> None:
        made_by = definition_of(value)
        if isinstance(only, DEFINITIONS) and not has_state(value):
            own = made_by is only
            if own or made_by is None or only.decorator_list:
                # A decorator that returned the function unchanged is left out: its effect is elsewhere.
                decorators = isinstance(only, ast.ClassDef) or not own
                self._define_by_definition(module, only, as_name, value, decorators=decorators)
                return
        if made_by is None and only is not None:
            # A class made by a call: a named tuple, an enum.
            self._define_by_statement(module, only, value.__name__, as_name, value)
            return
        expression = self._local(value, as_name)
        if expression != as_name:
            self._add(f"{as_name} = {expression}")

    def _define_by_definition(
        self, module: UserModule, node: Definition, as_name: str, value: Any, *, decorators: bool
    ) -> None:
        made = Defined(value, module.file(node.name), module, node)
        text, after = self._pieces.definition(made, {node.name: as_name}, as_name, decorators=decorators)
        self._add(text)
        self._code.setdefault(id(value), as_name)
        self._assign(as_name, after, value, node)

    def _define_by_statement(
        self, module: UserModule, statement: ast.stmt, name: str, as_name: str, value: Any
    ) -> None:
        self._add(self._pieces.statement(module, statement, name, as_name))
        self.values.remember(value, as_name)
        self._code.setdefault(id(value), as_name)

    def _define_value(
        self, module: UserModule, value: Any, only: ast.stmt | None, name: str, as_name: str
    ) -> None:
        statement: ast.stmt | None = None
        match only:  # `name = expression` can be moved
            case (
                ast.Assign(targets=[ast.Name()], value=expression)
                | ast.AnnAssign(target=ast.Name(), value=ast.expr() as expression)
            ):
                statement = only
                if same_literal(expression, value) or is_made_by_package(value):
                    self._define_by_statement(module, statement, name, as_name, value)
                    return
        try:
            self._add(f"{as_name} = {self.values.write(value, f'{module.name}.{name}', as_name)}")
            self._add_all(self.values.postponed())
        except CannotSerialise:
            if statement is None or holds_tensors(value) or isinstance(value, list | dict | set):
                raise
            self._define_by_statement(module, statement, name, as_name, value)
            self.note(f"{name} is recreated by its statement; what was done to it since is not kept")

    # Locals

    def _local(self, value: Any, wanted: str | None = None) -> str:
        """Return the name of a function or class that no global refers to."""
        if id(value) in self._code:
            return self._code[id(value)]
        if not (is_user_function(value) or is_user_class(value)):
            name = getattr(inner_function(value) or value, "__qualname__", repr(value))
            raise CannotSerialise(
                f"{name} is a {class_path(type(value))} that no global name leads to",
                next_step="bind it to a name at the top level of its module",
            )
        group = self._locals.made_with(value)
        self._alive += [local.value for local in group]
        names = [wanted if wanted and local.value is value else self.text.take(local.name) for local in group]
        self._define_group(group, names)
        return self._code[id(value)]

    def _define_group(self, group: list[Defined], names: list[str]) -> None:
        """Define locals that are made together; by a factory where they have variables."""
        members = {id(local.value) for local in group}
        given = {
            name: self._variable(name, cell, local)
            for local in group
            for name, cell in local.cells.items()
            if id(contents(cell)) not in members
        }
        alone = len(group) == 1 and not group[0].cells
        texts, afters = [], []
        for local, name in zip(group, names, strict=True):
            called = name if alone else local.name
            text, after = self._pieces.definition(
                local, {}, name if alone else None, decorators=isinstance(local.value, type)
            )
            texts.append(f"{called} = {text}" if isinstance(local.node, ast.Lambda) else text)
            afters.append(after)
        if alone:
            self._add(texts[0])
        else:
            factory = self.text.take(f"make_{group[0].name}")
            body = "\n\n".join([*texts, f"return {', '.join(local.name for local in group)}"])
            self._add(f"def {factory}({', '.join(given)}):\n{textwrap.indent(body, '    ')}")
            self._add(f"{', '.join(names)} = {factory}({', '.join(given.values())})")
        self._code.update({id(local.value): name for local, name in zip(group, names, strict=True)})
        for local, name, after in zip(group, names, afters, strict=True):
            self._assign(name, after, local.value, local.node)

    def _variable(self, name: str, cell: types.CellType, local: Defined) -> str:
        """Return the argument for a variable."""
        value, where = contents(cell), f"{local.value.__qualname__}: {name}"
        if value is EMPTY:
            raise CannotSerialise(
                f"{local.value.__qualname__} reads the variable {name}, which is not bound now",
                next_step="define it at the top level of its module, or bind the variable before the call",
            )
        return self._held(value, where, name)

    def _assign(self, name: str, lines: Iterable[str], value: Any, node: ast.AST) -> None:
        """Assign attributes that the definition alone does not give."""
        self._add_all(f"{name}.{line}" for line in lines)
        for attribute, item in changed_attributes(value, node):
            written = self._held(item, f"{value.__qualname__}.{attribute}", attribute)
            self._add(f"{name}.{attribute} = {written}")

    def _held(self, value: Any, where: str, wanted: str) -> str:
        """Return an expression; an object with an identity gets a name, so that all holders share one."""
        if isinstance(value, SCALARS) or self.is_code(value) or self.values.knows(value):
            return self.values.write(value, where)
        return self.hoist(wanted, lambda place: self.values.write(value, where, place))

    # What the writers of values and pieces use.

    def is_code(self, value: Any) -> bool:
        """Return whether a value is a function, a class, or what a decorator has made of one."""
        return isinstance(value, CODE) or is_decorated(value)

    def keep(self, tensor: torch.Tensor, wanted: str) -> str:
        """Keep a tensor next to the text and return its name there; the same tensor has one."""
        for known, held in self.tensors.items():
            if held is tensor:
                return known
        name = unused_name(re.sub(r"\W+", "_", wanted), self.tensors)
        self.tensors[name] = tensor
        return name

    def hoist(self, wanted: str, write: Callable[[str], str]) -> str:
        """Give an expression a line of its own; `write` gets the name first."""
        place = self.text.take(wanted)
        self._add(f"{place} = {write(place)}")
        self._add_all(self.values.postponed())
        return place

    def note(self, note: str) -> None:
        """Add something that a reader must know."""
        self.notes[note] = None

    def _add(self, block: str) -> None:
        self.text.blocks.append(block)

    def _add_all(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            self._add(block)


class _StillBeingDefined(Exception):
    """A definition needs another one that is waiting for it; it is retried later."""


def _need_one_another(keys: Iterable[Key]) -> CannotSerialise:
    return CannotSerialise(
        f"the definitions of {', '.join(name for _, name in keys)} need one another before they exist",
        next_step="define one of them inside a function",
    )
