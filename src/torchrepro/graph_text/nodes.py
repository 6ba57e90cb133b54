"""The forward of a graph: parameters and lines of the text to nodes."""

from __future__ import annotations

import ast
import keyword
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Graph
from torch.fx.node import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.allowed import ATTRIBUTES
from torchrepro.graph_text.annotations import NOTE_KEY, read_note
from torchrepro.graph_text.literals import LiteralReader, dotted_name, error, own_path
from torchrepro.graph_text.numpy_targets import WORDS
from torchrepro.graph_text.printer import RESERVED, is_placeholder_target
from torchrepro.graph_text.source_lines import annotations_of

_ROOTS = ("torch", "operator", "math", "builtins", "source")

_BINARY: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type[ast.AST], Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
}


class NodeReader:
    """Builds the nodes of one graph, line by line."""

    def __init__(
        self,
        literals: LiteralReader,
        comments: Mapping[int, str],
        check_attribute: Callable[[str, ast.AST], str],
    ) -> None:
        self._literals = literals
        self._comments = comments
        self._check_attribute = check_attribute
        self._graph = Graph()
        self._line = 0
        self._comment: str | None = None

    def read(self, definition: ast.FunctionDef) -> Graph:
        """The graph that a `def forward` describes."""
        arguments = definition.args
        special = (arguments.vararg, arguments.kwarg, arguments.kwonlyargs, arguments.posonlyargs)
        extras = (definition.decorator_list, definition.returns, getattr(definition, "type_params", None))
        if any(extras) or any(special) or not arguments.args:
            raise error(definition, "forward takes self and plain parameters", "remove the rest")
        if arguments.args[0].arg != "self" or len(arguments.defaults) >= len(arguments.args):
            raise error(definition, "the first parameter of forward is self", "put it there")
        self._line = definition.lineno
        parameters = arguments.args[1:]
        defaults = [None] * (len(parameters) - len(arguments.defaults)) + list(arguments.defaults)
        for parameter, default in zip(parameters, defaults, strict=True):
            node = self._placeholder(parameter.arg, default, parameter)
            self._define(parameter.arg, node, parameter.annotation, parameter)
        body = list(definition.body)
        for number, statement in enumerate(body):
            last = number == len(body) - 1
            self._follow_comments(statement)
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                    self._define(variable, self._node(variable, value), None, statement)
                case ast.AnnAssign(target=ast.Name(id=variable), annotation=note, value=ast.expr() as value):
                    self._define(variable, self._node(variable, value), note, statement)
                case ast.Return(value=ast.expr() as value) if last:
                    self._output(value)
                case ast.Pass() if last:
                    pass
                case _:
                    raise error(
                        statement,
                        f"{ast.unparse(statement).splitlines()[0]} is no node of a graph",
                        "a line is name = expression, and the last one a return",
                    )
        return self._graph

    def _follow_comments(self, statement: ast.stmt) -> None:
        for number in range(self._line, statement.lineno):
            if number in self._comments:
                self._comment = self._comments[number]
        self._line = statement.lineno

    def _define(self, variable: str, node: Node, annotation: ast.expr | None, tree: ast.AST) -> None:
        if variable in self._literals.nodes or variable in RESERVED:
            raise error(tree, f"the name {variable} is taken", "use another name")
        self._literals.nodes[variable] = node
        if annotation is not None:
            node.meta[NOTE_KEY] = read_note(annotation)
        node.meta.update(annotations_of(self._comment))

    def _create(
        self,
        name: str,
        tree: ast.AST,
        op: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> Node:
        # FX writes names into the code it generates, so only identifiers may pass.
        if not resolver.IDENTIFIER.match(name) or keyword.iskeyword(name):
            raise error(tree, f"{name!r} is no name for a node", "use an identifier")
        node = self._graph.create_node(op, target, args, kwargs or {}, name=name)
        if node.name != name:
            node.name = name
        return node

    def _placeholder(self, name: str, tree: ast.expr | None, where: ast.AST) -> Node:
        target, default = name, ()
        match tree:
            case None:
                pass
            case ast.Call(func=ast.Name(id="arg"), args=args, keywords=keywords):
                match args:
                    case []:
                        pass
                    case [ast.Constant(value=str(target))]:
                        pass
                    case _:
                        raise error(tree, "arg(...) takes the name of an input", 'write arg("name")')
                default = tuple(self._literals.read(item.value) for item in keywords if item.arg == "default")
                if len(default) != len(keywords):
                    raise error(tree, "arg(...) takes default= alone", "remove the others")
            case _:
                raise error(tree, "an input is described by arg(...)", 'write = arg("name", default=...)')
        if not is_placeholder_target(target) or keyword.iskeyword(target):
            raise error(where, f"{target!r} is no name of an input", "use an identifier")
        return self._create(name, where, "placeholder", target, default)

    def _output(self, value: ast.expr) -> None:
        name = "output"
        match value:
            case ast.Call(
                func=ast.Name(id="named"), args=[ast.Constant(value=str(name)), inner], keywords=[]
            ):
                value = inner
        self._create(name, value, "output", "output", (self._literals.read(value),))

    def _node(self, variable: str, value: ast.expr) -> Node:
        name = variable
        match value:
            case ast.Call(
                func=ast.Name(id="named"), args=[ast.Constant(value=str(name)), inner], keywords=[]
            ):
                value = inner
        read, nodes = self._literals.read, self._literals.nodes
        path = own_path(value)
        if path is not None:
            return self._create(name, value, "get_attr", self._check_attribute(path, value), ())
        match value:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._create(
                    name, value, "call_function", _BINARY[type(op)], (read(left), read(right))
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _BINARY:
                return self._create(
                    name, value, "call_function", _BINARY[type(op)], (read(left), read(right))
                )
            case ast.UnaryOp(op=op, operand=operand):
                return self._create(name, value, "call_function", _UNARY[type(op)], (read(operand),))
            case ast.Subscript(value=base, slice=index):
                arguments = (read(base), self._literals.index(index))
                return self._create(name, value, "call_function", operator.getitem, arguments)
            case ast.Attribute(value=ast.Name(id=base), attr=attribute) if base in nodes:
                if attribute not in ATTRIBUTES:
                    raise error(
                        value, f"a graph may not read .{attribute}", "only a tensor's data attributes"
                    )
                return self._create(name, value, "call_function", getattr, (nodes[base], attribute))
            case ast.Call():
                return self._call(name, value)
        raise error(value, f"{ast.unparse(value)} is no node", "a node is a call or an operation")

    def _call(self, name: str, call: ast.Call) -> Node:
        if any(isinstance(arg, ast.Starred) for arg in call.args) or any(
            item.arg is None for item in call.keywords
        ):
            raise error(call, "a graph has no * arguments", "write them out")
        function = call.func
        path = own_path(function)
        if path is not None:
            return self._create(
                name, call, "call_module", self._check_attribute(path, call), *self._arguments(call)
            )
        match function:
            case ast.Call(func=ast.Name(id="user"), args=arguments, keywords=[]):
                target = self._literals.user(function, arguments)
                return self._create(name, call, "call_function", target, *self._arguments(call))
            case ast.Call(func=ast.Name(id=word), args=arguments, keywords=[]) if word in WORDS:
                target = self._literals.numpy(function, word, arguments)
                return self._create(name, call, "call_function", target, *self._arguments(call))
            case ast.Attribute(value=ast.Name(id=base), attr=method) if base in self._literals.nodes:
                args, kwargs = self._arguments(call)
                return self._method(name, call, method, (self._literals.nodes[base], *args), kwargs)
            case ast.Name(id="arg"):
                return self._placeholder(name, call, call)
            case ast.Name(id="call_method" | "call_module" | "get_attr" as op):
                args, kwargs = self._arguments(call)
                match args:
                    case (str(target), *rest):
                        if op == "call_method":
                            return self._method(name, call, target, tuple(rest), kwargs)
                        return self._create(
                            name, call, op, self._check_attribute(target, call), tuple(rest), kwargs
                        )
                raise error(call, f"{op}(...) starts with a string", "name what is called")
        dotted = dotted_name(function)
        if dotted is None or (dotted.split(".")[0] not in _ROOTS and not resolver.is_builtin(dotted)):
            raise error(
                call, f"{ast.unparse(function)} is nothing that a graph can call", "call a torch function"
            )
        full = dotted if "." in dotted else f"builtins.{dotted}"
        if full == "torch._dynamo.utils.numpy_attr_wrapper":
            self._check_numpy_attribute(call)
        return self._create(
            name, call, "call_function", self._literals.resolve(full, function), *self._arguments(call)
        )

    def _check_numpy_attribute(self, call: ast.Call) -> None:
        """It is `getattr` on an array, and may read no more than that on a tensor."""
        match call.args:
            case [_, ast.Constant(value=str(attribute))] if attribute in ATTRIBUTES:
                return
        raise error(call, "a graph may read only the data attributes of an array", "remove the node")

    def _method(
        self, name: str, tree: ast.AST, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Node:
        if not resolver.is_method(method):
            raise error(
                tree, f".{method}(...) is no method of tensors that a graph may call", "remove the node"
            )
        return self._create(name, tree, "call_method", method, args, kwargs)

    def _arguments(self, call: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        read = self._literals.read
        return tuple(read(arg) for arg in call.args), {
            str(item.arg): read(item.value) for item in call.keywords
        }
