"""The class `Repro` of an artefact as graph text: what FX generates becomes one line per node.

Each statement keeps the number of its line, so the errors of the graph's reader name lines of the artefact.
FX writes some nodes as several statements (`x += y; z = x`), deletes variables (`x = None`) and names
functions by globals that only its own process has (`_operator_setitem`): these are translated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrepro.graph_text.syntax import DTYPES, HEADER, dotted_name, own_path
from torchrepro.interchange.artefact import (
    LARGEST,
    ArtefactError,
    Input,
    NumberInput,
    TensorInput,
    TensorState,
    device_name,
    dtype_name,
    shown,
    size_of,
)

_GLOBALS = re.compile(r"_?(operator|math)_(\w+)\Z", re.ASCII)
"""How FX calls a function of these modules in the code that it generates."""
_SHORT = {name: short for short, name in DTYPES.items()}
_IN_PLACE: dict[type[ast.operator], str] = {
    getattr(ast, name): f"operator.i{function}"
    for name, function in (
        *(("Add", "add"), ("Sub", "sub"), ("Mult", "mul"), ("Div", "truediv"), ("FloorDiv", "floordiv")),
        *(("Mod", "mod"), ("Pow", "pow"), ("MatMult", "matmul"), ("BitAnd", "and"), ("BitOr", "or")),
        *(("BitXor", "xor"), ("LShift", "lshift"), ("RShift", "rshift")),
    )
}
_INSTEAD = "run the program itself under torchrepro run, which keeps them"


@dataclass(frozen=True, slots=True)
class FoundClass:
    """A graph as text, and the state that the text refers to."""

    text: str
    state: tuple[TensorState, ...]
    modules: bool


def read_class(definition: ast.ClassDef, inputs: Sequence[Input]) -> FoundClass:
    """Return the graph of a class; ArtefactError for a statement that FX does not generate."""
    methods = {one.name: one for one in definition.body if isinstance(one, ast.FunctionDef)}
    if methods.keys() - {"__init__"} != {"forward"} or len(definition.body) != len(methods):
        raise ArtefactError(definition, "the class Repro has more than __init__ and forward")
    reader = _ClassReader(definition)
    if "__init__" in methods:
        for statement in methods["__init__"].body:
            reader.state_line(statement)
    reader.forward(methods["forward"], inputs)
    return FoundClass(reader.text(), tuple(reader.state), reader.modules)


@dataclass
class _ClassReader:
    definition: ast.ClassDef
    state: list[TensorState] = field(default_factory=list)
    modules: bool = False
    _lines: dict[int, list[str]] = field(default_factory=dict)
    _renamed: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        # The header takes the place of line 1: above the class there are imports at least.
        numbers = range(2, max(self._lines) + 1)
        return "\n".join([HEADER, *("; ".join(self._lines.get(number, ())) for number in numbers)])

    def _put(self, tree: ast.AST, text: str, indent: str) -> None:
        number = int(getattr(tree, "lineno", 0))
        there = self._lines.setdefault(number, [])
        there.append(text if there else indent + text)

    # `__init__`

    def state_line(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(), attr="__init__"))):
                return
            case ast.Expr(
                value=ast.Call(func=function, args=[ast.Constant(value=str(name)), value], keywords=[])
            ) if own_path(function) == "register_buffer":
                self._tensor(name, value, statement, parameter=False)
                return
            case ast.Assign(targets=[ast.Attribute() as target], value=ast.Call() as value):
                name = own_path(target) or ""
                inner = value.args[0] if len(value.args) == 1 else value
                if dotted_name(value.func) == "torch.nn.Parameter":
                    self._tensor(name, inner, statement, parameter=True)
                else:
                    self._module(name, value, statement)
                return
        raise ArtefactError(statement, f"{shown(statement)} is no state of a graph")

    def _module(self, name: str, call: ast.Call, statement: ast.stmt) -> None:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("to", "cuda"):
            raise ArtefactError(
                statement, f"the module {name} is on another device, which is not read", _INSTEAD
            )
        type_ = (dotted_name(call.func) or "").removeprefix("torch.nn.")
        if not re.fullmatch(r"[A-Z]\w*", type_, re.ASCII):
            raise ArtefactError(statement, f"{shown(call)} is no module of torch.nn")
        self.modules = True
        arguments = [ast.unparse(_translated(arg)) for arg in call.args]
        named = [f"{item.arg}={ast.unparse(_translated(item.value))}" for item in call.keywords]
        given = ", ".join([*self._named(type_, arguments, statement), *named])
        self._put(statement, f"self.{name} = torch.nn.{type_}({given})", "    ")

    def _named(self, type_: str, arguments: list[str], statement: ast.stmt) -> list[str]:
        """Return positional arguments by their names: graph text takes no others."""
        if not arguments:
            return []
        import inspect

        from torch import nn

        known = getattr(nn, type_, None)
        if not isinstance(known, type) or not issubclass(known, nn.Module):
            raise ArtefactError(statement, f"torch.nn has no module {type_}")
        names = list(inspect.signature(known).parameters)
        if len(names) < len(arguments):
            raise ArtefactError(statement, f"{type_} takes {len(names)} arguments")
        return [f"{name}={text}" for name, text in zip(names, arguments, strict=False)]

    def _tensor(self, name: str, value: ast.expr, statement: ast.stmt, *, parameter: bool) -> None:
        if not name.isidentifier():
            raise ArtefactError(statement, f"{name[:60]!r} is no name of state")
        device = "cpu"
        match value:
            case ast.Call(
                func=ast.Attribute(value=ast.Call() as inner, attr="to"), args=[place], keywords=[]
            ):
                device, value = device_name(place), inner
        if not isinstance(value, ast.Call):
            raise ArtefactError(statement, f"{shown(value)} is no tensor")
        given = {item.arg: item.value for item in value.keywords}
        dtype = dtype_name(given["dtype"]) if "dtype" in given else ""
        device = device_name(given["device"]) if "device" in given else device
        shape: tuple[int, ...] | None = None
        values: Any = None
        match dotted_name(value.func), value.args:
            case "tensor" | "torch.tensor", [tree] if "size" not in given:
                values = _numbers(tree)
            case "tensor" | "torch.tensor", _:
                shape = _shape(given["size"])
            case "torch.randn", [tree]:
                shape = _shape(tree)
            case "torch.randint", _ if "size" in given:
                shape = _shape(given["size"])
            case _:
                raise ArtefactError(statement, f"{shown(value)} is no tensor that torch writes")
        self.state.append(TensorState(name, parameter, shape, values, dtype, device, int(statement.lineno)))
        word = "parameter" if parameter else "buffer"
        self._put(statement, f'self.{name} = {word}("{name}")', "    ")

    # `forward`

    def forward(self, forward: ast.FunctionDef, inputs: Sequence[Input]) -> None:
        self._lines[self.definition.lineno] = ["class Graph:"]
        statements = list(_statements(forward.body))
        parameters = forward.args.args[1:]
        special = (forward.args.vararg, forward.args.kwarg, forward.args.kwonlyargs, forward.args.posonlyargs)
        if any(special) or forward.args.defaults or not forward.args.args or forward.decorator_list:
            raise ArtefactError(forward, "forward takes more than self and plain parameters")
        if len(parameters) != len(inputs):
            fact = f"the graph takes {len(parameters)} inputs, and load_args loads {len(inputs)}"
            raise ArtefactError(forward, fact)
        names = [parameter.arg for parameter in parameters]
        aliases: dict[str, str] = {}
        for statement in statements:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=given)) if given in names:
                    aliases.setdefault(given, name)
        written = {aliases.get(name, name) for name in names}
        written |= {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)}
        self._renamed = _unreserved(written)
        signature = ["self"]
        for name, value in zip(names, inputs, strict=True):
            variable = aliases.get(name, name)
            signature.append(f'{self._variable(variable)}{_note(value)} = arg("{name}")')
        self._lines[forward.lineno] = [f"    def forward({', '.join(signature)}):"]
        self._body(statements, names)
        if not statements or not isinstance(statements[-1], ast.Return):
            raise ArtefactError(forward, "forward returns nothing")

    def _body(self, statements: Sequence[ast.stmt], names: Sequence[str]) -> None:
        pending: dict[str, ast.AugAssign] = {}
        # Operations in place whose result has no name yet, by the variable that they change.
        for statement in statements:
            match statement:
                case ast.Assign(value=ast.Constant(value=None)):
                    continue  # the end of a variable's life
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=given)) if given in pending:
                    changed = pending.pop(given)
                    function = _IN_PLACE[type(changed.op)]
                    value = f"{function}({self._variable(given)}, {self._expression(changed.value)})"
                    self._put(statement, f"{self._variable(name)} = {self._named_node(name, value)}", " " * 8)
                case ast.Assign(targets=[ast.Name()], value=ast.Name(id=given)) if given in names:
                    continue  # the name of the placeholder's node: it stands in the signature
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    text = self._named_node(name, self._expression(value))
                    self._put(statement, f"{self._variable(name)} = {text}", " " * 8)
                case ast.AugAssign(target=ast.Name(id=name)) if type(statement.op) in _IN_PLACE:
                    pending[name] = statement
                case ast.Return(value=ast.expr() as value) if statement is statements[-1]:
                    self._put(statement, f"return {self._expression(value)}", " " * 8)
                case _:
                    raise ArtefactError(statement, f"{shown(statement)} is no node of a graph")
        for changed in pending.values():
            raise ArtefactError(changed, f"{shown(changed)} has no result")

    def _variable(self, name: str) -> str:
        return self._renamed.get(name, name)

    def _named_node(self, name: str, value: str) -> str:
        return f'named("{name}", {value})' if name in self._renamed else value

    def _expression(self, tree: ast.expr) -> str:
        return ast.unparse(_translated(tree, self._renamed))


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements; docstrings and `pass` are none."""
    for statement in body:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                continue
        yield statement


def _unreserved(names: set[str]) -> dict[str, str]:
    """Return other names for variables whose names have a meaning in graph text."""
    from torchrepro.graph_text.literals import RESERVED
    from torchrepro.graph_text.syntax import unused_name

    ours = RESERVED - _PYTHONS
    return {name: unused_name(f"{name}_", names) for name in sorted(names & ours)}


_PYTHONS = frozenset(
    {
        *(
            "torch",
            "operator",
            "math",
            "builtins",
            "self",
            "inf",
            "nan",
            "slice",
            "range",
            "complex",
            "getattr",
        ),
        *("set", "frozenset", "abs", "all", "any", "bool", "dict", "divmod", "float", "int", "len", "list"),
        *("max", "min", "pow", "round", "str", "sum", "tuple", "bytes"),
    }
)
"""Names that mean the same in FX's code as in graph text: FX gives them to no variable."""


def _note(value: Input) -> str:
    """Return the annotation of an input with symbolic sizes; the sizes of others follow from their values."""
    match value:
        case NumberInput(expression=str(text)) if text:
            return f": sym({text})"
        case TensorInput(shape=shape, stride=stride) if any(size.expression for size in (*shape, *stride)):
            sizes = ", ".join(map(str, shape))
            steps = ""
            if any(step.expression for step in stride):
                steps = f".stride({', '.join(map(str, stride))})"
            return f": {_SHORT.get(value.dtype, value.dtype)}[{sizes}]{steps}"
    return ""


class _Translator(ast.NodeTransformer):
    """Rewrites what FX generates and graph text spells otherwise."""

    def __init__(self, renamed: dict[str, str]) -> None:
        self._renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id == "Ellipsis":
            return ast.Constant(value=...)
        found = _GLOBALS.match(node.id)
        if found is not None:
            return ast.Attribute(ast.Name(found[1], ast.Load()), found[2], ast.Load())
        return ast.Name(self._renamed.get(node.id, node.id), ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name = dotted_name(node.func) or ""
        if name in ("device", "torch.device"):
            made = ast.Constant(value=device_name(node))
            return ast.Call(ast.Attribute(ast.Name("torch", ast.Load()), "device", ast.Load()), [made], [])
        if "triton_kernel_wrapper" in name:
            raise ArtefactError(
                node, "the graph calls a Triton kernel, whose code is not taken over", _INSTEAD
            )
        match node:
            case ast.Call(
                func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(attribute)) as key]
            ):
                if isinstance(owner, ast.Name) and owner.id == "self":
                    return ast.Subscript(owner, key, ast.Load())
                return ast.Attribute(self.visit(owner), attribute, ast.Load())
        return self.generic_visit(node)  # type: ignore[return-value]


def _translated(tree: ast.expr, renamed: dict[str, str] | None = None) -> ast.expr:
    made: ast.expr = _Translator(renamed or {}).visit(tree)
    return ast.fix_missing_locations(ast.copy_location(made, tree))


def _shape(tree: ast.expr) -> tuple[int, ...]:
    if not isinstance(tree, ast.List | ast.Tuple):
        raise ArtefactError(tree, f"{shown(tree)} is no shape")
    return tuple(size_of(item, {}).value for item in tree.elts)


def _numbers(tree: ast.expr) -> Any:
    """Return nested lists of numbers: the values of a tensor as `repr` prints them."""
    match tree:
        case ast.List(elts=items):
            return [_numbers(item) for item in items]
        case ast.Constant(value=bool() | int() | float() | complex() as value):
            if isinstance(value, int) and abs(value) > 2 * LARGEST:
                raise ArtefactError(tree, f"{shown(tree)} does not fit into a tensor")
            return value
        case ast.Name(id="inf" | "nan" as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.List):
            return -_numbers(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
            real, imaginary = _numbers(left), _numbers(right)
            if isinstance(imaginary, complex) and isinstance(real, int | float):
                return real + imaginary if isinstance(sign, ast.Add) else real - imaginary
    raise ArtefactError(tree, f"{shown(tree)} is no value of a tensor")
