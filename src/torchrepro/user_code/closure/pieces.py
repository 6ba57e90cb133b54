"""Pieces of the user's files, cut out with the names that they take from outside as the closure calls them.

Every other character stays as it is, up to the indentation. Where that is not possible (a definition gets
another name, a name goes over several lines), Python prints the piece, without its comments.
"""

from __future__ import annotations

import ast
import copy
import sys
import textwrap
import types
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.torch_api.ops import OpNamespace
from torchrepro.user_code.closure import is_installed_module
from torchrepro.user_code.closure.live_objects import Defined, same_literal
from torchrepro.user_code.closure.scopes import DEFINITIONS, deferred_names
from torchrepro.user_code.closure.user_modules import SourceFile, UserModule, is_user_function

if TYPE_CHECKING:
    from torchrepro.user_code.closure.writer import ClosureWriter


class PieceWriter:
    """Cuts pieces and triggers the definition of everything that they need."""

    def __init__(self, closure: ClosureWriter) -> None:
        self._closure = closure

    def statement(self, module: UserModule, node: ast.stmt, name: str, as_name: str) -> str:
        """Return an assignment at the top level of a module, under another name."""
        file = module.file(name)
        return _text(file, node, self._replaced(module, file, node, (), (), {name: as_name}))

    def definition(
        self, made: Defined, own: Mapping[str, str], as_name: str | None, *, decorators: bool
    ) -> tuple[str, list[str]]:
        """Return the text of a definition, and assignments to its attributes: defaults as they are now.

        `own` are names that stand for the definition itself, `as_name` is what it is to bind.
        """
        node = made.node
        skipped: list[ast.expr] = [] if decorators else list(getattr(node, "decorator_list", []))
        defaults: list[ast.expr] = []
        after: list[str] = []
        if is_user_function(made.value) and not decorators and not isinstance(node, ast.ClassDef):
            defaults, after = self._defaults(made.module, node.args, made.value)
        replaced = self._replaced(made.module, made.file, node, made.cells, skipped + defaults, own)
        replaced |= dict.fromkeys(defaults, ast.Constant(None))
        return _text(made.file, node, replaced, as_name, decorators=decorators), after

    def _replaced(
        self,
        module: UserModule,
        file: SourceFile,
        node: ast.AST,
        variables: Collection[str],
        skipped: Collection[ast.expr],
        own: Mapping[str, str],
    ) -> dict[ast.AST, ast.AST]:
        """Return replacements of nodes; define everything that the piece refers to on the way."""
        inside = set(ast.walk(node)) - {child for part in skipped for child in ast.walk(part)}
        deferred, attributes = deferred_names(node), dict(_user_module_attributes(inside, module, file))
        names = [child for child in inside if isinstance(child, ast.Name) and child in file.owners]
        hidden = {name.id for name in names if file.owners[name] in inside} | set(variables)
        replaced: dict[ast.AST, ast.AST] = {}
        renamed = dict(own)
        for name in sorted(names, key=lambda name: (name.lineno, name.col_offset)):
            owner = file.owners[name]
            if owner is not None:
                if owner not in inside and name.id not in variables:
                    raise CannotSerialise(
                        f"{getattr(node, 'name', 'a lambda')} was made with the variable {name.id}, which"
                        " Python has dropped",
                        next_step="define it at the top level of its module",
                    )
                continue
            place = attributes.get(name, name)
            found = own.get(name.id) or self._reference(module, place, eager=name not in deferred)
            if found is None or (place is name and found == name.id):
                continue
            if found.partition(".")[0] in hidden:
                found = self._closure.alias(found)
            if place is name:
                renamed[name.id] = found
            replaced[place] = ast.Name(found)
        for child in inside:
            if isinstance(child, ast.Global) and any(name in renamed for name in child.names):
                replaced[child] = ast.Global([renamed.get(name, name) for name in child.names])
            for annotation in (getattr(child, "annotation", None), getattr(child, "returns", None)):
                # Where the file postpones annotations, the names in them are not needed.
                if file.postpones_annotations and annotation and not isinstance(annotation, ast.Constant):
                    replaced[annotation] = ast.Constant(ast.unparse(annotation))
        self._note_inner_imports(module, inside)
        return replaced

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
    """Return whether the text of a default gives its current value: a literal, or a global by its name."""
    if isinstance(default, ast.Name) and default.id in module.globals:
        return module.globals[default.id] is value
    return same_literal(default, value)


def _user_module_attributes(
    nodes: set[ast.AST], module: UserModule, file: SourceFile
) -> Iterator[tuple[ast.Name, ast.expr]]:
    """Yield `module.name` wherever the module is one of the user's, after the name it begins with."""
    for node in nodes:
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(node, ast.Attribute) or not isinstance(root, ast.Name):
            continue
        holder, held = _live_value(module, node.value), _live_value(module, node)
        if file.owners.get(root, root) is None and _is_user_module(holder) and not _is_user_module(held):
            yield root, node


def _live_value(module: UserModule, node: ast.expr) -> Any:
    """Return what a dotted name of a module stands for now, None where nothing."""
    if isinstance(node, ast.Attribute):
        return getattr(_live_value(module, node.value), node.attr, None)
    return module.globals.get(node.id) if isinstance(node, ast.Name) else None


def _is_user_module(value: Any) -> bool:
    if isinstance(value, OpNamespace):
        return False
    return isinstance(value, types.ModuleType) and not is_installed_module(value.__name__)


def _text(
    file: SourceFile,
    node: ast.stmt | ast.expr,
    replaced: Mapping[ast.AST, ast.AST],
    name: str | None = None,
    *,
    decorators: bool = False,
) -> str:
    """Return the text of a node, at the margin, with some nodes in it replaced."""
    if name in (None, getattr(node, "name", None)):
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", [])[: int(decorators)]))
        text = _edited(file.lines[first - 1 : node.end_lineno], first, node, replaced)
        over_lines = isinstance(node, ast.Lambda) and "\n" in text
        if not (over_lines or text[:1].isspace() or (node.col_offset and _has_text_over_lines(node))):
            return text
    changed = copy.deepcopy(node, {id(old): new for old, new in replaced.items()})
    if isinstance(changed, DEFINITIONS):
        changed.name = name or changed.name
        changed.decorator_list = changed.decorator_list if decorators else []
    return ast.unparse(changed)


def _edited(text: list[str], first: int, node: ast.stmt | ast.expr, replaced: Mapping[Any, ast.AST]) -> str:
    """Return lines of a file with the new nodes in them; a space where Python has to print the piece."""
    lines = [line.encode() for line in text]  # columns count bytes
    lines[-1] = lines[-1][: node.end_col_offset]
    for old in sorted(replaced, key=lambda old: (old.lineno, old.col_offset), reverse=True):
        line = lines[old.lineno - first]
        there = line[old.col_offset : old.end_col_offset].decode(errors="replace")
        # Over several lines, or inside a format string, whose columns Python 3.11 does not record.
        if old.lineno != old.end_lineno or (isinstance(old, ast.Name) and there != old.id):
            return " "
        new = ast.unparse(replaced[old]).encode()
        lines[old.lineno - first] = line[: old.col_offset] + new + line[old.end_col_offset :]
    lines[0] = b" " * node.col_offset + lines[0][node.col_offset :]
    return textwrap.dedent(b"\n".join(lines).decode())


def _has_text_over_lines(node: ast.AST) -> bool:
    """Return whether another indentation would change a string other than a docstring."""
    docstrings = {child.value for child in ast.walk(node) if isinstance(child, ast.Expr)}
    return any(
        part.lineno != part.end_lineno
        for part in ast.walk(node)
        if isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes) and part not in docstrings)
    )
