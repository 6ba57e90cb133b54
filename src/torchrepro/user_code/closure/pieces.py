"""Pieces of the user's files, cut out with the names that they take from outside as the closure calls them.

Every other character stays as it was, except for the indentation.
"""

from __future__ import annotations

import ast
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.live_objects import same_literal
from torchrepro.user_code.closure.origin import is_installed_module
from torchrepro.user_code.closure.scopes import DEFINITIONS, Definition, deferred_names
from torchrepro.user_code.closure.user_modules import SourceFile, UserModule

if TYPE_CHECKING:
    from torchrepro.user_code.closure.writer import ClosureWriter

INDENT = "    "
_NAME_OF_DEFINITION = re.compile(rb"(?:async\s+)?(?:def|class)\s+(\w+)")

Edit = tuple[int, int, str]
"""New text for the bytes between two offsets of a file."""


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


@dataclass(frozen=True)
class Snippet:
    """Lines without indentation. Lines inside a string are never indented: that would change it."""

    lines: tuple[str, ...]
    fixed: frozenset[int]

    def text(self, depth: int = 0) -> str:
        return "\n".join(
            line if number in self.fixed or not line.strip() else INDENT * depth + line
            for number, line in enumerate(self.lines)
        )


class PieceWriter:
    """Cuts pieces and has everything defined that they need."""

    def __init__(self, closure: ClosureWriter) -> None:
        self._closure = closure

    def statement(self, module: UserModule, node: ast.stmt, name: str, as_name: str) -> str:
        """Return an assignment at the top level of a module, under another name."""
        file = module.file(name)
        return _cut(file, node, self._edits(module, file, node, {}, set(), {name: as_name})).text()

    def definition(self, piece: Piece, own: Mapping[str, str]) -> tuple[Snippet, list[str]]:
        """Return the text of a definition, and assignments to its attributes: defaults as they are now.

        `own` are names that stand for the definition itself.
        """
        node, file = piece.node, piece.file
        skipped: list[ast.AST] = [] if piece.decorators else list(getattr(node, "decorator_list", []))
        edits: list[Edit] = []
        after: list[str] = []
        if piece.live is not None and not isinstance(node, ast.ClassDef):
            replaced, after = self._defaults(piece.module, node.args, piece.live)
            skipped += replaced
            edits += [_replacement(file, default, "None") for default in replaced]
        if piece.as_name is not None and isinstance(node, DEFINITIONS) and node.name != piece.as_name:
            found = _NAME_OF_DEFINITION.match(file.text.encode(), *_span(file, node))
            assert found is not None, "a definition begins with its keyword"
            edits.append((found.start(1), found.end(1), piece.as_name))
        passed_over = {child for part in skipped for child in ast.walk(part)}
        edits += self._edits(piece.module, file, node, piece.variables, passed_over, own)
        return _cut(file, node, edits, decorators=piece.decorators), after

    def _edits(
        self,
        module: UserModule,
        file: SourceFile,
        node: ast.AST,
        variables: Mapping[str, Any],
        passed_over: set[ast.AST],
        own: Mapping[str, str],
    ) -> list[Edit]:
        """Rename where that is needed. Everything that the piece refers to is defined on the way."""
        inside = set(ast.walk(node)) - passed_over
        edits = _quoted_annotations(file, inside)
        owners, deferred = file.names.owners, deferred_names(node)
        attributes = dict(_user_module_attributes(inside, module, file))
        names = [child for child in inside if isinstance(child, ast.Name) and child in owners]
        hidden = {name.id for name in names if owners[name] in inside} | set(variables)
        renamed = dict(own)
        for name in sorted(names, key=lambda name: (name.lineno, name.col_offset)):
            owner = owners[name]
            if owner is not None:
                if owner not in inside and name.id not in variables:
                    raise _lost_variable(node, name.id)
                continue
            place = attributes.get(name, name)
            found = own.get(name.id) or self._reference(module, place, eager=name not in deferred)
            if found is None or (place is name and found == name.id):
                continue
            if found.partition(".")[0] in hidden:
                found = self._closure.alias(found)
            if place is name:
                renamed[name.id] = found
            edits.append(_replacement(file, place, found))
        for child in inside:
            if isinstance(child, ast.Global) and any(name in renamed for name in child.names):
                names_now = ", ".join(renamed.get(name, name) for name in child.names)
                edits.append(_replacement(file, child, f"global {names_now}"))
        self._note_inner_imports(module, inside)
        return edits

    def _reference(self, module: UserModule, place: ast.expr, *, eager: bool) -> str | None:
        """Name a global, or `module.name` where the module is one of the user's."""
        if isinstance(place, ast.Attribute):
            other = UserModule(vars(_live_value(module, place.value)))
            return self._closure.global_name(other, place.attr, eager=eager)
        assert isinstance(place, ast.Name)
        return self._closure.global_name(module, place.id, eager=eager)

    def _note_inner_imports(self, module: UserModule, inside: set[ast.AST]) -> None:
        for node in inside:
            named = [module.absolute(node)] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                if name in sys.modules and not is_installed_module(name):
                    self._closure.note(f"the code imports {name}, a module of the user, while it runs")

    def _defaults(
        self, module: UserModule, arguments: ast.arguments, live: Any
    ) -> tuple[list[ast.expr], list[str]]:
        """Return all defaults and assignments that set them, if the text of one does not give its value."""
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
        if same_number and all(_stays(module, default, value) for default, value in pairs):
            return [], []
        where = f"a default of {live.__qualname__}"
        after = []
        if positional or arguments.defaults:
            after.append(f"__defaults__ = {self._closure.values.write(live.__defaults__, where)}")
        if named:
            after.append(f"__kwdefaults__ = {self._closure.values.write(named, where)}")
        return [default for default, _ in pairs], after


def _stays(module: UserModule, default: ast.expr, value: Any) -> bool:
    """Whether the text of a default gives the value that it has: a literal, or a global by its name."""
    if isinstance(default, ast.Name) and default.id in module.globals:
        return module.globals[default.id] is value
    return same_literal(default, value)


def _quoted_annotations(file: SourceFile, inside: set[ast.AST]) -> list[Edit]:
    """Quote annotations where the file postpones them; what they name is then not needed."""
    edits = []
    for annotation in file.names.annotations if file.postpones_annotations else ():
        if annotation in inside:
            inside -= set(ast.walk(annotation))
            if not isinstance(annotation, ast.Constant):
                text = ast.get_source_segment(file.text, annotation)
                edits.append(_replacement(file, annotation, repr(text)))
    return edits


def _user_module_attributes(
    nodes: set[ast.AST], module: UserModule, file: SourceFile
) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Yield `module.name` wherever the module is one of the user's, after the name it begins with."""
    for node in nodes:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if root is node or not isinstance(root, ast.Name) or file.names.owners.get(root, root) is not None:
            continue
        assert isinstance(node, ast.Attribute)
        if _is_user_module(_live_value(module, node.value)) and not _is_user_module(
            _live_value(module, node)
        ):
            yield root, node


def _live_value(module: UserModule, node: ast.expr) -> Any:
    """Return what a dotted name of a module stands for now, None where nothing."""
    if isinstance(node, ast.Attribute):
        return getattr(_live_value(module, node.value), node.attr, None)
    return module.globals.get(node.id) if isinstance(node, ast.Name) else None


def _is_user_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType) and not is_installed_module(value.__name__)


def _cut(
    file: SourceFile, node: ast.expr | ast.stmt, edits: list[Edit], *, decorators: bool = False
) -> Snippet:
    """Cut out a node with the edits made, as lines that begin at the margin."""
    data = file.text.encode()
    start, end = _span(file, node)
    if decorators and isinstance(node, DEFINITIONS) and node.decorator_list:
        start = data.rindex(b"@", 0, _span(file, node.decorator_list[0])[0])
    text, position = b"", start
    for first, last, new in sorted(edits):
        if position <= first and last <= end:
            text += data[position:first] + new.encode()
            position = last
    lines = (text + data[position:end]).decode().split("\n")
    first_line = data.count(b"\n", 0, start) + 1
    in_strings = {
        line - first_line
        for part in ast.walk(node)
        if isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for line in range(part.lineno + 1, (part.end_lineno or part.lineno) + 1)
    }
    before = data[data.rfind(b"\n", 0, start) + 1 :]
    margin = len(before) - len(before.lstrip(b" \t"))
    return Snippet(
        tuple(
            line if number in in_strings or number == 0 else line[min(margin, _indentation(line)) :]
            for number, line in enumerate(lines)
        ),
        frozenset(in_strings),
    )


def _replacement(file: SourceFile, node: ast.expr | ast.stmt, text: str) -> Edit:
    """Replace a node by a text that has as many lines, so that those below keep their numbers."""
    start, end = _span(file, node)
    lines = (node.end_lineno or node.lineno) - node.lineno - text.count("\n")
    return start, end, text + "\\\n" * lines


def _span(file: SourceFile, node: ast.expr | ast.stmt) -> tuple[int, int]:
    lines = file.line_offsets
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _lost_variable(node: ast.AST, name: str) -> CannotSerialise:
    return CannotSerialise(
        f"{getattr(node, 'name', 'a lambda')} was made with the variable {name}, which Python has dropped",
        next_step="define it at the top level of its module",
    )
