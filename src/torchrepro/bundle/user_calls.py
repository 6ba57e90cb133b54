"""A whole call of the user's code as a repro: its graph is the call itself, its inputs the arguments.

Capture has its own failures (a lost side effect, a wrong tangent), which no captured graph shows. Arguments
that are data become inputs; functions, modules and other objects among them become attributes of the graph,
which the bundle keeps as source.
"""

from __future__ import annotations

import functools
import keyword
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.bundle.manifest import OpaqueEntry
from torchrepro.bundle.values import pack_values
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.nouns.repro import Ambient, Compiler, Place, Repro
from torchrepro.torch_api.modules import compiled_function, compiled_module

CALLEE = "callee"
"""The attribute of a graph that is compiled, where it is an argument of the call and not what is called."""
ORIGINAL = "original"
"""The attribute that is the same object and is not compiled."""


def repro_of_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    compiler: Compiler,
    ambient: Ambient,
    call: Callable[..., Any] | None = None,
    post: Callable[..., Any] | None = None,
) -> Repro:
    """Return the call `function(*args, **kwargs)` as a repro. It holds the live objects.

    With `call` it is `call(function, args)`, and with `post` the result is `post(function, result, args)`:
    there only the function itself is compiled, so it is an attribute (`CALLEE`) of the graph.
    """
    builder = _Builder()
    graph, around = builder.graph, call is not None or post is not None
    target, given, named = (
        (function, tuple(args), kwargs) if around else _plain(function, tuple(args), kwargs)
    )
    arguments = builder.node(given, "arg")
    options = {name: builder.node(value, name) for name, value in named.items()}
    if not around and isinstance(target, torch.nn.Module):
        builder.root.add_module("model", target)
        result = graph.call_module("model", arguments, options)
    elif not around:
        result = graph.call_function(_representable(target), arguments, options)
    else:
        builder.root.__dict__[CALLEE] = builder.root.__dict__[ORIGINAL] = function
        callee = graph.create_node("get_attr", CALLEE, name=CALLEE)
        if call is not None:
            result = graph.call_function(call, (callee, arguments))
        else:
            result = graph.call_function(operator.call, (callee, *arguments), options)
    if post is not None:
        original = graph.create_node("get_attr", ORIGINAL, name=ORIGINAL)
        result = graph.call_function(post, (original, result, arguments))
    graph.output(result)
    module = GraphModule(builder.root, graph)
    return Repro(module, tuple(builder.inputs), Place.BEFORE_CAPTURE, compiler, ambient)


def callee_of(graph: GraphModule) -> Callable[..., Any]:
    """Return the function or module of a graph that is compiled: all else is plain Python around it."""
    if any(node.op == "get_attr" and node.target == CALLEE for node in graph.graph.nodes):
        found: Callable[..., Any] = getattr(graph, CALLEE)
        return found
    node = next(node for node in graph.graph.nodes if node.op in ("call_function", "call_module"))
    return graph.get_submodule(node.target) if isinstance(node.target, str) else node.target


def run_call(graph: GraphModule, inputs: Sequence[Any], callee: Callable[..., Any]) -> Any:
    """Run the call on these inputs with `callee`, the compiled form of what it calls or that itself."""
    values: dict[Node, Any] = {}
    given, own = iter(inputs), callee_of(graph)
    for node in graph.graph.nodes:
        match node.op:
            case "placeholder":
                values[node] = next(given)
            case "get_attr":
                held = operator.attrgetter(str(node.target))(graph)
                values[node] = callee if node.target == CALLEE else held
            case "call_function" | "call_module":
                target = node.target
                function = graph.get_submodule(target) if isinstance(target, str) else target
                args, kwargs = _filled(node.args, values), _filled(node.kwargs, values)
                values[node] = (callee if function is own else function)(*args, **kwargs)
            case "output":
                return _filled(node.args[0], values)
    raise CannotSerialise("the graph returns nothing", next_step="save the call again")


class _Builder:
    """The graph under construction; an object that is met again is the same input."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.inputs: list[Any] = []
        self._nodes: dict[int, Node] = {}
        self._objects: list[Node] = []
        self._names: set[str] = set()

    def node(self, value: Any, name: str) -> Any:
        """Return the value with nodes in place of its leaves."""
        if type(value) in (list, tuple):
            return type(value)(self.node(item, f"{name}_{index}") for index, item in enumerate(value))
        if type(value) is dict and all(isinstance(key, str | int) for key in value):
            return {key: self.node(item, f"{name}_{key}") for key, item in value.items()}
        if id(value) not in self._nodes or isinstance(value, bool | int | float | str | None):
            self._nodes[id(value)] = self._leaf(value, name)
        return self._nodes[id(value)]

    def _leaf(self, value: Any, name: str) -> Node:
        if not _is_data(value):
            attribute = f"object_{len(self._objects)}"
            setattr(self.root, attribute, value)
            self._objects.append(self.graph.create_node("get_attr", attribute))
            return self._objects[-1]
        self.inputs.append(value)
        if not name.isidentifier() or keyword.iskeyword(name) or name in self._names:
            name = f"input_{len(self.inputs)}"
        self._names.add(name)
        node = self.graph.placeholder(name)
        if self._objects:
            self._objects[0].prepend(node)  # inputs stand before everything else
        return node


def _is_data(value: Any) -> bool:
    """Return whether a bundle keeps the value without any code."""
    if isinstance(value, torch.Tensor):
        return True
    return not isinstance(pack_values({"value": value}).entries["value"], OpaqueEntry)


def _plain(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """Return the call without wrappers: compiled forms, partial functions and bound methods taken apart."""
    inner = compiled_function(function) or compiled_module(function)
    if inner is not None:
        return _plain(inner, args, kwargs)
    if isinstance(function, functools.partial):
        return _plain(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if isinstance(function, types.MethodType):
        return function.__func__, (function.__self__, *args), kwargs
    if isinstance(function, torch.nn.Module | types.FunctionType | types.BuiltinFunctionType):
        return function, args, kwargs
    return type(function).__call__, (function, *args), kwargs


def _representable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function in a form that FX can have in a graph: a lambda has no name."""
    if getattr(function, "__name__", "") != "<lambda>" or not isinstance(function, types.FunctionType):
        return function
    named = types.FunctionType(
        function.__code__, function.__globals__, "function", function.__defaults__, function.__closure__
    )
    named.__kwdefaults__ = function.__kwdefaults__
    named.__dict__.update(function.__dict__)
    return named


def _filled(value: Any, values: Mapping[Node, Any]) -> Any:
    """Return arguments with values in place of nodes, in plain containers again."""
    if isinstance(value, Node):
        return values[value]
    if isinstance(value, list | tuple):
        items = [_filled(item, values) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    return value
