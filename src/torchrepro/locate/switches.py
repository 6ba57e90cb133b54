"""The switches of torch's compilers, a row each: what it is, how it is turned off, what that means.

Within a table the more telling row stands first (`narrowing.py` takes the first that suffices): a narrow one
before one that includes it, and what generates code before what decides how much of it there is. An option
that this version of torch does not have, or that is off already, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from torchrepro.engine.processes.choose_executor import devices_of
from torchrepro.locate.ablation import Off
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.torch_api.configs import CONFIG_MODULES


@dataclass(frozen=True, slots=True)
class Switch:
    """One thing that can be turned off."""

    kind: str
    """`pass`, `decomposition`, `lowering`, `fusion`, `vectorisation`, `option`."""
    name: str
    off: Off
    meaning: str
    """What has been turned off, in words: `the failure goes away without ...`."""
    weight: float = 1.0
    """How likely it is the culprit, compared with others."""


@dataclass(frozen=True, slots=True)
class _Row:
    kind: str
    meaning: str
    """`the failure goes away without ...`."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Options, each with the value that turns it off."""


_CODE_GENERATION = (
    _Row("option", "reuse of a buffer in place", {"inplace_buffers": False}),
    _Row("option", "padding in place", {"inplace_padding": False}),
    _Row("option", "reuse of freed buffers", {"allow_buffer_reuse": False}),
    _Row("option", "planning of memory in pools", {"memory_planning": False}),
    _Row("option", "another order to save memory", {"reorder_for_peak_memory": False}),
    _Row("option", "dead code elimination", {"use_dce": False}),
    _Row("option", "the tanh made of other functions", {"cpp.use_decompose_tanh": False}),
    _Row("option", "mathematics that is not exact", {"cpp.enable_unsafe_math_opt_flag": False}),
    _Row("option", "fast mathematics", {"use_fast_math": False}),
    _Row("option", "fused multiply-add", {"cpp.enable_floating_point_contract_flag": "off"}),
    _Row("option", "scatter with atomic additions", {"cpp.fallback_scatter_reduce_sum": True}),
    _Row("option", "packed weights", {"cpp.weight_prepack": False}),
    _Row("option", "frozen weights", {"freezing": False}),
    _Row("option", "softmax in one go", {"online_softmax": False}),
    _Row("option", "split reductions", {"split_reductions": False}),
    _Row("option", "unrolled reductions", {"unroll_reductions_threshold": 1}),
    _Row("option", "persistent reductions", {"triton.persistent_reductions": False}),
    _Row("option", "cooperative reductions", {"triton.cooperative_reductions": False}),
    _Row("option", "reductions of mixed order", {"triton.mix_order_reduction": False}),
    _Row("option", "several kernels for one", {"triton.multi_kernel": 0}),
    _Row("option", "block pointers", {"triton.use_block_ptr": False}),
    _Row("option", "tensor descriptors", {"triton.use_tensor_descriptor": False}),
    _Row("option", "tiling by coalescing", {"triton.coalesce_tiling_analysis": False}),
    _Row("option", "CUDA graphs", {"triton.cudagraphs": False}),
    _Row("option", "partition of the graph", {"graph_partition": False}),
    _Row("option", "kernels that do several things", {"combo_kernels": False}),
    _Row("option", "the wrapper in C++", {"cpp_wrapper": False}),
    _Row("option", "static launching of kernels", {"use_static_cuda_launcher": False}),
    _Row("option", "random numbers of its own", {"fallback_random": True}),
    _Row("option", "intermediate values that are not rounded", {"emulate_precision_casts": True}),
    _Row("option", "constants and indices computed ahead", {"constant_and_index_propagation": False}),
    _Row("option", "another layout for convolutions", {"layout_optimization": False}),
    _Row("option", "padded strides", {"comprehensive_padding": False}),
    _Row("option", "padded matrices", {"shape_padding": False}),
    _Row(
        "option",
        "tuning",
        {
            "max_autotune": False,
            "max_autotune_gemm": False,
            "max_autotune_pointwise": False,
            "coordinate_descent_tuning": False,
            "benchmark_fusion": False,
        },
    ),
    _Row("vectorisation", "vectorised tails of loops", {"cpp.enable_loop_tail_vec": False}),
    _Row("vectorisation", "the choice of loops to vectorise", {"cpp.enable_tiling_heuristics": False}),
    _Row("vectorisation", "vectorised C++ code", {"cpp.simdlen": 1}),
    _Row("option", "several threads", {"cpp.threads": 1}),
    _Row(
        "option",
        "another order of loops",
        {
            "loop_ordering_after_fusion": False,
            "loop_reindexing_after_fusion": False,
            "loop_index_inversion_in_fusion": False,
            "pick_loop_orders": False,
        },
    ),
    _Row("fusion", "concatenation as a pointwise kernel", {"max_pointwise_cat_inputs": 0}),
    _Row("fusion", "fusion into templates", {"epilogue_fusion": False, "prologue_fusion": False}),
    _Row("fusion", "fusion side by side", {"cpp.max_horizontal_fusion_size": 1, "aggressive_fusion": False}),
    _Row("fusion", "fusion of kernels", {"max_fusion_size": 1}),
    _Row(
        "fusion",
        "computing a value again where it is used",
        {
            "realize_opcount_threshold": 0,
            "realize_reads_threshold": 0,
            "realize_acc_reads_threshold": 0,
        },
    ),
)

# Seen far more often than the others, in the cases of tests/cases/real and in torch's tracker.
_LIKELY = {"vectorisation": 6.0, "fusion": 4.0}

_AOT = (
    _Row("option", "autocast in backward as in forward", {"backward_pass_autocast": "off"}),
    _Row("option", "views made again from their base", {"view_replay_for_aliased_outputs": False}),
    _Row("option", "buffers that backward may overwrite", {"donated_buffer": False}),
    _Row("option", "strides of tangents as those of outputs", {"guess_tangent_strides_as_outputs": False}),
    _Row("option", "random operators as functions", {"functionalize_rng_ops": False}),
    _Row("option", "generator states inside graphs", {"graphsafe_rng_functionalization": False}),
    _Row("option", "static shapes of weights", {"static_weight_shapes": False}),
)

_PARTITION = (
    _Row("pass", "elimination of common subexpressions", {"cse": False}),
    _Row("pass", "parameters kept for backward at no cost", {"treat_parameters_as_free_to_save": False}),
    _Row(
        "pass",
        "computing values again in backward",
        {
            "ban_recompute_used_far_apart": True,
            "ban_recompute_not_in_allowlist": True,
            "ban_recompute_reductions": True,
            "aggressive_recomputation": False,
            "recompute_views": False,
            "activation_memory_budget": 1.0,
        },
    ),
)

_CAPTURE = (
    _Row("option", "dynamic shapes", {"automatic_dynamic_shapes": False, "assume_static_by_default": True}),
    _Row("option", "inlining of torch's own modules", {"inline_inbuilt_nn_modules": False}),
    _Row("option", "graphs of autograd functions", {"capture_autograd_function": False}),
    _Row("option", "graphs of transforms such as vmap", {"capture_func_transforms": False}),
    _Row("option", "numpy in graphs", {"trace_numpy": False}),
    _Row("option", "assertions in graphs", {"rewrite_assert_with_torch_assert": False}),
    _Row("option", "graphs that are shared", {"use_graph_deduplication": False}),
    _Row("option", "decompositions during capture", {"enable_dynamo_decompositions": False}),
    _Row("option", "context managers in graphs", {"enable_trace_contextlib": False}),
    _Row("option", "dead code elimination", {"dead_code_elimination": False}),
)


def of_code_generation(repro: Repro) -> list[Switch]:
    """Inductor's options that are on for this repro, as a user can write them."""
    current, devices = inductor_settings(repro), devices_of(repro)
    return [
        Switch(row.kind, ", ".join(values), Off(options=values), row.meaning, _LIKELY.get(row.kind, 1.0))
        for row, values in _that_change(_CODE_GENERATION, current)
        if any(_concerns(name, devices) for name in values)
    ]


def of_aot(repro: Repro) -> list[Switch]:
    return _of_config("functorch", _AOT, repro)


def of_partition(repro: Repro) -> list[Switch]:
    return _of_config("functorch", _PARTITION, repro)


def of_capture(repro: Repro) -> list[Switch]:
    return _of_config("dynamo", _CAPTURE, repro)


def by_name(kind: str, part: str, names: Iterable[str], meaning: str) -> list[Switch]:
    """A switch for each pass, rewrite, decomposition or lowering that a compilation has met."""
    return [Switch(kind, name, Off(parts={part: (name,)}), f"{meaning} {name}") for name in names]


def all_off(switches: Sequence[Switch]) -> Off:
    together = Off()
    for switch in switches:
        together |= switch.off
    return together


def inductor_settings(repro: Repro) -> dict[str, Any]:
    """Inductor's config as this repro has it.

    Checked on torch 2.11 and 2.13 (`get_config_copy`, `list_mode_options`).
    """
    from torchrepro.torch_api.inductor import config, list_mode_options

    known: dict[str, Any] = config.get_config_copy()
    compiler: Compiler = repro.compiler
    mode = list_mode_options(compiler.mode, compiler.dynamic) if compiler.mode else {}
    chosen = {**repro.ambient.configs.get("inductor", {}), **mode, **compiler.options}
    return {**known, **{name: value for name, value in chosen.items() if name in known}}


def _concerns(option: str, devices: frozenset[str]) -> bool:
    """Whether an option can matter: C++ is generated for the CPU, Triton for what else there is."""
    if option.startswith(("triton.", "use_static_cuda")):
        return bool(devices)
    return True


def _of_config(module: str, rows: Sequence[_Row], repro: Repro) -> list[Switch]:
    """Switches that are settings of Dynamo or of AOT. Checked on torch 2.11 and 2.13 (`get_config_copy`)."""
    config: Any = import_module(CONFIG_MODULES[module])
    current = {**config.get_config_copy(), **repro.ambient.configs.get(module, {})}
    return [
        Switch(
            row.kind,
            ", ".join(f"{module}.{name}" for name in values),
            Off(configs={module: values}),
            row.meaning,
        )
        for row, values in _that_change(rows, current)
    ]


def _that_change(rows: Sequence[_Row], current: Mapping[str, Any]) -> list[tuple[_Row, dict[str, Any]]]:
    """The rows that this torch has and that are not off already, with the values that would change."""
    found = []
    for row in rows:
        values = {
            name: value for name, value in row.values.items() if name in current and current[name] != value
        }
        if values:
            found.append((row, values))
    return found
