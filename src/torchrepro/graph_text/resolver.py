"""Names to callables and back: the boundary between a stranger's text and this process.

A graph is data, but running it calls whatever its nodes name. So a name is looked up in a table of what
computes on tensors (`allowed.py`) and never found by walking attributes: `torch.os.system`, `torch.hub.load`
and `x.__class__` have no entry. Everything else needs the reader's permission (`trusted`).
"""

from __future__ import annotations

import functools
import importlib
import operator
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from torchrepro.graph_text.allowed import (
    DTENSOR_FUNCTIONS,
    DTENSOR_METHODS,
    DUNDER_METHODS,
    HIGHER_ORDER_MODULES,
    MODULES,
    OPERATOR_MODULES,
    REFUSED,
    REFUSED_METHODS,
    REFUSED_OPS,
    STRANGERS_REFUSED_OPS,
    Rule,
)
from torchrepro.nouns.errors import CannotSerialise, GraphTextError
from torchrepro.nouns.repro import BUNDLE_TRUST, SOURCE_TRUST
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.modes import C
from torchrepro.torch_api.names import C_FUNCTIONS, C_MODULE, DYNAMO_UTILS, HIGHER_ORDER_OPS, NUMPY
from torchrepro.torch_api.ops import (
    HigherOrderOperator,
    OpNamespace,
    OpOverload,
    OpOverloadPacket,
    higher_order_operators,
    op_name,
    overload_name,
    qualified_name,
)

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TENSOR_CLASS = re.compile(r"torch\.(?:[a-z]+\.)?[A-Z][A-Za-z0-9]*Tensor\Z")
_NUMPY_MODULES = {
    "": NUMPY,
    "linalg": f"{NUMPY}.linalg",
    "fft": f"{NUMPY}.fft",
    "random": f"{NUMPY}.random",
}
_DTENSOR = "torch.distributed.tensor.DTensor"
_METHOD_OWNERS = (torch.Tensor, torch.Size, torch.Generator, torch.SymInt, torch.SymFloat, int, float, tuple)
_TRUST_WORDS = f"{SOURCE_TRUST}|{BUNDLE_TRUST}"
# Of torch's own operators; others belong to a library of the user.
_TORCH_NAMESPACES = frozenset(
    {
        *("aten", "prims", "prim", "inductor", "higher_order", "mkldnn", "mkldnn_prepacked", "mkl", "onednn"),
        *("quantized", "_quantized", "quantized_decomposed", "rngprims", "debugprims", "profiler", "sparse"),
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "fsdp", "symm_mem"),
        *("xnnpack", "prepacked", "tensorexpr", "static_runtime", "streams", "_inductor_test", "_dtensor"),
    }
)


def path_of(target: Callable[..., Any]) -> str | None:
    """Return the path by which any reader finds this callable, None where it needs trust."""
    if isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return _operator_path(target)
    path = _paths(frozenset(MODULES.keys() & sys.modules.keys())).get(id(target))
    if path is not None and _lookup(path) is target:
        return path
    name = getattr(target, "__name__", "")
    if name in DTENSOR_FUNCTIONS and getattr(_dtensor(only_loaded=True), name, None) is target:
        return f"{_DTENSOR}.{name}"
    if isinstance(name, str) and is_method(name) and getattr(torch.Tensor, name, None) is target:
        return f"torch.Tensor.{name}"
    return None


def trusted_path_of(target: Callable[..., Any]) -> str:
    """Return `module:qualified.name` of a callable outside the table; CannotSerialise if it has none."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str) and _walk(sys.modules.get(module), name) is target:
        return f"{module}:{name}"
    raise CannotSerialise(
        f"the graph calls {target!r}, which cannot be found again by a name",
        next_step="define it at the top level of a module, or keep it out of the graph",
    )


def resolve(path: str, trusted: Collection[str] = (), *, stranger: bool = False) -> Any:
    """Return the callable at a dotted path that starts with torch, operator, math or builtins."""
    if path.startswith("torch.ops."):
        refused = REFUSED_OPS | STRANGERS_REFUSED_OPS if stranger else REFUSED_OPS
        return _resolve_operator(path, trusted, refused)
    owner, _, name = path.rpartition(".")
    if owner == "torch.Tensor" and is_method(name):
        return getattr(torch.Tensor, name)
    if owner == _DTENSOR and name in DTENSOR_FUNCTIONS:
        return getattr(_dtensor(), name)
    if covers(trusted, owner):
        return resolve_trusted(f"{owner}:{name}", trusted)
    found = _lookup(path)
    if found is None:
        raise GraphTextError(
            f"{path} is not among the functions that a graph may call",
            next_step=f"if you know what it does, allow it with --trust {owner or path}",
        )
    return found


def resolve_trusted(path: str, trusted: Collection[str]) -> Any:
    """Return the callable at `module:qualified.name`; only modules in `trusted` are imported."""
    module, _, name = path.partition(":")
    if not covers(trusted, module):
        raise GraphTextError(
            f"{module}.{name} is not among the functions that a graph may call",
            next_step=f"if you trust it, allow it with --trust {shlex.quote(module)}",
        )
    found = _walk(_import_trusted(module), name)
    if not callable(found):
        raise GraphTextError(f"{module} has no function {name}", next_step="install the version it came from")
    require_part_of(module, name, found, trusted)
    return found


def require_part_of(module: str, name: str, found: Any, trusted: Collection[str]) -> None:
    """Raise if what was found in a trusted module belongs to another one, which is not trusted."""
    home = getattr(found, "__module__", None)
    # `mylib:os.system` is reached through a trusted module but is no part of it.
    if isinstance(home, str) and home.split(".")[0] != module.split(".")[0] and not covers(trusted, home):
        raise GraphTextError(
            f"{module}.{name} is a function of {home}, which is not trusted",
            next_step=f"if you trust it, allow it with --trust {home}",
        )


def is_method(name: str) -> bool:
    """Return whether a graph may call this method: one of tensors or sizes that computes."""
    if not IDENTIFIER.match(name) or name in REFUSED_METHODS:
        return False
    if name.startswith("__") and name not in DUNDER_METHODS:
        return False
    return name in DTENSOR_METHODS or any(callable(getattr(owner, name, None)) for owner in _METHOD_OWNERS)


def is_type_name(value: Any) -> bool:
    """Return whether a graph may hand this to `.type`: a dtype, or the name of a class of tensors.

    Of a storage that method imports the module that it is given the name of.
    """
    named = isinstance(value, str) and bool(_TENSOR_CLASS.match(value))
    return named or value is None or isinstance(value, torch.dtype)


def _dtensor(*, only_loaded: bool = False) -> Any:
    module, _, name = _DTENSOR.rpartition(".")
    return getattr(_import_if_present(module, only_loaded=only_loaded), name, None)


def comes_with_torch(op: OpOverload | OpOverloadPacket) -> bool:
    """Return whether an operator is one of torch's own, and not one of a user's library."""
    name = op.name() if isinstance(op, OpOverload) else qualified_name(op)
    return name.partition("::")[0] in _TORCH_NAMESPACES


def needs_trust(target: Callable[..., Any]) -> str | None:
    """Return what must be trusted to call this: a user function, or an operator of a user's library."""
    if isinstance(target, HigherOrderOperator):
        return None
    if isinstance(target, OpOverload | OpOverloadPacket):
        return None if comes_with_torch(target) else _operator_path(target)
    return None if path_of(target) is not None else trusted_path_of(target).replace(":", ".")


def torch_class(path: str) -> type | None:
    """Return the class at a dotted path in torch's loaded modules, None if there is none; import nothing."""
    module_name, _, name = path.rpartition(".")
    if module_name.split(".")[0] != "torch" or name.startswith("__"):
        return None
    while module_name:
        module = sys.modules.get(module_name)
        if module is not None:
            found = _walk(module, name)
            # `torch.os.stat_result` is a class too, but not one of torch's.
            own = isinstance(found, type) and found.__module__.split(".")[0] == "torch"
            return found if own else None
        module_name, _, outer = module_name.rpartition(".")
        name = f"{outer}.{name}"
    return None


def torch_class_path(type_: type) -> str | None:
    """Return the path by which `torch_class` finds this class; some are public under another name."""
    module = sys.modules.get(type_.__module__)
    aliases = (name for name, value in vars(module).items() if value is type_) if module else ()
    for name in (type_.__qualname__, *aliases):
        path = f"{type_.__module__}.{name}"
        if torch_class(path) is type_:
            return path
    return None


def _operator_path(target: OpOverload | OpOverloadPacket | HigherOrderOperator) -> str:
    """Return the path under torch.ops. Checked on torch 2.11 to 2.15."""
    if isinstance(target, HigherOrderOperator):
        path = f"torch.ops.higher_order.{target.name()}"
    elif isinstance(target, OpOverload):
        path = f"torch.ops.{target.namespace}.{op_name(target)}.{overload_name(target)}"
    else:
        namespace, _, name = qualified_name(target).partition("::")
        path = f"torch.ops.{namespace}.{name}"
    if not all(IDENTIFIER.match(part) for part in path.split(".")):
        raise CannotSerialise(
            f"the operator {target} has a name that is no identifier", next_step="rename it"
        )
    return path


def _resolve_operator(path: str, trusted: Collection[str], refused: Collection[str]) -> Any:
    parts = path.split(".")[2:]
    if not 2 <= len(parts) <= 3 or f"{parts[0]}::{parts[1]}" in refused:
        raise GraphTextError(f"{path} is no operator that a graph may call", next_step="remove the node")
    found = _find_operator(parts)
    modules = _higher_order_modules(parts[1]) if parts[0] == "higher_order" else OPERATOR_MODULES
    # An operator, a library and the bundle's own source are trusted too: those come before the graph is read.
    others = [name for name in trusted if not re.match(rf"torch\.ops|.*/|({_TRUST_WORDS})$", name)]
    for module in [*modules, *others]:
        if found is not None:
            break
        _import_if_present(module) if module in modules else _import_trusted(module)
        found = _find_operator(parts)
    if found is None:
        raise GraphTextError(
            f"the operator {path} is not registered in this process",
            next_step="install the library that defines it and name its module with --trust MODULE",
        )
    return found


def _higher_order_modules(name: str) -> list[str]:
    """Return the modules that may register a higher-order operator, those named after it first.

    A plain `import torch` registers few of them.
    """
    package = _import_if_present(HIGHER_ORDER_OPS)
    inside = [] if package is None else [module.name for module in pkgutil.iter_modules(package.__path__)]
    inside.sort(key=lambda module: not name.startswith(module))
    return [*(f"{HIGHER_ORDER_OPS}.{module}" for module in inside), *HIGHER_ORDER_MODULES]


def _find_operator(parts: list[str]) -> OpOverload | OpOverloadPacket | HigherOrderOperator | None:
    """Return the registered operator, None if there is none. Checked on torch 2.11 to 2.15."""
    namespace, name = parts[:2]
    if namespace == "higher_order":
        found = higher_order_operators.get(name) if len(parts) == 2 else None
        return found if isinstance(found, HigherOrderOperator) else None
    # `torch.ops` has methods of its own (`load_library`): only a namespace of operators will do.
    ops = getattr(torch.ops, namespace, None)
    if not isinstance(ops, OpNamespace):
        return None
    packet = getattr(ops, name, None)
    if not isinstance(packet, OpOverloadPacket):
        return None
    if len(parts) == 2:
        return packet
    overload = getattr(packet, parts[2], None) if parts[2] in packet.overloads() else None
    return overload if isinstance(overload, OpOverload) else None


def _lookup(path: str) -> Any:
    """Return the entry of the table for a path, None if there is none."""
    owner, _, name = path.rpartition(".")
    if owner not in MODULES or not IDENTIFIER.match(name):
        return None
    found = getattr(_import_if_present(owner), name, None)
    # Most of torch's functions are defined elsewhere; `torch.split` and `_VariableFunctions.split` are two.
    homes = (owner, C_FUNCTIONS, "torch.functional") if owner == "torch" else (owner,)
    for home in homes:
        same = getattr(_import_if_present(home), name, None) is found
        if found is not None and same and _allowed(found, name, home):
            return found
    return None


def _allowed(found: Any, name: str, module_name: str) -> bool:
    rule = MODULES[module_name]
    if name.startswith("__") or name in REFUSED.get(module_name, ()):
        return False
    if rule is Rule.C_FUNCTIONS:
        return isinstance(found, BuiltinFunctionType)
    if rule is Rule.OWN_FUNCTIONS:
        own = isinstance(found, FunctionType) and found.__module__ == module_name and not name.startswith("_")
        return own or (isinstance(found, BuiltinFunctionType) and str(found.__module__).startswith("torch"))
    return isinstance(rule, tuple) and name in rule and callable(found)


def entries() -> Iterator[tuple[str, Any]]:
    """Yield all paths that a graph may call, operators under torch.ops excepted, with their callables."""
    for module_name, rule in MODULES.items():
        module = _import_if_present(module_name, only_loaded=True)
        for name in rule if isinstance(rule, tuple) else dir(module):
            found = getattr(module, name, None)
            if found is not None and _allowed(found, name, module_name):
                public = module_name in (C_FUNCTIONS, "torch.functional")
                owner = "torch" if public and getattr(torch, name, None) is found else module_name
                yield f"{owner}.{name}", found


@functools.lru_cache(maxsize=1)
def _paths(loaded: frozenset[str]) -> dict[int, str]:
    """Return paths by identity of the callable, valid while these modules of the table are loaded."""
    paths: dict[int, str] = {}
    for path, found in entries():
        paths.setdefault(id(found), path)
    return paths


def _import_if_present(name: str, *, only_loaded: bool = False) -> Any:
    """Return a module of the table; the submodules of `C` are attributes, not importable modules."""
    if name in sys.modules:
        return sys.modules[name]
    if name.startswith(f"{C_MODULE}."):
        return getattr(C, name.removeprefix(f"{C_MODULE}."), None)
    if only_loaded:
        return None
    try:
        return importlib.import_module(name)
    except ImportError:
        return None  # another version of torch, or a build without this part


def _import_trusted(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise GraphTextError(
            f"the trusted module {name} cannot be imported ({error})",
            next_step="install it or put its directory on PYTHONPATH",
        ) from error


def covers(trusted: Collection[str], module: str) -> bool:
    """Return whether a module, or a package around it, is trusted."""
    parts = module.split(".")
    return any(".".join(parts[:count]) in trusted for count in range(1, len(parts) + 1))


def _walk(owner: Any, qualified: str) -> Any:
    for part in qualified.split("."):
        if owner is None or not IDENTIFIER.match(part) or part.startswith("__"):
            return None
        owner = getattr(owner, part, None)
    return owner


# NumPy: Dynamo traces `np.sin(x)` as an object that wraps torch's own version of the function. The objects
# have no name of their own, so the text names what they wrap: `numpy_function("linalg.norm")(x)`.


def numpy_target(target: Any) -> tuple[str, str] | None:
    """Return word and name for a wrapper of Dynamo, None for others. Checked on torch 2.11 to 2.15."""
    if type(target).__module__ != DYNAMO_UTILS:
        return None
    match type(target).__name__:
        case "numpy_to_tensor_wrapper":
            name = getattr(target.f, "__name__", "unknown")
            for prefix, module in _NUMPY_MODULES.items():
                if getattr(sys.modules.get(module), name, None) is target.f:
                    return "numpy_function", f"{prefix}.{name}" if prefix else name
            return "numpy_function", name
        case "numpy_method_wrapper":
            return "numpy_method", target.method
        case "numpy_operator_wrapper":
            return "numpy_operator", target.op.__name__
    return None


def build_numpy_target(word: str, name: str) -> Callable[..., Any]:
    """Build the wrapper that a word and a name stand for. Checked on torch 2.11 to 2.15."""
    wrappers: Any = dynamo.numpy_wrappers
    made: Callable[..., Any]
    if word == "numpy_function":
        made = wrappers.numpy_to_tensor_wrapper(_numpy_function(name))
    elif word == "numpy_method":
        arrays = getattr(dynamo.torch_numpy, "ndarray", None)
        if name.startswith("_") or not callable(getattr(arrays, name, None)):
            raise GraphTextError(f"numpy arrays have no method {name} in torch", next_step="remove the node")
        made = wrappers.numpy_method_wrapper(name)
    else:
        allowed = not name.startswith("__") and name not in REFUSED["operator"]
        function = getattr(operator, name, None) if allowed else None
        if not isinstance(function, BuiltinFunctionType):
            raise GraphTextError(f"operator has no function {name} for arrays", next_step="remove the node")
        made = wrappers.numpy_operator_wrapper(function)
    return made


def _numpy_function(name: str) -> Any:
    prefix, _, last = name.rpartition(".")
    module = sys.modules.get(_NUMPY_MODULES.get(prefix, ""))
    found = None if module is None or last.startswith("_") else getattr(module, last, None)
    # Universal functions are objects; all others are functions of the module itself.
    own = isinstance(found, FunctionType) or type(found).__module__.startswith(NUMPY)
    if not own or isinstance(found, type) or not str(getattr(found, "__module__", "")).startswith(NUMPY):
        raise GraphTextError(f"torch has no version of numpy.{name}", next_step="remove the node")
    return found
