"""How a call in a graph is written: by the public name that reaches the same operator, else by its own.

Each public name is a guess that is checked on fakes before it is used; a new guess is a row in a table or a
small function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.syntax import INFIX
from torchrepro.judge.compare import tensors_in
from torchrepro.script.expressions import (
    Spelling,
    Text,
    Unwritable,
    Writer,
    function,
    infix,
    method,
    nodes_in,
    prefix,
    same_value,
    subscript,
    torch_level,
)
from torchrepro.state.fake_run import Decompositions, FakeRun, OperatorLog, identity
from torchrepro.torch_api.names import HIGHER_ORDER_OPS
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket, op_name, schema_of
from torchrepro.torch_api.pytree import tree_leaves

_INFIX = {function.__name__: sign for function, sign in INFIX.items()} | {
    "div": "/",
    "remainder": "%",
    "floor_divide": "//",
    "mm": "@",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_PREFIX = {"neg": "-", "bitwise_not": "~"}
_METHODS = frozenset(
    {
        *("view", "reshape", "permute", "transpose", "t", "expand", "squeeze", "unsqueeze", "clone"),
        *("sum", "mean", "prod", "amax", "amin", "max", "min", "any", "all", "argmax", "argmin", "cumsum"),
        *("contiguous", "repeat", "flatten", "item", "select", "narrow", "index_select", "gather", "scatter"),
        *("masked_fill", "index_put", "new_zeros", "new_ones", "new_full", "new_empty", "as_strided", "std"),
        *("var", "norm", "sort", "topk", "diagonal", "unfold", "split", "index_add", "scatter_add"),
        *("detach", "view_as"),
    }
)
_SIZES = frozenset({"view", "reshape", "permute", "expand", "repeat"})
"""Methods to which people give sizes one by one, not as a list."""
_PREFIXES = {"special_": "torch.special", "linalg_": "torch.linalg", "fft_": "torch.fft"}
_USUAL: dict[str, tuple[Any, ...]] = {
    "layout": (None, torch.strided),
    "pin_memory": (None, False),
    "device": (None, torch.device("cpu"), "cpu"),
}
_END = torch.iinfo(torch.int64).max


@dataclass
class Speller:
    """Chooses how calls are written, and remembers what has to be imported for them."""

    traced: FakeRun
    decompositions: Decompositions = field(default_factory=dict)
    """How the compiler takes operators apart before it sees them."""
    modules: set[str] = field(default_factory=set)
    """`F`, `math`, or a module of the user."""
    own: frozenset[str] = frozenset()
    """Operators of the user that the script registers, or imports what does."""

    def spelling(self, node: Node) -> Spelling:
        target, args, kwargs = node.target, list(node.args), dict(node.kwargs)
        if isinstance(target, OpOverload | OpOverloadPacket):
            path = resolver.needs_trust(target)
            if path is not None:
                namespace, name = path.split(".")[2:4]
                if f"{namespace}::{name}" not in self.own:
                    raise Unwritable(f"the operator {namespace}::{name}, whose source is not known")
                return function(path.removesuffix(".default"), args, kwargs)
        if isinstance(target, HigherOrderOperator):
            return self._higher_order(target.name(), args, kwargs)
        if not isinstance(target, OpOverload):
            spelling, module = torch_level(node)
            self.modules |= {module} - {"", "torch"}
            return spelling
        for spelling in public_spellings(node):
            if self._is_same(node, target, spelling):
                return spelling
        return function(f"torch.ops.{target}", args, kwargs)

    def _is_same(self, node: Node, target: OpOverload, spelling: Spelling) -> bool:
        """Return whether the spelling reaches the operator of the node, tried on fakes.

        It does if both reach the dispatcher as the same operators on the same arguments, as they are or as
        the compiler decomposes them.
        """
        given = list(dict.fromkeys(nodes_in((node.args, node.kwargs))))
        values = self.traced.values
        if any(used not in values for used in given):
            return False
        names = {used: f"v{number}" for number, used in enumerate(given)}
        try:
            text = spelling(Writer({used: Text(name) for used, name in names.items()})).text
        except Unwritable:
            return False
        scope = {"torch": torch, "F": torch.nn.functional}
        scope |= {name: values[used] for used, name in names.items()}
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        tensors = tensors_in([values[used] for used in given])
        known = {identity(tensor): f"argument {path}" for path, tensor in tensors}
        for table in ({}, self.decompositions) if self.decompositions else ({},):
            wanted = self._seen(lambda: target(*args, **kwargs), OperatorLog(table, known))
            if wanted is not None and wanted == self._seen(
                partial(eval, text, scope), OperatorLog(table, known)
            ):
                self.modules |= {"F"} if "F." in text else set()
                return True
        return False

    def _seen(self, call: Callable[[], Any], log: OperatorLog) -> tuple[Any, str] | None:
        try:
            with self.traced.around(), log:
                return log.calls, log.described(tree_leaves(call()))
        except Exception:
            return None  # this spelling does not take these arguments

    def _higher_order(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Spelling:
        """Spell a higher-order operator by its public function; `Unwritable` where there is none."""
        if name == "cond" and not kwargs:
            return function("torch.cond", args)
        if name == "tag_activation_checkpoint":
            self.modules.add("torch.utils.checkpoint")
            return function("torch.utils.checkpoint.checkpoint", args, {"use_reentrant": False})
        if name == "while_loop" and len(args) == 4 and not args[3]:
            self.modules.add(HIGHER_ORDER_OPS)
            return function(f"{HIGHER_ORDER_OPS}.while_loop", args[:3])
        raise Unwritable(f"the higher-order operator {name}")


# Guesses at public names.


@dataclass(frozen=True)
class Call:
    """An operator and its arguments by name, those that are defaults left out."""

    name: str
    arguments: dict[str, Any]
    schema: Sequence[Any]

    @classmethod
    def of(cls, node: Node) -> Call:
        """Return the call of a node. Checked on torch 2.11 to 2.15 (`_schema`, `_opname`)."""
        target = node.target
        assert isinstance(target, OpOverload)
        schema = schema_of(target).arguments
        given = {argument.name: value for argument, value in zip(schema, node.args, strict=False)}
        given |= node.kwargs
        named = [argument for argument in schema if argument.name in given]
        kept = {each.name: given[each.name] for each in named if not _is_usual(each, given[each.name])}
        return cls(op_name(target), kept, schema)

    def split(self, *, after: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and named arguments; all after the first one that is left out are named."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        gap = False
        for argument in self.schema[after:]:
            name = argument.name
            if name not in self.arguments:
                gap = True
            elif gap or argument.kwarg_only or (args and isinstance(self.arguments[name], bool)):
                gap = True  # `keepdim=True` is readable, a bare True is not
                kwargs[name] = self.arguments[name]
            else:
                args.append(self.arguments[name])
        return args, kwargs


def _is_usual(argument: Any, value: Any) -> bool:
    """Return whether an argument is the default, or a factory's usual result: a strided tensor on the CPU."""
    usual = [argument.default_value] if argument.has_default_value() else []
    return any(same_value(value, each) for each in (*usual, *_USUAL.get(argument.name, ())))


def public_spellings(node: Node) -> Iterator[Spelling]:
    """Yield guesses at how a person would have written an operator, the best first."""
    call = Call.of(node)
    name, arguments = call.name, call.arguments
    first = next(iter(arguments.values()), None)
    if name in _INFIX and len(arguments) == 2:
        yield infix(_INFIX[name], *arguments.values())
    if name == "rsub" and len(arguments) == 2:
        yield infix("-", arguments["other"], first)
    if name in _PREFIX and len(arguments) == 1:
        yield prefix(_PREFIX[name], first)
    yield from _special(name, arguments)
    if name.startswith("_"):
        return
    dim = arguments.get("dim")
    if isinstance(dim, list | tuple) and len(dim) == 1:
        yield from _by_name(replace(call, arguments={**arguments, "dim": dim[0]}), first)
    yield from _by_name(call, first)


def _by_name(call: Call, first: Any) -> Iterator[Spelling]:
    name, arguments = call.name, call.arguments
    by_method = list(_methods(call, first))
    if name in _METHODS or name.endswith("_"):
        yield from by_method
    args, kwargs = call.split()
    if name in ("zeros", "ones", "empty", "rand", "randn") and isinstance(first, list | tuple) and first:
        yield function(f"torch.{name}", [*first, *args[1:]], kwargs)
    if "dtype" in kwargs and not any(isinstance(value, Node) for value in arguments.values()):
        untyped = {key: value for key, value in kwargs.items() if key != "dtype"}
        yield function(f"torch.{name}", args, untyped)
    if callable(getattr(torch, name, None)):
        yield function(f"torch.{name}", args, kwargs)
    if callable(getattr(torch.nn.functional, name, None)):
        yield function(f"F.{name}", args, kwargs)
    for start, place in _PREFIXES.items():
        if name.startswith(start):
            yield function(f"{place}.{name.removeprefix(start)}", args, kwargs)
    yield from by_method


def _methods(call: Call, first: Any) -> Iterator[Spelling]:
    if not isinstance(first, Node) or not callable(getattr(torch.Tensor, call.name, None)):
        return
    args, kwargs = call.split(after=1)
    if call.name in _SIZES and len(args) == 1 and isinstance(args[0], list | tuple) and args[0]:
        yield method(call.name, first, args[0], kwargs)
    yield method(call.name, first, args, kwargs)


def _special(name: str, given: dict[str, Any]) -> Iterator[Spelling]:
    """Yield spellings of operators whose public form has another name or takes other arguments."""
    owner, dim = next(iter(given.values()), None), given.get("dim", 0)
    kwargs = {key: value for key, value in given.items() if key in ("dtype", "device", "value")}
    match name:
        case "slice" | "select" if isinstance(dim, int) and 0 <= dim < 4:
            start, end = given.get("start"), given.get("end")
            ends = (None if start == 0 else start, None if same_value(end, _END) else end)
            index = given["index"] if name == "select" else slice(*ends, given.get("step"))
            yield subscript(owner, (*[slice(None)] * dim, index) if dim else index)
        case "index":
            indices = tuple(slice(None) if index is None else index for index in given["indices"])
            yield subscript(owner, indices[0] if len(indices) == 1 else indices)
        case "_to_copy" | "convert_element_type":
            if "dtype" in kwargs:
                yield method("to", owner, [kwargs["dtype"]])
            yield method("to", owner, [], kwargs)
            yield method("clone", owner, [])
        case "_softmax" | "_log_softmax":
            yield function(f"torch.{name[1:]}", [owner, dim])
        case "convolution":
            yield _convolution(given)
        case "embedding":
            more = {key: value for key, value in given.items() if key not in ("weight", "indices")}
            yield function("F.embedding", [given["indices"], given["weight"]], more)
        case "constant_pad_nd":
            yield function("F.pad", [owner, given["pad"]], kwargs)
        case "sym_size":
            yield subscript(owner, dim, ".shape")
        case "iota":
            length, start, step = given["length"], given.get("start", 0), given.get("step", 1)
            if all(isinstance(number, int) for number in (length, start, step)):
                bounds = [length] if (start, step) == (0, 1) else [start, start + length * step, step]
                yield function("torch.arange", bounds)
                yield function("torch.arange", bounds, {"dtype": given.get("dtype", torch.int64)})


def _convolution(given: dict[str, Any]) -> Spelling:
    dims = len(given["stride"])
    name = f"F.conv_transpose{dims}d" if given.get("transposed") else f"F.conv{dims}d"
    usual = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}
    kwargs = {}
    for key, default in usual.items():
        value = given.get(key, default)
        if isinstance(value, list | tuple) and len(set(value)) == 1 and isinstance(value[0], int):
            value = value[0]
        if not same_value(value, default):
            kwargs[key] = value
    bias = [kwargs.pop("bias")] if "bias" in kwargs else []
    return function(name, [given["input"], given["weight"], *bias], kwargs)
