"""Pieces of the user's files, cut out with the names that they take from outside called as in the closure."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.facts import live_value, same_literal, user_module_attributes
from torchrepro.user_code.closure.files import SourceFile
from torchrepro.user_code.closure.origin import is_installed_module
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition, deferred_names
from torchrepro.user_code.closure.snippets import Cutter, Edit, Snippet
from torchrepro.user_code.closure.user_modules import UserModule
from torchrepro.user_code.closure.values import ValueWriter


class Lookup(Protocol):
    """What a piece asks the closure for."""

    def global_name(self, module: UserModule, name: str, *, eager: bool) -> str | None:
        """What a global of the user's module is called; None for builtins and names that are not bound."""

    def alias(self, expression: str) -> str:
        """Another name for something, which no local variable can hide."""

    def note(self, note: str) -> None:
        """Something that a reader must know."""


@dataclass(frozen=True)
class Piece:
    """A definition to cut out: where it stands, and what is known about the object that came of it."""

    module: UserModule
    file: SourceFile
    node: Definition | ast.Lambda
    live: Any = None
    """The function that came of it, whose defaults count as they are now."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of enclosing functions that will be there."""
    decorators: bool = False
    as_name: str | None = None
    """Another name for what the definition binds."""


class PieceWriter:
    """Cuts pieces and has everything defined that they need."""

    def __init__(self, lookup: Lookup, values: ValueWriter) -> None:
        self._lookup = lookup
        self._values = values
        self._cutters: dict[str, Cutter] = {}

    def statement(self, module: UserModule, node: ast.stmt, name: str, as_name: str) -> str:
        """An assignment at the top level of a module, under another name."""
        file = module.file(name)
        edits = self._edits(module, file, node, {}, set(), {name: as_name})
        return self._cutter(file).cut(node, edits).text()

    def definition(self, piece: Piece, own: Mapping[str, str]) -> tuple[Snippet, list[str]]:
        """The text of a definition, and what has to be assigned to its attributes: defaults as they are now.

        `own` are names that stand for the definition itself.
        """
        node, cutter = piece.node, self._cutter(piece.file)
        skipped: list[ast.AST] = [] if piece.decorators else list(getattr(node, "decorator_list", []))
        edits: list[Edit] = []
        after: list[str] = []
        if piece.live is not None and not isinstance(node, ast.ClassDef):
            replaced, after = self._defaults(piece.module, node.args, piece.live)
            skipped += replaced
            edits += [cutter.replace(default, "None") for default in replaced]
        if piece.as_name is not None and isinstance(node, DEFINITIONS) and node.name != piece.as_name:
            edits.append(cutter.rename(node, piece.as_name))
        passed_over = {child for part in skipped for child in ast.walk(part)}
        edits += self._edits(piece.module, piece.file, node, piece.variables, passed_over, own)
        return cutter.cut(node, edits, decorators=piece.decorators), after

    def _edits(
        self,
        module: UserModule,
        file: SourceFile,
        node: ast.AST,
        variables: Mapping[str, Any],
        passed_over: set[ast.AST],
        own: Mapping[str, str],
    ) -> list[Edit]:
        """New names where they are needed. Everything that the piece refers to is defined on the way."""
        inside = set(ast.walk(node)) - passed_over
        edits = self._quoted_annotations(file, inside)
        owners, deferred = file.names.owners, deferred_names(node)
        attributes = {root: attribute for attribute, root in user_module_attributes(inside, module, file)}
        names = [child for child in inside if isinstance(child, ast.Name) and child in owners]
        hidden = {name.id for name in names if owners[name] in inside} | set(variables)
        renamed = dict(own)
        for name in sorted(names, key=lambda name: (name.lineno, name.col_offset)):
            owner = owners[name]
            if owner is not None:
                if owner not in inside and name.id not in variables:
                    raise _lost_variable(node, name.id)
                continue
            place: ast.expr = attributes.get(name, name)
            found = own.get(name.id) or self._reference(module, place, eager=name not in deferred)
            if found is None or (place is name and found == name.id):
                continue
            if found.partition(".")[0] in hidden:
                found = self._lookup.alias(found)
            if place is name:
                renamed[name.id] = found
            edits.append(self._cutter(file).replace(place, found))
        self._note_inner_imports(module, inside)
        return edits + self._global_statements(file, inside, renamed)

    def _reference(self, module: UserModule, place: ast.expr, *, eager: bool) -> str | None:
        """A global, or `module.name` where the module is one of the user's."""
        if isinstance(place, ast.Attribute):
            other = UserModule(vars(live_value(module, place.value)))
            return self._lookup.global_name(other, place.attr, eager=eager)
        assert isinstance(place, ast.Name)
        return self._lookup.global_name(module, place.id, eager=eager)

    def _quoted_annotations(self, file: SourceFile, inside: set[ast.AST]) -> list[Edit]:
        """Where the file postpones annotations they are strings here, and what they name is not needed."""
        edits = []
        for annotation in file.names.annotations if file.postpones_annotations else ():
            if annotation in inside:
                inside -= set(ast.walk(annotation))
                if not isinstance(annotation, ast.Constant):
                    text = self._cutter(file).text_of(annotation)
                    edits.append(self._cutter(file).replace(annotation, repr(text)))
        return edits

    def _global_statements(
        self, file: SourceFile, inside: set[ast.AST], renamed: Mapping[str, str]
    ) -> list[Edit]:
        return [
            self._cutter(file).replace(
                node, f"global {', '.join(renamed.get(name, name) for name in node.names)}"
            )
            for node in inside
            if isinstance(node, ast.Global) and any(name in renamed for name in node.names)
        ]

    def _note_inner_imports(self, module: UserModule, inside: set[ast.AST]) -> None:
        for node in inside:
            match node:
                case ast.ImportFrom():
                    named = [module.absolute(node)]
                case ast.Import(names=aliases):
                    named = [alias.name for alias in aliases]
                case _:
                    continue
            for name in named:
                if name in sys.modules and not is_installed_module(name):
                    self._lookup.note(f"the code imports {name}, a module of the user, while it runs")

    def _defaults(
        self, module: UserModule, arguments: ast.arguments, live: types.FunctionType
    ) -> tuple[list[ast.expr], list[str]]:
        """All defaults and the assignments that set them, if the text of one does not give its value."""
        positional, named = live.__defaults__ or (), live.__kwdefaults__ or {}
        pairs = [
            *zip(arguments.defaults, positional, strict=False),
            *(
                (default, named.get(argument.arg))
                for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
                if default is not None
            ),
        ]
        same_number = len(positional) == len(arguments.defaults)
        if same_number and all(self._stays(module, default, value) for default, value in pairs):
            return [], []
        where = f"a default of {live.__qualname__}"
        after = []
        if positional or arguments.defaults:
            after.append(f"__defaults__ = {self._values.write(live.__defaults__, where)}")
        if named:
            after.append(f"__kwdefaults__ = {self._values.write(named, where)}")
        return [default for default, _ in pairs], after

    def _stays(self, module: UserModule, default: ast.expr, value: Any) -> bool:
        """Whether the text of a default gives the value that it has: a literal, or a global by its name."""
        if isinstance(default, ast.Name) and default.id in module.globals:
            return module.globals[default.id] is value
        return same_literal(default, value)

    def _cutter(self, file: SourceFile) -> Cutter:
        return self._cutters.setdefault(file.path, Cutter(file))


def _lost_variable(node: ast.AST, name: str) -> CannotSerialise:
    return CannotSerialise(
        f"{getattr(node, 'name', 'a lambda')} was made with the variable {name}, which Python has dropped",
        next_step="define it at the top level of its module",
    )
