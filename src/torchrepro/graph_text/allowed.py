"""The table of what a stranger's graph may call: functions that compute on tensors or set a mode around them.

Dynamo has a table of what may stand in a graph (`torch._dynamo.trace_rules`). It is no security boundary: it
lists `torch.import_ir_module` (TorchScript from a file) and `torch._weights_only_unpickler.load`. This one
lists only what neither imports, loads, opens, compiles nor registers anything, nor calls what it is given.
"""

from __future__ import annotations

from enum import Enum


class Rule(Enum):
    """Which functions of a module are allowed, where they are not listed by name."""

    C_FUNCTIONS = "every function written in C"
    OWN_FUNCTIONS = "every Python function that the module itself defines, private ones excepted"


# In order of preference: a function found at several places is written by the first one.
MODULES: dict[str, Rule | tuple[str, ...]] = {
    "torch": (
        *("sym_int", "sym_float", "sym_not", "sym_max", "sym_min", "sym_sum", "sym_ite", "sym_sqrt"),
        *(f"_sym_{name}" for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan")),
        *(f"_sym_{name}" for name in ("sinh", "cosh", "tanh", "exp", "log2")),
        *("_check", "_check_is_size", "_check_index", "_check_value", "_check_type", "_check_tensor_all"),
        *("_assert", "is_tensor", "is_storage", "is_grad_enabled", "is_inference_mode_enabled"),
        *("get_default_dtype", "get_default_device", "get_autocast_dtype", "get_autocast_cpu_dtype"),
        *("get_autocast_gpu_dtype", "is_autocast_enabled", "is_autocast_cpu_enabled"),
        *("is_autocast_cache_enabled", "set_autocast_enabled", "set_autocast_dtype"),
        *("set_autocast_cache_enabled", "autocast_increment_nesting", "autocast_decrement_nesting"),
        *("clear_autocast_cache", "set_grad_enabled", "seed", "manual_seed", "initial_seed"),
        *("get_rng_state", "set_rng_state", "are_deterministic_algorithms_enabled", "get_num_threads"),
        *("get_float32_matmul_precision", "set_float32_matmul_precision", "use_deterministic_algorithms"),
        *("set_default_dtype", "_is_functional_tensor", "_functionalize_sync", "_mirror_autograd_meta_to"),
        *("is_deterministic_algorithms_warn_only_enabled", "get_deterministic_debug_mode"),
        *("set_deterministic_debug_mode", "finfo", "iinfo"),
    ),
    "torch._C._VariableFunctions": Rule.C_FUNCTIONS,
    "torch.functional": Rule.OWN_FUNCTIONS,
    "torch.nn.functional": Rule.OWN_FUNCTIONS,
    "torch._C._nn": Rule.C_FUNCTIONS,
    "torch._C._fft": Rule.C_FUNCTIONS,
    "torch._C._linalg": Rule.C_FUNCTIONS,
    "torch._C._special": Rule.C_FUNCTIONS,
    "torch._C._sparse": Rule.C_FUNCTIONS,
    "torch._C._nested": Rule.C_FUNCTIONS,
    "torch._C._functorch": Rule.C_FUNCTIONS,
    "torch._C._autograd": (
        "_saved_tensors_hooks_disable",
        "_saved_tensors_hooks_enable",
        "_saved_tensors_hooks_is_enabled",
    ),
    "torch._C": (
        *("_set_grad_enabled", "_set_fwd_grad_enabled", "_is_fwd_grad_enabled", "_enter_dual_level"),
        *("_exit_dual_level", "_vmapmode_increment_nesting", "_vmapmode_decrement_nesting"),
        *("_set_multithreading_enabled", "_is_multithreading_enabled", "_set_view_replay_enabled"),
        *("_is_view_replay_enabled", "_log_api_usage_once", "_get_tracing_state", "_is_tracing"),
        *("_is_any_autocast_enabled", "_is_autocast_available", "_is_torch_function_enabled"),
        *("_set_deterministic_algorithms", "_set_float32_matmul_precision", "_set_cublas_allow_tf32"),
        *("_set_cudnn_allow_tf32", "_set_cudnn_benchmark", "_set_cudnn_deterministic", "_set_cudnn_enabled"),
        *("_set_mkldnn_enabled", "_set_default_dtype", "_set_sdp_use_flash", "_set_sdp_use_math"),
        *("_set_sdp_use_mem_efficient", "_set_sdp_use_cudnn", "_set_sdp_use_overrideable"),
        *("_get_flash_sdp_enabled", "_get_math_sdp_enabled", "_get_mem_efficient_sdp_enabled"),
        *("_get_cudnn_sdp_enabled", "_get_overrideable_sdp_enabled", "_set_sdp_priority_order"),
        *("_set_conj", "_set_neg", "_infer_size", "_is_alias_of", "_overlaps", "_has_storage"),
        *("_cuda_getDevice", "_cuda_synchronize", "_select_conv_backend", "_get_cublas_allow_tf32"),
    ),
    "torch.nn.attention": ("_sdpa_kernel", "_cur_sdpa_kernel_backends", "_backend_from_string"),
    "torch.backends.cuda": (
        *("enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"),
        *("flash_sdp_enabled", "math_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled"),
    ),
    "torch.cuda": ("synchronize", "current_device", "is_available", "device_count"),
    "torch.cpu": ("synchronize", "current_device", "is_available", "device_count"),
    "torch.accelerator": ("synchronize", "current_device_index", "is_available", "device_count"),
    "torch.cuda.nvtx": ("mark", "range_push", "range_pop"),
    "torch.random": ("seed", "manual_seed", "initial_seed", "get_rng_state", "set_rng_state"),
    "torch.cuda.random": ("seed", "manual_seed", "initial_seed", "get_rng_state", "set_rng_state"),
    "torch.autograd.graph": ("increment_version",),
    "torch.nn._reduction": Rule.OWN_FUNCTIONS,
    "torch.nn.grad": Rule.OWN_FUNCTIONS,
    "torch.nested": ("as_nested_tensor", "narrow", "nested_tensor", "to_padded_tensor"),
    "torch.sparse": ("sum",),
    "torch._utils": ("_flatten_dense_tensors", "_unflatten_dense_tensors"),
    "torch._linalg_utils": Rule.OWN_FUNCTIONS,
    "torch.amp.autocast_mode": ("_enter_autocast", "_exit_autocast"),
    "torch.autograd.grad_mode": ("_enter_inference_mode", "_exit_inference_mode"),
    "torch.autograd.forward_ad": (
        "_maybe_load_decompositions",
        "_set_fwd_grad_enabled",
        "_is_fwd_grad_enabled",
        "enter_dual_level",
        "exit_dual_level",
        "make_dual",
        "unpack_dual",
    ),
    "torch.autograd": ("grad",),
    "torch._functorch.predispatch": (
        *("_add_batch_dim", "_remove_batch_dim", "_vmap_increment_nesting", "_vmap_decrement_nesting"),
        *("lazy_load_decompositions", "_make_dual", "_unpack_dual", "_jvp_increment_nesting"),
        *("_jvp_decrement_nesting", "_unwrap_for_grad", "_enter_dual_level", "_exit_dual_level"),
    ),
    "torch._functorch.vmap": ("lazy_load_decompositions", "_add_batch_dim", "_remove_batch_dim"),
    "torch._functorch.eager_transforms": (
        *("_set_tensor_requires_grad", "_autograd_grad", "_create_differentiable", "_any_differentiable"),
        *("_wrap_tensor_for_grad", "_undo_create_differentiable", "_construct_standard_basis_for"),
    ),
    "torch.fx.experimental.symbolic_shapes": (
        *("guard_int", "guard_float", "guard_bool", "guard_or_true", "guard_or_false"),
        *("guard_size_oblivious", "guarding_hint_or_throw", "sym_eq"),
    ),
    "torch.nn.init": Rule.OWN_FUNCTIONS,
    "torch.nn.utils.rnn": Rule.OWN_FUNCTIONS,
    "torch.signal.windows.windows": Rule.OWN_FUNCTIONS,
    "torch.masked._ops": Rule.OWN_FUNCTIONS,
    "torch._lowrank": Rule.OWN_FUNCTIONS,
    "torch._lobpcg": Rule.OWN_FUNCTIONS,
    "torch.distributed._functional_collectives": (
        *("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"),
        *("wait_tensor", "all_reduce_coalesced", "all_gather_into_tensor_coalesced"),
        *("reduce_scatter_tensor_coalesced",),
    ),
    "torch._dynamo.utils": ("numpy_attr_wrapper",),
    "math": Rule.C_FUNCTIONS,
    "operator": Rule.C_FUNCTIONS,
    "builtins": (
        *("abs", "all", "any", "bool", "complex", "dict", "divmod", "float", "int", "len", "list", "max"),
        *("min", "pow", "range", "round", "set", "slice", "str", "sum", "tuple"),
    ),
}

REFUSED: dict[str, frozenset[str]] = {
    # These read and write files.
    "torch._C._VariableFunctions": frozenset({"from_file"}),
    # This calls its argument.
    "operator": frozenset({"call"}),
    # These mangle names; they compute nothing on tensors.
    "torch._C._nn": frozenset({"_parse_to"}),
}

# `aten::save` pickles into a file, `aten::from_file` maps one, `debugprims::load_tensor` reads one.
REFUSED_OPS = frozenset({"aten::save", "aten::from_file", "debugprims::load_tensor"})

# A stranger may call no operator that runs code it is given: assembler text, compiled or delegated graphs.
STRANGERS_REFUSED_OPS = frozenset(
    {
        *("higher_order::inline_asm_elementwise", "higher_order::inductor_compiled_code"),
        *("higher_order::aoti_call_delegate", "higher_order::executorch_call_delegate"),
        *("higher_order::call_torchbind", "higher_order::invoke_leaf_function"),
        *("prim::PythonOp", "prim::IgnoredPythonOp", "profiler::_call_end_callbacks_on_jit_fut"),
    }
)

# Modules outside of torch's package for them whose import registers higher-order operators.
HIGHER_ORDER_MODULES = ("torch._functorch.autograd_function", "torch._prims.rng_prims")
# Modules whose import registers ordinary operators that Inductor's graphs use.
OPERATOR_MODULES = ("torch._inductor.inductor_prims", "torch._inductor.kernel", "torch._prims")

# What `getattr` in a graph may read: the data attributes of a tensor.
ATTRIBUTES = frozenset(
    {
        *("T", "H", "mT", "mH", "real", "imag", "grad", "data", "shape", "dtype", "device", "layout", "ndim"),
        *("itemsize", "nbytes", "is_leaf", "requires_grad", "is_cuda", "is_cpu", "is_sparse", "is_quantized"),
        *("is_meta", "is_nested", "_base", "_version", "output_nr", "names", "values", "indices", "sign"),
        *("logabsdet", "eigenvalues", "eigenvectors", "min", "max", "eps", "tiny", "bits", "resolution"),
    }
)

# Python's arithmetic protocol; no other dunder is a method of the data model of tensors.
DUNDER_METHODS = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
        *("lshift", "rshift", "div"),
    )
) | frozenset(
    f"__{name}__"
    for name in (
        *("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge", "len", "getitem", "setitem"),
        *("bool", "int", "float", "index", "contains", "divmod", "round"),
    )
)

# Of distributed tensors.
DTENSOR_METHODS = frozenset({"to_local", "redistribute", "full_tensor"})
DTENSOR_FUNCTIONS = frozenset({"from_local"})

# These call their arguments, or expose memory and hooks.
REFUSED_METHODS = frozenset(
    {
        *("apply_", "map_", "map2_", "register_hook", "register_post_accumulate_grad_hook", "share_memory_"),
        *("as_subclass", "_make_subclass", "_make_wrapper_subclass", "module_load"),
    }
)
