"""Leaves: what is done with a function of torch that traced code calls.

Asked in this order: `why_break` (Python must run it), `original_of` (a wrapper: trace what is in it),
`is_constant_fold` (a question, see `answer`), `is_leaf` (called as a whole; the recorder sees it). What none
of them knows is Python like the user's and stepped: `torch.nn.Module`, `torch.distributions`, `torch.nn.init`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from torchrepro.frontend.breaks import BreakKind, BreakReason

_C_KINDS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.GetSetDescriptorType,
    types.ClassMethodDescriptorType,
)
_LEAF_MODULES = frozenset(
    {
        *("torch", "torch.functional", "torch.nn.functional", "torch._tensor", "torch._VF", "torch._ops"),
        *("torch.linalg", "torch.special", "torch.fft", "torch._lowrank", "torch._lobpcg", "torch.overrides"),
        *("torch._linalg_utils", "torch.nn._reduction", "torch.masked._ops", "torch._jit_internal"),
        *(
            "torch._C._nn",
            "torch._C._fft",
            "torch._C._linalg",
            "torch._C._special",
            "torch._library.custom_ops",
        ),
        *("torch.signal.windows.windows", "torch.nn.grad"),
    }
)

_ANSWERS: Mapping[str, bool] = {
    # Code that asks wants to know whether it should be easy to trace.
    "torch.compiler.is_compiling": True,
    "torch.compiler.is_dynamo_compiling": True,
    "torch._dynamo.is_compiling": True,
    "torch._utils.is_compiling": True,
    # The recorder is such a mode; the code would ask the same without it and be told no.
    "torch.overrides.has_torch_function": False,
    "torch.overrides.has_torch_function_unary": False,
    "torch.overrides.has_torch_function_variadic": False,
    "torch._C._is_torch_function_mode_enabled": False,
}
_QUESTIONS = (
    *("is_tensor", "is_storage", "finfo", "iinfo", "promote_types", "can_cast", "broadcast_shapes"),
    *("is_grad_enabled", "is_inference_mode_enabled", "get_default_dtype", "get_default_device"),
    *("is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype", "get_autocast_cpu_dtype"),
    *("get_autocast_gpu_dtype", "is_autocast_cache_enabled", "are_deterministic_algorithms_enabled"),
    *("is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode"),
    *("get_float32_matmul_precision", "is_warn_always_enabled", "typename", "Size", "device"),
    *("amp.is_autocast_available", "amp.autocast_mode.is_autocast_available", "_C._is_autocast_available"),
    *("jit.is_scripting", "jit.is_tracing", "jit.annotate", "jit.isinstance", "_jit_internal.is_scripting"),
    *("_C._get_tracing_state", "_C._is_tracing", "_C._log_api_usage_once", "_C._is_any_autocast_enabled"),
    *("_C._get_privateuse1_backend_name", "_C._infer_size", "compiler.is_exporting"),
)
"""Under `torch.`: answered by nothing but the arguments and the modes that are guarded anyway."""
_QUESTIONS_OF_PROCESS = (
    *("get_num_threads", "get_num_interop_threads", "cuda.is_available", "cuda.device_count"),
    *("cuda.current_device", "cuda.get_device_capability", "cuda.get_device_name", "cuda.is_bf16_supported"),
    *("cuda.is_initialized", "cpu.is_available", "xpu.is_available", "mps.is_available"),
    *("accelerator.is_available", "accelerator.device_count", "accelerator.current_accelerator"),
    *(
        "backends.mps.is_available",
        "backends.mps.is_built",
        "backends.cuda.is_built",
        "backends.cudnn.version",
    ),
    *("backends.cudnn.is_available", "backends.mkldnn.is_available", "backends.openmp.is_available"),
    *("backends.mkl.is_available", "backends.cudnn.is_acceptable", "backends.cuda.flash_sdp_enabled"),
    *("backends.cuda.math_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled"),
    *("backends.cuda.cudnn_sdp_enabled", "backends.mha.get_fastpath_enabled", "_C._get_cudnn_enabled"),
    *("_C._get_mkldnn_enabled", "distributed.is_available", "distributed.is_initialized"),
    *("distributed.get_rank", "distributed.get_world_size", "utils._device._device_constructors"),
)
"""Under `torch.`: the answer can change between calls, and no mode tells."""

_RANDOM = "it changes or reads the state of a random generator"
_FILES = "it reads or writes files"
_WAITS = "it waits for a device"
_RANKS = "other processes take part in it"
_STATE = "it changes a setting of the process"
_TRANSFORM = "a transform of functions is not followed"
_GRADIENTS = "gradients are computed outside of graphs"
_COMPILES = "it compiles or exports code"
_PROFILES = "a profiler records what happens while it runs"
_MAKES = "the tensor that it makes is not seen by the recorder"
_OPAQUE_MODULES: Mapping[str, tuple[BreakKind, str]] = {
    **dict.fromkeys(("torch.random", "torch.cuda.random", "torch.mps.random"), (BreakKind.OUTSIDE, _RANDOM)),
    **dict.fromkeys(("torch.xpu.random", "torch._C.Generator"), (BreakKind.OUTSIDE, _RANDOM)),
    **dict.fromkeys(("torch.serialization", "torch.hub", "torch._tensor_str"), (BreakKind.OUTSIDE, _FILES)),
    **dict.fromkeys(("torch.distributed", "torch.multiprocessing"), (BreakKind.OUTSIDE, _RANKS)),
    **dict.fromkeys(("torch.func", "torch._functorch"), (BreakKind.UNSUPPORTED, _TRANSFORM)),
    **dict.fromkeys(
        ("torch._higher_order_ops", "torch._ops.higher_order"), (BreakKind.UNSUPPORTED, _TRANSFORM)
    ),
    **dict.fromkeys(
        ("torch.autograd.forward_ad", "torch.autograd.functional"), (BreakKind.UNSUPPORTED, _GRADIENTS)
    ),
    **dict.fromkeys(("torch.autograd", "torch.autograd.graph"), (BreakKind.UNSUPPORTED, _GRADIENTS)),
    "torch.utils.checkpoint": (BreakKind.UNSUPPORTED, _GRADIENTS),
    **dict.fromkeys(
        ("torch.export", "torch.jit", "torch.onnx", "torch.fx"), (BreakKind.UNSUPPORTED, _COMPILES)
    ),
    **dict.fromkeys(("torch._dynamo", "torch._inductor"), (BreakKind.UNSUPPORTED, _COMPILES)),
    **dict.fromkeys(("torch.profiler", "torch.autograd.profiler"), (BreakKind.OUTSIDE, _PROFILES)),
    **dict.fromkeys(("torch.cuda.nvtx", "torch.cuda.profiler"), (BreakKind.OUTSIDE, _PROFILES)),
    **dict.fromkeys(("torch.cuda.streams", "torch.cuda.graphs"), (BreakKind.OUTSIDE, _WAITS)),
    "torch.nn.attention": (BreakKind.UNSUPPORTED, _STATE),
}
"""Modules of torch that Python must run, with all below them that is not named itself."""
_STEPPED = frozenset({"torch.autograd.grad_mode", "torch.distributed._functional_collectives"})
_BREAKING: Mapping[str, tuple[BreakKind, str]] = {
    **dict.fromkeys(("_dynamo.graph_break", "_dynamo.skip_frame"), (BreakKind.REQUESTED, "asked for here")),
    **dict.fromkeys(("compile", "compiler.disable", "compiler.reset"), (BreakKind.UNSUPPORTED, _COMPILES)),
    **dict.fromkeys(("cuda.synchronize", "cpu.synchronize", "mps.synchronize"), (BreakKind.OUTSIDE, _WAITS)),
    **dict.fromkeys(
        ("accelerator.synchronize", "xpu.synchronize", "cuda.stream"), (BreakKind.OUTSIDE, _WAITS)
    ),
    **dict.fromkeys(("cond", "while_loop", "vmap"), (BreakKind.UNSUPPORTED, _TRANSFORM)),
    **dict.fromkeys(("Generator", "manual_seed", "seed", "initial_seed"), (BreakKind.OUTSIDE, _RANDOM)),
    **dict.fromkeys(("set_default_dtype", "set_default_device"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("set_default_tensor_type", "set_warn_always"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("use_deterministic_algorithms", "set_flush_denormal"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("set_deterministic_debug_mode", "set_num_threads"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("set_float32_matmul_precision", "set_printoptions"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("_C._InferenceMode", "inference_mode"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(("backends.cudnn.flags", "backends.cuda.sdp_kernel"), (BreakKind.UNSUPPORTED, _STATE)),
    **dict.fromkeys(
        ("from_numpy", "frombuffer", "from_dlpack", "from_file"), (BreakKind.UNSUPPORTED, _MAKES)
    ),
    **dict.fromkeys(("Tensor", "nn.Parameter", "nn.Buffer"), (BreakKind.UNSUPPORTED, _MAKES)),
}
"""Under `torch.`."""
_SETTERS_SEEN = frozenset({"_set_grad_enabled"})
"""Setters whose state the recorder writes into the graph."""


def why_break(function: Any) -> BreakReason | None:
    """Why Python must run this function and capture goes on after it; None if it can be traced or called."""
    name = _written(function)
    if getattr(function, "_torchdynamo_disable", False) is True:
        return BreakReason(BreakKind.REQUESTED, f"{name} is under torch.compiler.disable")
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) and name.endswith("apply"):
        return BreakReason(
            BreakKind.UNSUPPORTED, f"{owner.__qualname__}.apply: a backward of the user's own is not followed"
        )
    if isinstance(owner, torch.device | torch.Generator) and not name.endswith("__"):
        return BreakReason(BreakKind.OUTSIDE, f"{name}: {_RANDOM}")
    if isinstance(owner, torch.device) and name.endswith(("__enter__", "__exit__")):
        return BreakReason(BreakKind.UNSUPPORTED, "a default device set by `with`", "pass device=")
    if isinstance(function, HigherOrderOperator):
        return BreakReason(BreakKind.UNSUPPORTED, f"{name}: {_TRANSFORM}")
    if isinstance(function, type) and type(function).__name__ == "tensortype":
        return BreakReason(BreakKind.UNSUPPORTED, f"{name}: {_MAKES}", "use torch.tensor(..., dtype=...)")
    found = _lookup(_breaking(), function)
    if found is None and _lookup(_questions(), function) is None and original_of(function) is None:
        found = _of_module(function)
    if found is None and _is_setter(function):
        found = (BreakKind.UNSUPPORTED, _STATE)
    return None if found is None else BreakReason(found[0], f"{name}: {found[1]}")


def original_of(function: Any) -> Callable[..., Any] | torch.nn.Module | None:
    """What `torch.compile` or `torch.jit.script` was given: that is what is traced. None for other functions.

    Checked on torch 2.11 to 2.13 (`_torchdynamo_orig_callable`, `_torchdynamo_inline`, `_orig_mod`,
    `__original_fn`).
    """
    if isinstance(function, torch.nn.Module):
        original = function.__dict__.get("_modules", {}).get("_orig_mod")
        return original if type(function).__name__ == "OptimizedModule" else None
    members = getattr(function, "__dict__", {})
    if getattr(function, "_torchdynamo_disable", False) is True:
        return None
    if isinstance(function, torch.jit.ScriptFunction):
        found = getattr(function, "_torchdynamo_inline", None)
    else:
        found = members.get("_torchdynamo_orig_callable") or members.get("__original_fn")
    return found if callable(found) else None


def is_constant_fold(function: Any) -> bool:
    """Whether it asks about constants and modes alone, so that what it answers now it answers on every call.

    For those of `needs_guard` that holds only as long as the same call still answers the same.
    """
    return _lookup(_questions(), function) is not None


def needs_guard(function: Any) -> bool:
    """Whether what a constant fold answers must be checked on each call: flags, devices, ranks."""
    return _lookup(_questions(), function) is True


def answer(function: Any, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a constant fold answers while tracing."""
    fixed = _lookup(_answers(), function)
    return function(*args, **kwargs) if fixed is None else fixed


def is_leaf(function: Any) -> bool:
    """Whether it is called as a whole, with fakes: the recorder sees it or what it is made of."""
    if isinstance(function, OpOverload | OpOverloadPacket | torch._library.custom_ops.CustomOpDef):
        return True
    if isinstance(function, types.MethodType):
        return isinstance(function.__self__, torch.Tensor) and _module_of(function) == "torch._tensor"
    if isinstance(function, _C_KINDS):
        return _is_of_torch(function)
    if not isinstance(function, types.FunctionType):
        return False
    return function.__module__ in _LEAF_MODULES or _lookup(_overridable(), function) is not None


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor):
        return True
    kind = getattr(function, "__objclass__", None) or getattr(owner, "__objclass__", None)
    if isinstance(kind, type):
        return issubclass(torch.Tensor, kind) and kind is not object
    if isinstance(owner, torch.Size | torch.dtype | torch.device | torch.finfo | torch.iinfo):
        return True
    module = _module_of(function)
    return (
        module in _LEAF_MODULES or _lookup(_overridable(), function) is not None or _is_grad_setter(function)
    )


def _is_grad_setter(function: Any) -> bool:
    return _module_of(function) == "torch._C" and getattr(function, "__name__", "") in _SETTERS_SEEN


def _is_setter(function: Any) -> bool:
    """A setter in C whose state no graph shows: `torch._C._set_cudnn_enabled`."""
    name = getattr(function, "__name__", "")
    return (
        isinstance(function, types.BuiltinFunctionType)
        and _module_of(function) == "torch._C"
        and str(name).startswith(("_set_", "set_"))
        and name not in _SETTERS_SEEN
    )


def _of_module(function: Any) -> tuple[BreakKind, str] | None:
    module = _module_of(function)
    if module in _STEPPED or not isinstance(function, types.FunctionType | types.BuiltinFunctionType | type):
        return None
    parts = module.split(".")
    for count in range(len(parts), 1, -1):
        found = _OPAQUE_MODULES.get(".".join(parts[:count]))
        if found is not None:
            return found
    return None


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", None) or "")


def _written(function: Any) -> str:
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or str(function)
    name = str(name).replace("_VariableFunctionsClass.", "").replace("boolean_dispatch.<locals>.", "")
    module = _module_of(function)
    return f"{module}.{name}" if module.split(".")[0] == "torch" else name


def _lookup(table: Mapping[int, Any], function: Any) -> Any:
    return table.get(id(function))


def _by_identity(entries: Iterable[tuple[str, Any]]) -> dict[int, Any]:
    """Functions by `id`; torch's modules keep them alive. Names that this torch lacks are passed over."""
    found = {}
    for path, value in entries:
        member: Any = torch
        for part in path.removeprefix("torch.").split("."):
            member = getattr(member, part, None)
        if callable(member):
            found[id(member)] = value
    return found


@functools.cache
def _breaking() -> Mapping[int, tuple[BreakKind, str]]:
    return _by_identity(_BREAKING.items())


@functools.cache
def _answers() -> Mapping[int, bool]:
    return _by_identity(_ANSWERS.items())


@functools.cache
def _questions() -> Mapping[int, bool]:
    """Whether a question needs a guard of its own."""
    free = [(name, False) for name in (*_QUESTIONS, *_ANSWERS)]
    return _by_identity([*free, *((name, True) for name in _QUESTIONS_OF_PROCESS)])


@functools.cache
def _overridable() -> Mapping[int, bool]:
    """Checked on torch 2.11 to 2.13 (`get_overridable_functions`)."""
    listed = torch.overrides.get_overridable_functions()
    return {id(function): True for functions in listed.values() for function in functions}
