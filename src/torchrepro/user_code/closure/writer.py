"""From live objects to the text that defines them, by following every name that their code looks up."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.live_objects import (
    EMPTY,
    Local,
    assigned_expression,
    changed_attributes,
    contents,
    groups_of,
    has_state,
    holds_tensors,
    is_decorated,
    is_made_by_package,
    local_of,
    require_distinct_names,
    same_literal,
)
from torchrepro.user_code.closure.origin import installed_path, is_installed_module
from torchrepro.user_code.closure.pieces import INDENT, Piece, PieceWriter, Snippet
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition
from torchrepro.user_code.closure.text import Definitions, ModuleText
from torchrepro.user_code.closure.user_modules import (
    UserModule,
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
        self._kept: dict[int, str] = {}
        self.notes: dict[str, None] = {}
        self.values = ValueWriter(self)
        self._pieces = PieceWriter(self)
        self._globals: dict[Key, str] = {}
        self._modules: dict[int, UserModule] = {}
        self._definitions = Definitions(self._define_global)
        self._code: dict[int, str] = {}  # expressions by identity, which `_alive` keeps good
        self._groups: dict[int, list[Local]] = {}
        self._alive: list[Any] = []

    def write(self, objects: list[Any]) -> tuple[str, ...]:
        """Define the objects and return the names that they have in the text."""
        self._find_groups(objects)
        names = tuple(self._named(value) for value in objects)
        self._definitions.all()
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

    def alias(self, expression: str) -> str:
        """Give an expression a name of its own, which no local variable can hide."""
        name = self.text.take(expression.replace(".", "_"))
        self._definitions.those_waiting()
        self._add(f"{name} = {expression}")
        return name

    # Globals of the user's modules

    def global_name(self, module: UserModule, name: str, *, eager: bool) -> str | None:
        """Return what a global is called in the text; None for builtins and names that are not bound.

        It is eager where the module itself needs it while it runs; else it can follow.
        """
        if name not in module.globals or (name.startswith("__") and name.endswith("__")):
            return None
        key = (id(module.globals), name)
        if key not in self._globals:
            imported = self._imported(module, name, eager=eager)
            if imported is not None:
                return imported
            self._modules[key[0]] = module
            self._globals[key] = self.text.take(name)
            self._definitions.later(key)
        if eager:
            self._definitions.now(key)
        return self._globals[key]

    def _imported(self, module: UserModule, name: str, *, eager: bool) -> str | None:
        """Keep the origin of what is imported: a package, or the user's module that defines it."""
        value = module.globals[name]
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
        module, name, as_name = self._modules[key[0]], key[1], self._globals[key]
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
                # A decorator that gave the function back as it was has done its work elsewhere.
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
        live = value if is_user_function(value) and not decorators else None
        piece = Piece(module, module.file(node.name), node, live, {}, decorators, as_name)
        snippet, after = self._pieces.definition(piece, {node.name: as_name})
        self._add(snippet.text())
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
        expression = assigned_expression(only)
        statement = only if expression is not None else None
        if statement and expression and (same_literal(expression, value) or is_made_by_package(value)):
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

    def _find_groups(self, values: list[Any]) -> None:
        for group in groups_of(value for value in values if id(value) not in self._groups):
            for local in group:
                self._groups.setdefault(id(local.value), group)
                self._alive.append(local.value)

    def _local(self, value: Any, wanted: str | None = None) -> str:
        """Return the name of a function or class that no global leads to."""
        if id(value) in self._code:
            return self._code[id(value)]
        if not (is_user_function(value) or is_user_class(value)):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            name = getattr(inner_function(value) or value, "__qualname__", repr(value))
            raise CannotSerialise(
                f"{name} is a {kind} that no global name leads to",
                next_step="bind it to a name at the top level of its module",
            )
        self._find_groups([value])
        group = self._groups.get(id(value)) or [local_of(value)]
        self._define_group(group, {id(value): wanted} if wanted else {})
        return self._code[id(value)]

    def _define_group(self, group: list[Local], wanted: Mapping[int, str]) -> None:
        """Define locals that are made together; by a factory where they have variables."""
        require_distinct_names(group)
        members = {id(local.value) for local in group}
        names = [wanted.get(id(local.value)) or self.text.take(local.name) for local in group]
        given = {
            name: self._variable(name, cell, local)
            for local in group
            for name, cell in local.cells.items()
            if id(contents(cell)) not in members
        }
        alone = len(group) == 1 and not group[0].cells
        pieces = [
            self._pieces.definition(_piece(local, name if alone else None), {})
            for local, name in zip(group, names, strict=True)
        ]
        if alone:
            self._add(_definition_text(group[0].node, pieces[0][0], names[0]))
        else:
            factory = self.text.take(f"make_{group[0].name}")
            lines = [f"def {factory}({', '.join(given)}):"]
            for local, (snippet, _) in zip(group, pieces, strict=True):
                lines += [_definition_text(local.node, snippet, local.name, depth=1), ""]
            lines.append(f"{INDENT}return {', '.join(local.name for local in group)}")
            self._add("\n".join(lines))
            self._add(f"{', '.join(names)} = {factory}({', '.join(given.values())})")
        self._code.update({id(local.value): name for local, name in zip(group, names, strict=True)})
        for local, name, (_, after) in zip(group, names, pieces, strict=True):
            self._assign(name, after, local.value, local.node)

    def _variable(self, name: str, cell: types.CellType, local: Local) -> str:
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

    # What the writers of values and pieces ask for

    def is_code(self, value: Any) -> bool:
        """Whether a value is a function, a class, or what a decorator has made of one."""
        return isinstance(value, CODE) or is_decorated(value)

    def keep(self, tensor: torch.Tensor, wanted: str) -> str:
        """Keep a tensor next to the text and return its name there; the same tensor has one."""
        if id(tensor) in self._kept:
            return self._kept[id(tensor)]
        base = name = re.sub(r"\W+", "_", wanted)
        count = 1
        while name in self.tensors:
            count += 1
            name = f"{base}_{count}"
        self.tensors[name] = tensor
        self._kept[id(tensor)] = name
        return name

    def hoist(self, wanted: str, write: Callable[[str], str]) -> str:
        """Give an expression a line of its own; `write` is told the name first."""
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


def _piece(local: Local, as_name: str | None) -> Piece:
    live = None if isinstance(local.value, type) else local.value
    return Piece(local.module, local.file, local.node, live, local.visible, live is None, as_name)


def _definition_text(node: ast.AST, snippet: Snippet, name: str, *, depth: int = 0) -> str:
    """Return a definition as a statement; a lambda is given a name."""
    text = snippet.text(depth)
    if isinstance(node, ast.Lambda):
        value = f"({text.strip()})" if len(snippet.lines) > 1 else text.strip()
        return f"{INDENT * depth}{name} = {value}"
    return text
