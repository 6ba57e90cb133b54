"""Expressions over symbolic sizes: from text to sympy and to symbolic numbers; the text is not evaluated."""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch

from torchrepro.graph_text.annotations import SYMBOL_KINDS, expression_of
from torchrepro.nouns.errors import CannotSerialise, GraphTextError
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.fake import DimDynamic, ShapeEnv, ValueRanges, named_next
from torchrepro.torch_api.fake import sympy_functions as torch_sympy

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: torch_sympy.FloorDiv,
    ast.Mod: torch_sympy.Mod,
    ast.BitAnd: sympy.And,
    ast.BitOr: sympy.Or,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
}


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """Return functions by the name sympy prints, torch's own first. Checked on torch 2.11 to 2.15."""
    own = {
        name: found
        for name, found in vars(torch_sympy).items()
        if isinstance(found, type) and issubclass(found, sympy.Basic)
    }
    plain = ("Abs", "Eq", "Ne", "And", "Or", "Not", "Piecewise", "ceiling", "floor", "sqrt", "log", "exp")
    return {name: getattr(sympy, name) for name in (*plain, "Mod")} | own


def to_sympy(tree: ast.expr, symbol: Callable[[str], sympy.Expr]) -> Any:
    """Return the sympy expression that a syntax tree describes; `symbol` gives a meaning to each name."""
    match tree:
        case ast.Constant(value=bool(value)):
            return sympy.true if value else sympy.false
        case ast.Constant(value=int() | float() as value):
            return sympy.sympify(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -to_sympy(operand, symbol)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return sympy.Not(to_sympy(operand, symbol))
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(power))) if abs(power) <= 64:
            return to_sympy(base, symbol) ** power
        case (
            ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right])
        ) if type(op) in _BINARY:
            return _BINARY[type(op)](to_sympy(left, symbol), to_sympy(right, symbol))
        case ast.Tuple(elts=items):
            return tuple(to_sympy(item, symbol) for item in items)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _functions():
            return _functions()[name](*(to_sympy(arg, symbol) for arg in args))
    raise GraphTextError(
        f"{ast.unparse(tree)} is no expression over sizes", next_step="use numbers, symbols and arithmetic"
    )


def symbolic_number_text(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
    """Return `sym(2*s0, s0=4)`: the expression, and the value of each symbol where it is known."""
    kind = next(kind for kind, type_ in SYMBOL_KINDS.items() if isinstance(value, type_))
    expression = expression_of(value)
    if expression is None:
        raise CannotSerialise(
            f"the symbolic number {value} has no expression", next_step="it cannot be kept as data"
        )
    if not isinstance(expression, str):
        return f"{kind}({expression!r})"
    backed = value.node.shape_env.backed_var_to_val  # checked on torch 2.11 to 2.15
    hints = {symbol.name: plain_number(backed.get(symbol)) for symbol in value.node.expr.free_symbols}
    known = "".join(f", {name}={hint!r}" for name, hint in sorted(hints.items()) if hint is not None)
    return f"{kind}({expression}{known})"


def plain_number(value: Any) -> int | float | None:
    """Return a number of sympy as one of Python; None for the ragged size of a nested tensor."""
    if value is None or not value.is_number:
        return None
    return int(value) if value.is_integer else float(value)


class Symbols:
    """The symbols of one graph, all in one ShapeEnv, made when they are first named.

    Without `scalars`, compiling fails where it would make a symbol of a tensor's value (`.item()`).
    """

    def __init__(self, *, scalars: bool = True) -> None:
        self.env = ShapeEnv(allow_scalar_outputs=scalars)
        self._by_name: dict[str, sympy.Expr] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def define(
        self, name: str, hint: int | float | None, lower: int | None = None, upper: int | None = None
    ) -> sympy.Expr:
        """Return the symbol of this name; unbacked (no value until the graph runs) if it has no hint."""
        if name not in self._by_name:
            made = self._unbacked(name) if hint is None else self._backed(name, hint, lower)
            self._by_name[name] = made
            if isinstance(made, sympy.Symbol) and (lower is not None or upper is not None):
                _restrict_range(self.env, made, lower, upper)
        return self._by_name[name]

    def number(self, kind: str, tree: ast.expr, hints: Mapping[str, int | float] | None = None) -> Any:
        """Return a symbolic number from its expression; new names take their value from `hints`."""
        values = hints or {}
        expression = to_sympy(tree, lambda name: self.define(name, values.get(name)))
        return symbolic_number(self.env, kind, expression)

    def parse(self, text: str) -> Any:
        """Return the sympy expression of a dimension's text."""
        return to_sympy(ast.parse(text, mode="eval").body, lambda name: self.define(name, None))

    def _backed(self, name: str, hint: int | float, lower: int | None) -> sympy.Expr:
        positive = True if isinstance(hint, int) and hint > 0 and (lower is None or lower > 0) else None
        with named_next(self.env, name):
            return self.env.create_symbol(
                hint,
                dynamo.ConstantSource(f"symbol_{name}"),  # the source that guards name
                dynamic_dim=DimDynamic.DYNAMIC,
                constraint_dim=None,
                positive=positive,
                do_not_specialize_zero_one=not (isinstance(hint, int) and hint > 1 and (lower or 2) > 1),
            )

    def number_next_unbacked(self, numbers: Iterable[int]) -> None:
        """Give the next symbol without a value the first of these numbers that is still free.

        Checked on torch 2.11 to 2.15.
        """
        free = [number for number in numbers if number >= self.env.unbacked_symint_counter]
        if free:
            self.env.unbacked_symint_counter = min(free)

    def _unbacked(self, name: str) -> sympy.Expr:
        self.number_next_unbacked(int(digits) for digits in re.findall(r"\d+\Z", name))
        number = (
            self.env.create_unbacked_symfloat()
            if name.startswith("zuf")
            else self.env.create_unbacked_symint()
        )
        return number.node.expr


def symbolic_number(env: ShapeEnv, kind: str, expression: Any) -> Any:
    """Return a SymInt, SymFloat or SymBool (a plain number for a constant). Checked on torch 2.11 to 2.15."""
    if kind == "symbool":
        return env.create_symboolnode(expression)
    hint = expression.xreplace(env.backed_var_to_val)
    known = hint if hint.is_number else None
    if kind == "symfloat":
        return env.create_symfloatnode(expression, hint=None if known is None else float(known))
    return env.create_symintnode(expression, hint=None if known is None else int(known))


def _restrict_range(env: ShapeEnv, symbol: sympy.Symbol, lower: int | None, upper: int | None) -> None:
    """Narrow the range of a symbol. Checked on torch 2.11 to 2.15."""
    old = env.var_to_range[symbol]
    env.var_to_range[symbol] = ValueRanges(
        old.lower if lower is None else sympy.Integer(lower),
        old.upper if upper is None else sympy.Integer(upper),
    )
