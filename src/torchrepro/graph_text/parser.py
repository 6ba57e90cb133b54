"""Graph text to GraphModule: state first, then one node per line. The text is never executed."""

from __future__ import annotations

import ast
import functools
import keyword
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter
from torch.fx.node import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.allowed import ATTRIBUTES
from torchrepro.graph_text.annotations import NOTE_KEY, read_note
from torchrepro.graph_text.leaf_modules import build_leaf_module
from torchrepro.graph_text.literals import RESERVED, LiteralReader, is_placeholder_target
from torchrepro.graph_text.source_lines import annotations_of
from torchrepro.graph_text.symbols import Symbols
from torchrepro.graph_text.syntax import (
    GraphSyntax,
    Line,
    Operation,
    State,
    dotted_name,
    error,
    operation,
    own_path,
    read_syntax,
)
from torchrepro.nouns.errors import GraphTextError
from torchrepro.torch_api.modules import own_state
from torchrepro.torch_api.names import NUMPY_ATTRIBUTE

_ATTRIBUTE_PATH = re.compile(r"\w+(\.\w+)*\Z", re.ASCII)
_ROOTS = ("torch", "operator", "math", "builtins", "source")
_KINDS = ("parameter", "buffer", "temporary_buffer", "const")
_OPAQUE = (torch.Tensor, torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool)


def read_graph(
    text: str,
    constants: Mapping[str, Any],
    *,
    trusted: Collection[str] = (),
    kernels: Mapping[str, Any] | None = None,
    source: ModuleType | None = None,
    stranger: bool = False,
) -> GraphModule:
    """Return the graph that a text describes; GraphTextError with the line on anything it may not hold.

    `trusted` names modules whose code the graph may call; they are imported when it does. `kernels` are the
    user's Triton kernels (`GraphText.kernels`), `source` the bundle's own code, if the reader trusts it.
    Of a `stranger` strings are made plain, which compilers write into code (`literals.plain_text`).
    """
    symbols = functools.cache(Symbols)  # few graphs name one
    literals = LiteralReader(constants, trusted, symbols, source, kernels or {}, stranger)
    try:
        return _ModuleReader(literals).module(read_syntax(text))
    except RecursionError:
        raise GraphTextError("the graph's text is nested too deeply", next_step="flatten it") from None


class _ModuleReader:
    """Builds one GraphModule, its state first, then node by node; a reader of its own for each nested one."""

    def __init__(self, literals: LiteralReader) -> None:
        self._literals = replace(literals, nodes={})
        self._graph = Graph()
        self._module = GraphModule(torch.nn.Module(), Graph())

    def module(self, graph: GraphSyntax) -> GraphModule:
        for item in graph.state:
            if isinstance(item, State):
                with _at_line(item.value):
                    self._state(item)
            elif item.same_as is not None:
                self._assign(item.path, self._reach(item.same_as, item.tree), item.tree)
            else:
                self._assign(item.path, _ModuleReader(self._literals).module(item), item.tree)
        for line in graph.lines:
            with _at_line(line.tree):
                self._line(line)
        return _with_graph(self._module, self._graph)

    def _state(self, state: State) -> None:
        path, value = state.path, state.value
        if state.note is not None:
            read_note(state.note)
        other, kind = own_path(value), "const"
        match value:
            case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(key))], keywords=[]) if (
                word in _KINDS
            ):
                if key not in self._literals.constants:
                    raise error(value, f"the bundle has no tensor {key!r}", "it is incomplete: take it again")
                made, kind = self._literals.constants[key], word
            case _ if other is not None:
                made = self._reach(other, value)
            case ast.Call(func=ast.Attribute(value=ast.Call() as call, attr="eval"), args=[], keywords=[]):
                made = self._leaf(call).eval()
            case ast.Call(func=function) if (dotted_name(function) or "").startswith("torch.nn."):
                made = self._leaf(value)
            case _:
                made = self._literals.read(value)
        self._assign(path, made, value, kind)

    def _leaf(self, call: ast.Call) -> torch.nn.Module:
        path = dotted_name(call.func) or ""
        if call.args or any(keyword_.arg is None for keyword_ in call.keywords):
            raise error(call, "a module takes named arguments", "write each as name=value")
        arguments = {str(item.arg): self._literals.read(item.value) for item in call.keywords}
        return build_leaf_module(path, arguments)

    def _reach(self, path: str, tree: ast.AST) -> Any:
        value: Any = self._module
        for part in self._checked(path, tree).split("."):
            if part not in value.__dict__ and not _holds(value, part):
                raise error(tree, f"the graph has no attribute {path}")
            value = getattr(value, part)
        return value

    def _assign(self, path: str, value: Any, tree: ast.AST, kind: str = "const") -> None:
        owner: torch.nn.Module = self._module
        *containers, name = self._checked(path, tree).split(".")
        for part in containers:
            if part not in own_state(owner).modules:
                if hasattr(owner, part):
                    raise error(tree, f"{path} would replace {part}")
                owner.add_module(part, torch.nn.Module())
            owner = own_state(owner).modules[part]  # type: ignore[assignment]
        taken = hasattr(owner, name) and getattr(owner, name) is not value
        if taken and (kind == "const" or not _holds(owner, name)):
            raise error(tree, f"the name {path} is taken")
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

    # Nodes

    def _line(self, line: Line) -> None:
        if not line.variable:
            assert line.value is not None
            self._create(line, "output", "output", (self._literals.read(line.value),))
            return
        variables = self._literals.nodes
        node = self._node(line, operation(line, variables))
        if line.variable in variables or line.variable in RESERVED:
            raise error(line.tree, f"the name {line.variable} is taken")
        variables[line.variable] = node
        if line.note is not None:
            node.meta[NOTE_KEY] = read_note(line.note)
        if line.comment is not None:
            node.meta.update(annotations_of(line.comment))

    def _node(self, line: Line, found: Operation) -> Node:
        target = found.target
        if found.op == "placeholder":
            return self._placeholder(line, found)
        args = tuple(self._literals.read(arg) for arg in found.args)
        kwargs = {str(item.arg): self._literals.read(item.value) for item in found.keywords}
        if found.op in ("get_attr", "call_module"):
            self._reach(target, line.tree)
            return self._create(line, found.op, target, args, kwargs)
        if found.op == "call_method":
            if not resolver.is_method(target):
                fact = f".{target}(...) is no method of tensors that a graph may call"
                raise error(line.tree, fact)
            given = (*args[1:2], *(kwargs[name] for name in ("dtype", "dst_type") if name in kwargs))
            if target == "type" and not all(map(resolver.is_type_name, given)):
                raise error(line.tree, ".type(...) of a graph may name a dtype or a class of torch's tensors")
            return self._create(line, "call_method", target, args, kwargs)
        return self._create(line, "call_function", self._function(line, found), args, kwargs)

    def _function(self, line: Line, found: Operation) -> Any:
        target = found.target
        if found.word:
            return self._literals.named_callable(found.word, target)
        if target in ("getattr", NUMPY_ATTRIBUTE):
            # Both read an attribute: no more than the data attributes of a tensor.
            match found.args:
                case [_, ast.Constant(value=str(attribute))] if attribute in ATTRIBUTES:
                    pass
                case _:
                    fact = "a graph may read only the data attributes of a tensor"
                    raise error(line.tree, fact)
        if target == "getattr":
            return getattr
        if target.split(".")[0] not in _ROOTS:
            raise error(line.tree, f"{target} is nothing that a graph can call")
        return self._literals.resolve(target)

    def _placeholder(self, line: Line, found: Operation) -> Node:
        target = line.name
        match found.args:
            case ():
                pass
            case (ast.Constant(value=str(target)),):
                pass
            case _:
                raise error(line.tree, "arg(...) takes the name of an input", 'write arg("name")')
        default = tuple(self._literals.read(item.value) for item in found.keywords if item.arg == "default")
        if len(default) != len(found.keywords):
            raise error(line.tree, "arg(...) takes default= alone")
        if not is_placeholder_target(target) or keyword.iskeyword(target):
            raise error(line.tree, f"{target!r} is no name of an input")
        return self._create(line, "placeholder", target, default)

    def _create(
        self, line: Line, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Node:
        # FX writes names into the code it generates, so only identifiers may pass.
        if not resolver.IDENTIFIER.match(line.name) or keyword.iskeyword(line.name):
            raise error(line.tree, f"{line.name!r} is no name for a node")
        node = self._graph.create_node(op, target, args, kwargs or {}, name=line.name)
        if node.name != line.name:
            node.name = line.name
        return node


@contextmanager
def _at_line(tree: ast.AST) -> Iterator[None]:
    """Prefix errors inside the body with the line of `tree`, unless they name a line already."""
    try:
        yield
    except GraphTextError as failure:
        if failure.fact.startswith("line "):
            raise
        raise error(tree, failure.fact, failure.next_step) from None


def _with_graph(module: GraphModule, graph: Graph) -> GraphModule:
    """Return the module with this graph; interpreted where FX cannot generate code for it.

    FX writes arguments by their `repr`, which is no code for tensors, generators, enums and symbolic numbers.
    """
    opaque: list[Any] = []
    for node in graph.nodes:
        torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda leaf: opaque.append(leaf) if isinstance(leaf, _OPAQUE) else None
        )
    try:
        module.graph = graph
    except (SyntaxError, NameError):  # NameError: a default of complex(0, nan) becomes `nanj`
        opaque.append(graph)
    if opaque:
        module.__dict__["forward"] = lambda *args: Interpreter(module).run(*args)
    return module


def _holds(module: Any, name: str) -> bool:
    return isinstance(module, torch.nn.Module) and any(name in held for held in own_state(module)[:3])
