"""Functions, methods and attributes of torch by name, and what a capture must know about them.

Names in a text are those under `torch.`; those of `REFUSED` are bare. A name that a version lacks is skipped.
Each was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Mapping

QUERIES = """
    is_tensor is_storage finfo iinfo promote_types can_cast broadcast_shapes typename Size device
    is_grad_enabled is_inference_mode_enabled get_default_dtype get_default_device
    is_autocast_enabled is_autocast_cpu_enabled get_autocast_dtype get_autocast_cpu_dtype
    get_autocast_gpu_dtype is_autocast_cache_enabled amp.autocast_mode.is_autocast_available
    are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled
    get_deterministic_debug_mode get_float32_matmul_precision compiler.is_exporting
    jit.is_scripting jit.is_tracing jit.annotate jit.isinstance _jit_internal.is_scripting
    _C._get_tracing_state _C._is_tracing _C._log_api_usage_once _C._is_any_autocast_enabled
    _C._is_autocast_available _C._get_privateuse1_backend_name _C._infer_size
"""
"""Their results depend on the arguments and on modes that are guarded anyway."""
QUERIES_OF_PROCESS = """
    is_warn_always_enabled get_num_threads get_num_interop_threads
    cuda.is_available cuda.device_count cuda.current_device cuda.get_device_capability
    cuda.get_device_name cuda.is_bf16_supported cuda.is_initialized
    cpu.is_available xpu.is_available mps.is_available accelerator.is_available accelerator.device_count
    accelerator.current_accelerator backends.mps.is_available backends.mps.is_built backends.cuda.is_built
    backends.cudnn.version backends.cudnn.is_available backends.cudnn.is_acceptable
    backends.mkldnn.is_available backends.mkl.is_available backends.openmp.is_available
    backends.cuda.flash_sdp_enabled backends.cuda.math_sdp_enabled backends.cuda.cudnn_sdp_enabled
    backends.cuda.mem_efficient_sdp_enabled backends.mha.get_fastpath_enabled _C._get_cudnn_enabled
    _C._get_mkldnn_enabled distributed.is_available distributed.is_initialized distributed.get_rank
    distributed.get_world_size
"""
"""Their results can change between calls, and no guarded mode covers them."""

MODE_SWITCHES = """
    overrides.TorchFunctionMode.__enter__ overrides.TorchFunctionMode.__exit__
    overrides._push_mode overrides._pop_mode
    utils._python_dispatch.TorchDispatchMode.__enter__ utils._python_dispatch.TorchDispatchMode.__exit__
    utils._python_dispatch._push_mode utils._python_dispatch._pop_mode
    _C._push_on_torch_function_stack _C._pop_torch_function_stack
    _C._push_on_torch_dispatch_stack _C._pop_torch_dispatch_stack
    _C._set_dispatch_mode _C._unset_dispatch_mode
"""
"""They enter or leave a mode that sees each operation."""
SETTINGS = """
    set_default_dtype set_default_device set_default_tensor_type set_warn_always set_num_threads
    use_deterministic_algorithms set_deterministic_debug_mode set_float32_matmul_precision
    set_flush_denormal inference_mode _C._InferenceMode backends.cudnn.flags backends.cuda.sdp_kernel
"""
"""They change a setting of the process."""
WAITING = """
    cuda.synchronize cpu.synchronize mps.synchronize xpu.synchronize accelerator.synchronize cuda.stream
"""
"""They wait for a device."""

OF_AUTOGRAD = "gradients are computed outside of graphs"
_REFUSALS = {
    OF_AUTOGRAD: """
        backward grad retain_grad register_hook grad_fn register_post_accumulate_grad_hook _backward_hooks
        _grad _grad_fn _post_accumulate_grad_hooks
    """,
    "a graph has no memory of its own to look at": """
        data_ptr untyped_storage storage _typed_storage storage_type share_memory_ is_shared is_set_to
        is_pinned _is_view _version _base _cdata
    """,
    "it changes what a tensor is, not what it holds": """
        set_ resize_ resize_as_ resize resize_as detach_ as_subclass _make_subclass rename_ swap_tensors
    """,
    "it runs code that the graph cannot hold": """
        apply_ map_ map2_ __deepcopy__ __reduce_ex__ __setstate__ from_file save from_dlpack frombuffer
        set_printoptions
    """,
    "a fake of what it gives would not be quantized": """
        quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel
    """,
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REFUSALS.items() for name in names.split()}
"""Functions, methods and attributes by name, with the reason."""

READS_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("numpy", "__array__", "__array_wrap__"), "NumPy works on the data of a tensor"),
    "__dlpack__": "another library works on the data of a tensor",
    **dict.fromkeys(("__repr__", "__str__", "__format__"), "printing a tensor needs its values"),
    "tolist": "numbers of Python are made of the values of a tensor",
}
"""Methods for which fakes return a value, or raise an error of another kind."""

ANSWERS: Mapping[str, bool] = {
    # Code checks this to choose a path that is easy to trace.
    "compiler.is_compiling": True,
    "compiler.is_dynamo_compiling": True,
    "_dynamo.is_compiling": True,
    "_utils.is_compiling": True,
    # The recorder is such a mode; without it the result would be False.
    "_C._is_torch_function_mode_enabled": False,
}
"""Queries with a fixed answer while a function is traced."""
