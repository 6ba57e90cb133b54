"""Text to GraphModule: walks the syntax tree of the text, state first. The text is never executed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter

from torchrepro.graph_text.annotations import read_note
from torchrepro.graph_text.leaf_modules import build_leaf_module
from torchrepro.graph_text.literals import LiteralReader, at_line, dotted_name, error, own_path
from torchrepro.graph_text.nodes import NodeReader
from torchrepro.graph_text.symbols import Symbols
from torchrepro.nouns.errors import GraphTextError

_VERSION = re.compile(r"# torchrepro graph (\d+)\b")
_ATTRIBUTE_PATH = re.compile(r"\w+(\.\w+)*\Z", re.ASCII)


def parse_module(
    text: str,
    constants: Mapping[str, Any],
    trusted: Collection[str],
    source: ModuleType | None = None,
    kernels: Mapping[str, Any] | None = None,
) -> GraphModule:
    """The GraphModule that a whole text describes. `source` is the bundle's own code, where it may run."""
    tree = _syntax_tree(text)
    comments = {
        number: line.strip().removeprefix("#").strip()
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip().startswith("#")
    }
    match tree.body:
        case [ast.ClassDef(name="Graph", bases=[], keywords=[]) as definition]:
            reader = _ModuleReader(constants, tuple(trusted), comments, Symbols(), source, kernels or {})
            try:
                return reader.module(definition)
            except RecursionError:
                raise GraphTextError(
                    "the graph's text is nested too deeply", next_step="flatten it"
                ) from None
    raise GraphTextError("the text holds no graph", next_step="it must be one class named Graph")


def _syntax_tree(text: str) -> ast.Module:
    version = _VERSION.match(text)
    if version is not None and int(version[1]) > 1:
        raise GraphTextError(
            f"the graph is of format {version[1]} and this version reads format 1",
            next_step="upgrade torchrepro",
        )
    # A carriage return ends a line for Python but not for us: a comment could hide code in what FX generates.
    strange = next(
        (character for character in text if not character.isprintable() and character != "\n"), None
    )
    if strange is not None:
        raise GraphTextError(
            f"the graph's text holds the control character {strange!r}", next_step="write it as an escape"
        )
    try:
        return ast.parse(text)
    except SyntaxError as failure:
        raise GraphTextError(
            f"line {failure.lineno}: {failure.msg}", next_step="correct the text, or take the bundle again"
        ) from None
    except (ValueError, RecursionError, MemoryError) as failure:
        raise GraphTextError(
            f"the graph's text cannot be parsed: {failure}", next_step="shorten it"
        ) from None


class _ModuleReader:
    """Builds one GraphModule; a reader of its own for each nested one."""

    def __init__(
        self,
        constants: Mapping[str, Any],
        trusted: tuple[str, ...],
        comments: Mapping[int, str],
        symbols: Symbols,
        source: ModuleType | None,
        kernels: Mapping[str, Any],
    ) -> None:
        self._source = source
        self._constants = constants
        self._trusted = trusted
        self._comments = comments
        self._symbols = symbols
        self._kernels = kernels
        self._literals = LiteralReader(constants, trusted, symbols, source, kernels)
        self._module = GraphModule(torch.nn.Module(), Graph())

    def module(self, definition: ast.ClassDef) -> GraphModule:
        if definition.decorator_list or getattr(definition, "type_params", None):
            raise error(definition, "a graph's class has no decorators", "remove them")
        forward: ast.FunctionDef | None = None
        for statement in definition.body:
            match statement:
                case ast.ClassDef():
                    self._nested(statement)
                case ast.FunctionDef(name="forward") if forward is None:
                    forward = statement
                case ast.Assign(targets=[target], value=value):
                    self._state(target, value)
                case ast.AnnAssign(target=target, annotation=annotation, value=ast.expr() as value):
                    read_note(annotation)
                    self._state(target, value)
                case _:
                    raise error(
                        statement, "a graph's class holds state, graphs and one forward", "remove this line"
                    )
        if forward is None:
            raise error(definition, f"the graph {definition.name} has no forward", "add one")
        graph = NodeReader(self._literals, self._comments, self._known).read(forward)
        return _with_graph(self._module, graph)

    # State

    def _nested(self, definition: ast.ClassDef) -> None:
        options: dict[str | None, str] = {}
        for option in definition.keywords:
            match option:
                case ast.keyword(arg="at" | "same_as", value=ast.Constant(value=str(path))):
                    options[option.arg] = path
                case _:
                    raise error(
                        definition, "a nested graph takes at= and same_as= alone", "remove the others"
                    )
        if definition.bases:
            raise error(definition, "a graph's class has no bases", "remove them")
        path = options.get("at", definition.name)
        if "same_as" in options:
            self._assign(path, self._reach(options["same_as"], definition), definition)
            return
        nested = _ModuleReader(
            self._constants, self._trusted, self._comments, self._symbols, self._source, self._kernels
        )
        self._assign(path, nested.module(definition), definition)

    def _state(self, target: ast.expr, value: ast.expr) -> None:
        path = own_path(target)
        if path is None:
            raise error(
                target, f"{ast.unparse(target)} is no attribute of the graph", "write self.name = ..."
            )
        match value:
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(key))], keywords=[]) if (
                kind in _KINDS
            ):
                if key not in self._constants:
                    raise error(value, f"the bundle has no tensor {key!r}", "it is incomplete: take it again")
                self._assign(path, self._constants[key], value, kind)
                return
        other = own_path(value)
        if other is not None:
            self._assign(path, self._reach(other, value), value)
            return
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Call() as call, attr="eval"), args=[], keywords=[]):
                self._assign(path, self._leaf(call).eval(), value)
            case ast.Call(func=ast.Attribute() as function) if (dotted_name(function) or "").startswith(
                "torch.nn."
            ):
                self._assign(path, self._leaf(value), value)
            case _:
                self._assign(path, self._literals.read(value), value)

    def _leaf(self, call: ast.Call) -> torch.nn.Module:
        path = dotted_name(call.func) or ""
        if call.args or any(keyword_.arg is None for keyword_ in call.keywords):
            raise error(call, "a module takes named arguments", "write each as name=value")
        arguments = {str(item.arg): self._literals.read(item.value) for item in call.keywords}
        try:
            return build_leaf_module(path, arguments)
        except GraphTextError as failure:
            raise at_line(call, failure) from None

    def _reach(self, path: str, tree: ast.AST) -> Any:
        value: Any = self._module
        for part in self._checked(path, tree).split("."):
            if part not in value.__dict__ and not _holds(value, part):
                raise error(tree, f"the graph has no attribute {path}", "define it above")
            value = getattr(value, part)
        return value

    def _assign(self, path: str, value: Any, tree: ast.AST, kind: str = "const") -> None:
        owner: torch.nn.Module = self._module
        *containers, name = self._checked(path, tree).split(".")
        for part in containers:
            if part not in owner._modules:
                if hasattr(owner, part):
                    raise error(tree, f"{path} would replace {part}", "use another name")
                owner.add_module(part, torch.nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        taken = hasattr(owner, name) and getattr(owner, name) is not value
        if taken and (kind == "const" or not _holds(owner, name)):
            raise error(tree, f"the name {path} is taken", "use another name")
        if kind == "parameter":
            owner.register_parameter(name, value)
        elif kind in ("buffer", "temporary_buffer"):
            owner.register_buffer(name, value, persistent=kind == "buffer")
        else:
            setattr(owner, name, value)

    def _checked(self, path: str, tree: ast.AST) -> str:
        # FX writes these paths into the code it generates, so nothing else may stand in them.
        if not _ATTRIBUTE_PATH.match(path) or any(part.startswith("__") for part in path.split(".")):
            raise error(tree, f"{path!r} is no attribute path", "use letters, digits, _ and .")
        return path

    def _known(self, path: str, tree: ast.AST) -> str:
        self._reach(path, tree)
        return path


def _with_graph(module: GraphModule, graph: Graph) -> GraphModule:
    """The module with this graph; interpreted where FX cannot generate code for it.

    FX writes arguments by their `repr`, which is no code for tensors, generators, enums and symbolic numbers.
    """
    opaque: list[Any] = []
    for node in graph.nodes:
        torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda leaf: opaque.append(leaf) if isinstance(leaf, _OPAQUE) else None
        )
    try:
        module.graph = graph
    except SyntaxError:
        opaque.append(graph)
    if opaque:
        module.__dict__["forward"] = lambda *args: Interpreter(module).run(*args)
    return module


_OPAQUE = (torch.Tensor, torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool)
_KINDS = ("parameter", "buffer", "temporary_buffer", "const")


def _holds(module: Any, name: str) -> bool:
    return isinstance(module, torch.nn.Module) and any(
        name in held for held in (module._parameters, module._buffers, module._modules)
    )
