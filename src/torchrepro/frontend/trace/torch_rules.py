"""What is done with functions of torch, as tables. Names in the tables are those under `torch.`.

What is in no table is Python like the user's and is inlined: `torch.nn.Module`, `torch.distributions`.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from torchrepro.frontend.graph_breaks import BreakKind, BreakReason
from torchrepro.frontend.guards.kinds import HOOKS
from torchrepro.frontend.trace.classes import IN_C
from torchrepro.torch_api import function_names
from torchrepro.torch_api.modules import original_of
from torchrepro.torch_api.names import C_MODULE, FUNCTION_HOMES, SWAPPED_HOMES, TENSOR
from torchrepro.torch_api.ops import CustomOpDef, HigherOrderOperator, OpOverload, OpOverloadPacket

_LEAF_MODULES = frozenset({*FUNCTION_HOMES, "torch.signal.windows.windows"})
_SETTERS_SEEN = frozenset({"_set_grad_enabled"})
"""In C++: setters whose state the recorder writes into the graph."""


class _Rule(NamedTuple):
    """Functions of torch that Python must run, by name, and modules of which this holds for all."""

    kind: BreakKind
    why: str
    functions: str = ""
    modules: str = ""


_UNSEEN = "from_numpy frombuffer from_dlpack from_file Tensor nn.Parameter nn.Buffer"

_REQUESTED, _OUTSIDE, _UNSUPPORTED = BreakKind.REQUESTED, BreakKind.OUTSIDE, BreakKind.UNSUPPORTED
_RULES = (
    _Rule(_REQUESTED, "asked for here", "_dynamo.graph_break _dynamo.skip_frame"),
    _Rule(
        _OUTSIDE,
        "it changes or reads the state of a random generator",
        "Generator manual_seed seed initial_seed",
        "random cuda.random mps.random xpu.random",
    ),
    _Rule(_OUTSIDE, "it reads, writes or prints", "set_printoptions", "serialization hub _tensor_str"),
    _Rule(_OUTSIDE, "other processes take part in it", modules="distributed multiprocessing"),
    _Rule(_OUTSIDE, "it waits for a device", function_names.WAITING, "cuda.streams cuda.graphs"),
    _Rule(_OUTSIDE, "it profiles", modules="profiler autograd.profiler cuda.nvtx cuda.profiler"),
    _Rule(_UNSUPPORTED, "a mode sees each operation as it runs", function_names.MODE_SWITCHES),
    _Rule(
        _UNSUPPORTED,
        "function transforms are not traced",
        "cond while_loop vmap",
        "func _functorch _higher_order_ops",
    ),
    _Rule(_UNSUPPORTED, "gradients are computed outside of graphs", modules="autograd utils.checkpoint"),
    _Rule(
        _UNSUPPORTED,
        "it compiles or exports code",
        "compile compiler.disable compiler.reset",
        "export jit onnx fx _dynamo _inductor",
    ),
    _Rule(_UNSUPPORTED, "it changes a setting of the process", function_names.SETTINGS, "nn.attention"),
    _Rule(_UNSUPPORTED, "the recorder does not see the tensor that it makes", _UNSEEN),
)
_INLINED = frozenset(SWAPPED_HOMES)
"""Modules and functions in Python like the user's: they only set modes, or swap what a module holds."""


def why_break(function: Any) -> BreakReason | None:
    """Return why a function of torch is a graph break; None if it can be traced or called."""
    name, owner = _written(function), getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and name.endswith("apply"):
        own = f"{owner.__qualname__}.apply"
        return BreakReason(BreakKind.UNSUPPORTED, f"{own}: a custom backward is not traced")
    if isinstance(owner, torch.Generator):
        return BreakReason(BreakKind.OUTSIDE, f"{name} of a random generator")
    if isinstance(owner, torch.device) and name.endswith(("__enter__", "__exit__")):
        return BreakReason(BreakKind.UNSUPPORTED, "a default device set by `with`", "pass device=")
    if isinstance(function, HigherOrderOperator):
        return BreakReason(BreakKind.UNSUPPORTED, f"{name}: operators on functions are not traced")
    if isinstance(function, type) and type(function).__name__ == "tensortype":
        return BreakReason(BreakKind.UNSUPPORTED, f"{name}: an old constructor", "use torch.tensor")
    rule = _breaking().get(id(function))
    if rule is None and not is_constant_fold(function) and original_of(function) is None:
        rule = _rule_of_module(function)
    if rule is not None:
        return BreakReason(rule.kind, f"{name}: {rule.why}")
    if getattr(function, "_torchdynamo_disable", False) is True:  # torch lazily sets it on some of its own
        return BreakReason(BreakKind.REQUESTED, f"{name} is under torch.compiler.disable")
    in_c = isinstance(function, types.BuiltinFunctionType) and _module_of(function) == C_MODULE
    if in_c and function.__name__.startswith(("_set_", "set_")) and function.__name__ not in _SETTERS_SEEN:
        return BreakReason(BreakKind.UNSUPPORTED, f"{name}: no graph shows what it sets")
    return None


def has_hooks(module: torch.nn.Module) -> bool:
    """Return whether a call is more than `forward`. Checked on torch 2.11 to 2.15 (`_call_impl`)."""
    space, every = vars(module), vars(torch.nn.modules.module)
    if space.get("_compiled_call_impl") is not None:
        return True
    return any(space.get(name) or every.get(f"_global{name}") for name in HOOKS)


def is_constant_fold(function: Any) -> bool:
    """Return whether its result depends on constants and modes alone; see `needs_guard`."""
    return id(function) in _questions()


def needs_guard(function: Any) -> bool:
    """Return whether a constant fold's result must be guarded: flags, devices, ranks."""
    return _questions().get(id(function), (False, None))[0]


def answer(function: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a constant fold while tracing."""
    fixed = _questions().get(id(function), (False, None))[1]
    return function(*args, **kwargs) if fixed is None else fixed


def is_leaf(function: Any) -> bool:
    """Return whether it is called as a whole, with fakes: the recorder records it or its callees."""
    if isinstance(function, OpOverload | OpOverloadPacket | CustomOpDef):
        return True
    if isinstance(function, types.MethodType):
        return isinstance(function.__self__, torch.Tensor) and _module_of(function) == TENSOR
    if isinstance(function, (*IN_C, types.GetSetDescriptorType)) and _belongs_to_a_value_of_torch(function):
        return True
    if not isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
        return False
    if _module_of(function) == C_MODULE:
        return function.__name__ in _SETTERS_SEEN
    return _module_of(function) in _LEAF_MODULES or id(function) in _overridable()


def _belongs_to_a_value_of_torch(function: Any) -> bool:
    """Return whether it is a method or attribute in C of tensors, sizes or dtypes, bound or not."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor | torch.Size | torch.dtype | torch.device | torch.finfo | torch.iinfo):
        return True
    kind = getattr(owner, "__objclass__", None) or getattr(function, "__objclass__", None)
    return isinstance(kind, type) and kind is not object and issubclass(torch.Tensor, kind)


def _rule_of_module(function: Any) -> _Rule | None:
    """Return the rule of the nearest module that has one."""
    module = _module_of(function)
    if not _INLINED.isdisjoint((module, _written(function))):
        return None
    if not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return None
    parts = module.split(".")
    nested = (".".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((_modules()[name] for name in nested if name in _modules()), None)


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "")


def _written(function: Any) -> str:
    """Return its readable name: `torch.add`, `torch.nn.functional.max_pool2d`."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or str(function)
    module = _module_of(function)
    return f"{module}.{name.rpartition('.')[2]}" if module.split(".")[0] == "torch" else str(name)


def _found(names: Iterable[str]) -> Iterable[tuple[int, str]]:
    """Yield `id` and name of the functions that this torch has; its modules keep them alive."""
    for name in names:
        try:
            yield id(operator.attrgetter(name)(torch)), name
        except AttributeError:
            continue  # another version of torch, or a part that is not imported


@functools.cache
def _breaking() -> Mapping[int, _Rule]:
    return {key: rule for rule in _RULES for key, _ in _found(rule.functions.split())}


@functools.cache
def _modules() -> Mapping[str, _Rule]:
    return {f"torch.{name}": rule for rule in _RULES for name in rule.modules.split()}


@functools.cache
def _questions() -> Mapping[int, tuple[bool, bool | None]]:
    """Return by `id` whether a query needs a guard of its own, and its fixed result if it has one."""
    named = {
        **dict.fromkeys(function_names.QUERIES.split(), (False, None)),
        **dict.fromkeys(function_names.QUERIES_OF_PROCESS.split(), (True, None)),
        **{name: (False, fixed) for name, fixed in function_names.ANSWERS.items()},
    }
    return {key: named[name] for key, name in _found(named)}


@functools.cache
def _overridable() -> frozenset[int]:
    """Return ids of torch's overridable functions. Checked on 2.11 to 2.15 (`get_overridable_functions`)."""
    listed = torch.overrides.get_overridable_functions()
    return frozenset(id(function) for functions in listed.values() for function in functions)
