"""Private names of torch as text: modules that are hooked or recognised, and what generated scripts call.

Needs no torch. Each was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

DYNAMO = "torch._dynamo"
"""Loaded by the first `torch.compile`."""
OUTPUT_GRAPH = "torch._dynamo.output_graph"
"""Where every captured graph is passed to its backend."""
EVAL_FRAME = "torch._dynamo.eval_frame"
"""Where `torch.compile` wraps a function."""
CONTEXT_CLASS = "_TorchDynamoContext"
"""Its class there, which is called with each function."""
COMPILED_CALL = "compile_wrapper"
"""The function there that runs a call of what `torch.compile` returned."""
AUTOGRAD_GRAPH = "torch.autograd.graph"
ENGINE_CALL = "_engine_run_backward"
"""The function there that runs autograd's engine."""
BACKENDS_COMMON = "torch._dynamo.backends.common"
"""Where backends pass their compilers to AOT."""
COMPILE_FX = "torch._inductor.compile_fx"
"""Inductor's entry points."""
DEVICE_COMPILER = (
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.kernel_template_choice",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.triton",
    "torch._inductor.runtime.triton_heuristics",
    "torch._dynamo.backends.distributed",
    "torch._dynamo.backends.inductor",
    "torch._dynamo.repro.after_dynamo",
    "sympy.combinatorics",
    "sympy.tensor.tensor",
    "triton.compiler.compiler",
    "triton.compiler.code_generator",
    "triton.backends.nvidia.compiler",
)
"""What the first compilation for a GPU imports in addition, as far as that registers no rewrite."""
DYNAMO_UTILS = "torch._dynamo.utils"
"""Wrappers of NumPy calls in captured graphs."""
NUMPY_ATTRIBUTE = f"{DYNAMO_UTILS}.numpy_attr_wrapper"
"""Reads an attribute of an array in a captured graph."""
DYNAMO_ERRORS = "torch._dynamo.exc"
"""Errors of capture."""
INDUCTOR_ERRORS = "torch._inductor.exc"
"""Errors of inductor."""
WRAPPER_MARKS = {EVAL_FRAME: "_torchdynamo_orig_callable", "torch.jit._trace": "__original_fn"}
"""Modules whose wrappers of functions have the wrapped one in an attribute, and its name."""
MUTATION_GUARD = "torch._dynamo.mutation_guard"
"""Wraps the `__setattr__` of modules."""
FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"
"""The logger of fake tensors."""
NUMPY = "torch._numpy"
"""NumPy's functions on tensors."""
OPS = "torch._ops"
"""The module of operators."""
TENSOR = "torch._tensor"
"""The module of the tensor methods that are written in Python."""
C_MODULE = "torch._C"
"""The module of what is written in C++."""
C_FUNCTIONS = "torch._C._VariableFunctions"
"""The namespace of the functions of `torch` that are written in C++."""
C_HOMES = {
    "torch._C._nn": "torch.nn.functional",
    "torch._C._fft": "torch.fft",
    "torch._C._linalg": "torch.linalg",
    "torch._C._special": "torch.special",
}
"""The namespaces of functions that are written in C++, and the public modules that have them: `fft_rfft` in
the first is `rfft` in the second."""

FUNCTION_HOMES = (
    *("torch", "torch.functional", "torch.nn.functional", TENSOR, "torch._VF", OPS),
    *("torch.linalg", "torch.special", "torch.fft", "torch._lowrank", "torch._lobpcg", "torch.overrides"),
    *("torch._linalg_utils", "torch.nn._reduction", "torch.masked._ops", "torch._jit_internal"),
    *(*C_HOMES, "torch.nn.grad"),
)
"""Modules of torch whose functions compute on tensors."""
SWAPPED_HOMES = ("torch.autograd.grad_mode", "torch.func.functional_call", "torch._functorch.functional_call")
"""Modules of torch whose Python code is inlined."""

DRAW_AS_EAGER = "torch._inductor.config.fallback_random = True  # draw as eager does"
"""The line of a script that makes inductor draw from eager's generators."""
INDUCTOR_CONFIG = "torch._inductor.config"
"""Settings of inductor."""
INDUCTOR_UTILS = "torch._inductor.utils"
"""The module whose functions empty inductor's caches."""
INDUCTOR = "torch._inductor"
"""The module that a script imports to compile ahead of time."""
COMPILE_AHEAD = "torch._inductor.aoti_compile_and_package"
"""Compiles an exported program into a package."""
LOAD_PACKAGE = "torch._inductor.aoti_load_package"
"""Loads such a package."""
IMPORT_COMPILE_FX_INNER = "from torch._inductor.compile_fx import compile_fx_inner"
"""Inductor below AOT."""
IMPORT_MAKE_FX = "from torch.fx.experimental.proxy_tensor import make_fx"
"""Traces a function into a graph of ATen operators."""
AFTER_AOT_TOOL = "torch._dynamo.repro.after_aot"
"""Torch's tool that runs and minifies repros of graphs below AOT."""
AFTER_DYNAMO_TOOL = "torch._dynamo.repro.after_dynamo"
"""The same for graphs as Dynamo captures them."""
HIGHER_ORDER_OPS = "torch._higher_order_ops"
"""The module of `while_loop` for a script."""
ZERO_TENSOR = "torch._efficientzerotensor"
"""Zeros without memory."""
NEG_VIEW = "torch._neg_view"
"""The lazy negative of a tensor."""
EFFECT_TYPE = "torch._library.effects.EffectType"
"""The kinds of side effects of operators."""

FAKE_GROUPS = "torch.testing._internal.distributed.fake_pg"
"""The module whose import registers the backend "fake" of process groups, which does not communicate."""

REGISTER_GROUP = "torch.distributed.distributed_c10d._register_process_group"
"""Gives a process group the name by which operators find it."""
SUBCLASS_MODULES = frozenset(
    {
        *("torch.nested._internal.nested_tensor", "torch.sparse.semi_structured"),
        *("torch.distributed._functional_collectives", "torch._subclasses.complex_tensor._core"),
        *(f"torch.testing._internal.{name}" for name in ("two_tensor", "custom_tensor", "subclasses")),
    }
)
"""Modules of torch that define tensor subclasses; checked on torch 2.13."""
