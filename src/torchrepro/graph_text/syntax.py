"""The syntax of graph text, read without torch: graphs, their state and one line per node.

The text is parsed as Python and never executed. Everything that reads it (the parser, the picture of a graph,
the standalone script) starts from `read_syntax`, so an unknown form is refused in one place.
"""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass
from typing import Any

from torchrepro.nouns.errors import GraphTextError

HEADER = "# torchrepro graph 1. Data in the shape of Python: it is parsed, never executed."
NUMPY_WORDS = ("numpy_function", "numpy_method", "numpy_operator")
"""Words that name a callable by a string: `numpy_function("linalg.norm")(x)`."""

DTYPES = {
    f"{short}{bits}": f"{name}{bits}"
    for short, name, sizes in (
        ("f", "float", (16, 32, 64)),
        ("bf", "bfloat", (16,)),
        ("i", "int", (8, 16, 32, 64)),
        ("u", "uint", (8, 16, 32, 64)),
        ("c", "complex", (32, 64, 128)),
    )
    for bits in sizes
} | {"b8": "bool"}
"""The short names of dtypes in notes, and torch's own; other dtypes bear torch's."""

_CORRECT = "correct the text, or take the bundle again"
_VERSION = re.compile(r"# torchrepro graph (\d+)\b")

_BINARY: tuple[tuple[str, type[ast.AST], Callable[[Any, Any], Any]], ...] = (
    ("+", ast.Add, operator.add),
    ("-", ast.Sub, operator.sub),
    ("*", ast.Mult, operator.mul),
    ("/", ast.Div, operator.truediv),
    ("//", ast.FloorDiv, operator.floordiv),
    ("%", ast.Mod, operator.mod),
    ("**", ast.Pow, operator.pow),
    ("@", ast.MatMult, operator.matmul),
    ("&", ast.BitAnd, operator.and_),
    ("|", ast.BitOr, operator.or_),
    ("^", ast.BitXor, operator.xor),
    ("<<", ast.LShift, operator.lshift),
    (">>", ast.RShift, operator.rshift),
    ("==", ast.Eq, operator.eq),
    ("!=", ast.NotEq, operator.ne),
    ("<", ast.Lt, operator.lt),
    ("<=", ast.LtE, operator.le),
    (">", ast.Gt, operator.gt),
    (">=", ast.GtE, operator.ge),
)
_UNARY: tuple[tuple[str, type[ast.AST], Callable[[Any], Any]], ...] = (
    ("-", ast.USub, operator.neg),
    ("+", ast.UAdd, operator.pos),
    ("~", ast.Invert, operator.invert),
    ("not ", ast.Not, operator.not_),
)
INFIX: dict[Callable[..., Any], str] = {function: sign for sign, _, function in _BINARY}
PREFIX: dict[Callable[..., Any], str] = {function: sign for sign, _, function in _UNARY}
AUGMENTED: dict[Callable[..., Any], str] = {
    getattr(operator, f"i{function.__name__.rstrip('_')}"): f"{sign}="
    for sign, tree, function in _BINARY
    if issubclass(tree, ast.operator)
}
_FUNCTIONS = {tree: f"operator.{function.__name__}" for _, tree, function in (*_BINARY, *_UNARY)}


@dataclass(frozen=True, slots=True)
class Line:
    """An input, a node or the output of a graph: `variable: note = value`."""

    variable: str
    """Empty for the output."""
    name: str
    """Of the node: the variable, unless the text says `named("name", ...)`."""
    value: ast.expr | None
    """None for an input without `arg(...)`."""
    note: ast.expr | None
    tree: ast.AST
    comment: str | None = None
    """The last comment above the line: where in the user's program the node comes from."""

    @property
    def is_input(self) -> bool:
        match self.value:
            case None | ast.Call(func=ast.Name(id="arg")):
                return bool(self.variable)
        return False


@dataclass(frozen=True, slots=True)
class State:
    """An attribute of the graph's module: `self.path: note = value`."""

    path: str
    value: ast.expr
    note: ast.expr | None


@dataclass(frozen=True, slots=True)
class GraphSyntax:
    """One graph; nested graphs stand in its state, in the order of the text."""

    name: str
    path: str
    """Where the graph is attached to the one around it."""
    same_as: str | None
    """The path of an earlier graph that this one is; it has no lines of its own then."""
    state: tuple[State | GraphSyntax, ...]
    lines: tuple[Line, ...]
    tree: ast.ClassDef

    @property
    def inputs(self) -> list[Line]:
        return [line for line in self.lines if line.is_input]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a node computes, in FX's terms, with the arguments still as syntax."""

    op: str
    target: str
    """The path of an attribute, the name of a method, or the dotted path of a function."""
    args: tuple[ast.expr, ...] = ()
    keywords: tuple[ast.keyword, ...] = ()
    word: str = ""
    """`user` or one of NUMPY_WORDS, where the target is given as a string."""


def read_syntax(text: str) -> GraphSyntax:
    """Return the graph that a text describes; GraphTextError with the line for anything else."""
    try:
        tree = _parsed(text)
        match tree.body:
            case [ast.ClassDef(name="Graph", bases=[], keywords=[]) as definition]:
                return _Reader(text).graph(definition)
    except RecursionError:
        raise GraphTextError("the graph's text is nested too deeply", next_step="flatten it") from None
    raise GraphTextError("the text holds no graph", next_step="it must be one class named Graph")


def operation(line: Line, variables: Collection[str] | Mapping[str, Any]) -> Operation:
    """Return what a line computes; `variables` are the names defined above it."""
    value = line.value
    path = None if value is None else own_path(value)
    if path is not None:
        return Operation("get_attr", path)
    match value:
        case None:
            return Operation("placeholder", line.name)
        case (
            ast.BinOp(left=left, op=sign, right=right)
            | ast.Compare(left=left, ops=[sign], comparators=[right])
        ) if type(sign) in _FUNCTIONS:
            return Operation("call_function", _FUNCTIONS[type(sign)], (left, right))
        case ast.UnaryOp(op=sign, operand=operand):
            return Operation("call_function", _FUNCTIONS[type(sign)], (operand,))
        case ast.Subscript(value=base, slice=index):
            return Operation("call_function", "operator.getitem", (base, index))
        case ast.Attribute(value=ast.Name(id=base) as owner, attr=attribute) if base in variables:
            return Operation("call_function", "getattr", (owner, ast.Constant(attribute)))
        case ast.Call():
            return _call(value, variables)
    raise error(value, f"{ast.unparse(value)} is no node", "a node is a call or an operation")


def _call(call: ast.Call, variables: Collection[str]) -> Operation:
    starred = [arg for arg in call.args if isinstance(arg, ast.Starred)]
    if starred or any(item.arg is None for item in call.keywords):
        raise error(call, "a graph has no * arguments")
    args, keywords = tuple(call.args), tuple(call.keywords)
    path = own_path(call.func)
    if path is not None:
        return Operation("call_module", path, args, keywords)
    match call.func:
        case ast.Call(func=ast.Name(id=word), args=[ast.Constant(value=str(target))], keywords=[]) if (
            word == "user" or word in NUMPY_WORDS
        ):
            return Operation("call_function", target, args, keywords, word)
        case ast.Attribute(value=ast.Name(id=base) as owner, attr=method) if base in variables:
            return Operation("call_method", method, (owner, *args), keywords)
        case ast.Name(id="arg"):
            return Operation("placeholder", "", args, keywords)
        case ast.Name(id="call_method" | "call_module" | "get_attr" as op):
            match args:
                case (ast.Constant(value=str(target)), *rest):
                    return Operation(op, target, tuple(rest), keywords)
            raise error(call, f"{op}(...) starts with a string")
    dotted = dotted_name(call.func)
    if dotted is None:
        raise error(call, f"{ast.unparse(call.func)} is nothing that a graph can call")
    return Operation("call_function", dotted if "." in dotted else f"builtins.{dotted}", args, keywords)


def _parsed(text: str) -> ast.Module:
    version = _VERSION.match(text)
    if version is not None and int(version[1]) > 1:
        raise GraphTextError(
            f"the graph is of format {version[1]} and this version reads format 1",
            next_step="upgrade torchrepro",
        )
    # A carriage return ends a line for Python but not for us: a comment could hide code in what FX generates.
    if not text.replace("\n", "").isprintable():
        strange = next(character for character in text if not character.isprintable() and character != "\n")
        raise GraphTextError(
            f"the graph's text holds the control character {strange!r}", next_step="write it as an escape"
        )
    try:
        return ast.parse(text)
    except SyntaxError as failure:
        raise GraphTextError(f"line {failure.lineno}: {failure.msg}", next_step=_CORRECT) from None
    except (ValueError, MemoryError) as failure:
        fact = f"the graph's text cannot be parsed: {failure}"
        raise GraphTextError(fact, next_step="shorten it") from None


class _Reader:
    """Reads the graphs of one text."""

    def __init__(self, text: str) -> None:
        self._comments = {
            number: line.strip().removeprefix("#").strip()
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip().startswith("#")
        }

    def graph(self, definition: ast.ClassDef, path: str = "") -> GraphSyntax:
        if definition.decorator_list or getattr(definition, "type_params", None):
            raise error(definition, "a graph's class has no decorators")
        state: list[State | GraphSyntax] = []
        forward: ast.FunctionDef | None = None
        for statement in definition.body:
            match statement:
                case ast.ClassDef():
                    state.append(self._nested(statement))
                case ast.FunctionDef(name="forward") if forward is None:
                    forward = statement
                case ast.Assign(targets=[target], value=value):
                    state.append(State(_attribute(target), value, None))
                case ast.AnnAssign(target=target, annotation=note, value=ast.expr() as value):
                    state.append(State(_attribute(target), value, note))
                case _:
                    raise error(statement, "a graph's class holds state, graphs and one forward")
        if forward is None:
            raise error(definition, f"the graph {definition.name} has no forward")
        return GraphSyntax(definition.name, path, None, tuple(state), tuple(self._lines(forward)), definition)

    def _nested(self, definition: ast.ClassDef) -> GraphSyntax:
        options: dict[str | None, str] = {}
        for option in definition.keywords:
            match option:
                case ast.keyword(arg="at" | "same_as", value=ast.Constant(value=str(path))):
                    options[option.arg] = path
                case _:
                    raise error(definition, "a nested graph takes at= and same_as= alone")
        if definition.bases:
            raise error(definition, "a graph's class has no bases")
        path = options.get("at", definition.name)
        if "same_as" in options:
            return GraphSyntax(definition.name, path, options["same_as"], (), (), definition)
        return self.graph(definition, path)

    def _lines(self, forward: ast.FunctionDef) -> list[Line]:
        lines = _parameters(forward)
        above, comment = forward.lineno, None
        for statement in forward.body:
            for number in range(above, statement.lineno):
                comment = self._comments.get(number, comment)
            above = statement.lineno
            last = statement is forward.body[-1]
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                    lines.append(Line(variable, *_named(variable, value), None, statement, comment))
                case ast.AnnAssign(target=ast.Name(id=variable), annotation=note, value=ast.expr() as value):
                    lines.append(Line(variable, *_named(variable, value), note, statement, comment))
                case ast.Return(value=ast.expr() as value) if last:
                    lines.append(Line("", *_named("output", value), None, statement, comment))
                case ast.Pass() if last:
                    pass
                case _:
                    raise error(
                        statement,
                        f"{ast.unparse(statement).splitlines()[0]} is no node of a graph",
                        "a line is name = expression, and the last one a return",
                    )
        return lines


def _parameters(forward: ast.FunctionDef) -> list[Line]:
    arguments = forward.args
    special = (arguments.vararg, arguments.kwarg, arguments.kwonlyargs, arguments.posonlyargs)
    extras = (forward.decorator_list, forward.returns, getattr(forward, "type_params", None))
    if any(extras) or any(special) or not arguments.args:
        raise error(forward, "forward takes self and plain parameters")
    if arguments.args[0].arg != "self" or len(arguments.defaults) >= len(arguments.args):
        raise error(forward, "the first parameter of forward is self")
    parameters = arguments.args[1:]
    defaults = [None] * (len(parameters) - len(arguments.defaults)) + list(arguments.defaults)
    lines = [
        Line(parameter.arg, parameter.arg, default, parameter.annotation, parameter)
        for parameter, default in zip(parameters, defaults, strict=True)
    ]
    for line in lines:
        if not line.is_input:
            raise error(line.tree, "an input is described by arg(...)", 'write = arg("name", default=...)')
    return lines


def _named(variable: str, value: ast.expr) -> tuple[str, ast.expr]:
    """Return name and value of a node; a name that is no identifier is written `named("name", ...)`."""
    match value:
        case ast.Call(func=ast.Name(id="named"), args=[ast.Constant(value=str(name)), inner], keywords=[]):
            return name, inner
    return variable, value


def _attribute(target: ast.expr) -> str:
    path = own_path(target)
    if path is None:
        raise error(target, f"{ast.unparse(target)} is no attribute of the graph", "write self.name = ...")
    return path


def dotted_name(tree: ast.expr) -> str | None:
    """Return `a.b.c` as text, None for any other tree."""
    parts: list[str] = []
    while isinstance(tree, ast.Attribute):
        parts.append(tree.attr)
        tree = tree.value
    return ".".join([tree.id, *reversed(parts)]) if isinstance(tree, ast.Name) else None


def own_path(tree: ast.expr) -> str | None:
    """Return the path of `self.a.b` or `self["a.0"]`, None for any other tree."""
    match tree:
        case ast.Subscript(value=ast.Name(id="self"), slice=ast.Constant(value=str(path))):
            return path
    name = dotted_name(tree)
    return name.removeprefix("self.") if name is not None and name.startswith("self.") else None


def dynamic_dimensions(graph: GraphSyntax) -> list[tuple[int, int]]:
    """Return (input, dimension) of every size of an input that is an expression over symbols."""
    found = []
    for position, line in enumerate(graph.inputs):
        note = line.note
        while isinstance(note, ast.Call) and isinstance(note.func, ast.Attribute):
            note = note.func.value
        if isinstance(note, ast.Subscript):
            sizes = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            found += [(position, dim) for dim, size in enumerate(sizes) if not isinstance(size, ast.Constant)]
    return found


def symbol_names(expression: ast.expr) -> list[str]:
    """Return the symbols of an expression over sizes: its names, those of functions excepted."""
    nodes = list(ast.walk(expression))
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return [node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions]


def unused_name(wanted: str, taken: Container[str], *, first: int = 2, join: str = "_") -> str:
    """Return the wanted name, with the first number that makes it unused where it is taken."""
    numbered = (f"{wanted}{join}{number}" for number in itertools.count(first))
    return next(name for name in itertools.chain([wanted], numbered) if name not in taken)


def error(tree: ast.AST, fact: str, next_step: str = _CORRECT) -> GraphTextError:
    """Return the error of one line."""
    return GraphTextError(f"line {getattr(tree, 'lineno', '?')}: {fact}", next_step=next_step)
