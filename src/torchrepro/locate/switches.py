"""Turn off parts of torch's compilers: settings by the tables here, other parts by name.

`Off` is what is turned off, as data. It is applied in a child process only. Torch calls
`CompilerBisector.disable_subsystem` before each graph pass, decomposition and lowering. The original reads
files in the cache directory, which every other process would see; the replacement here decides in memory, by
name and not by number: the n-th lowering is a different one as soon as a pass is off. The rewrites of pattern
matchers, for which torch has no such call, each have a check that can reject a match.

Checked on torch 2.11 and 2.13 (`CompilerBisector.disable_subsystem`, `GraphTransformObserver.apply_gm_pass`
and `.apply_graph_pass`, `PatternMatcherPass.apply`, `V.graph.current_node`, `get_config_copy`,
`list_mode_options`).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from torch.fx import Graph, GraphModule

from torchrepro.engine.processes.executor import devices_of
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.configs import CONFIG_MODULES
from torchrepro.torch_api.patching import closed_over, replaced

INDUCTOR = "inductor"
PASSES, PATTERNS, DECOMPOSITIONS, LOWERINGS = "passes", "patterns", "decompositions", "lowerings"
"""Kinds of parts that can be left out by name: passes (`remove_noop_ops`, wherever one of that name is run),
rewrites of a pattern matcher (by the function that does it), decompositions (`aten.gelu.default` stays as it
is) and lowerings (inductor calls `aten.erf.default` in place of generated code)."""


@dataclass(frozen=True, slots=True)
class Off:
    """What is turned off in a compiler for one run: changed settings, and parts disabled by name."""

    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By config: `inductor` (a user writes it as `torch.compile(options=...)`), `dynamo`, `functorch`."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names by kind (`PASSES` and so on). `turned_off` disables them in the child process."""

    def __or__(self, other: Off) -> Off:
        settings = {
            name: {**self.settings.get(name, {}), **other.settings.get(name, {})}
            for name in (*self.settings, *other.settings)
        }
        parts = {
            kind: tuple(sorted({*self.parts.get(kind, ()), *other.parts.get(kind, ())}))
            for kind in (*self.parts, *other.parts)
        }
        return Off(settings, parts)

    def applied_to(self, repro: Repro) -> Repro:
        """Return the repro with the settings changed.

        `torch.compile` takes a mode or options, so with options a mode is expanded to its options.
        """
        compiler, configs = repro.compiler, dict(repro.ambient.configs)
        for name, values in self.settings.items():
            if name != INDUCTOR:
                configs[name] = {**configs.get(name, {}), **values}
            elif values:
                options = {**_options_of_mode(repro), **compiler.options, **values}
                compiler = replace(compiler, mode=None, options=options)
        return replace(repro, compiler=compiler, ambient=replace(repro.ambient, configs=configs))


@dataclass(frozen=True, slots=True)
class Switch:
    """One thing that can be turned off."""

    kind: str
    """`pass`, `decomposition`, `lowering`, `fusion`, `vectorisation`, `option`."""
    name: str
    off: Off
    meaning: str
    """What has been turned off, in words: `the failure goes away without ...`."""

    @property
    def weight(self) -> float:
        """How likely it is the culprit: these two are the most frequent in tests/cases/real and upstream."""
        return {"vectorisation": 6.0, "fusion": 4.0}.get(self.kind, 1.0)


# The kind of a switch, what it turns off, and the settings that do so. The more informative row is first
# (`narrow` takes the first that suffices): a narrow one before one that includes it, and what generates
# code before what decides how much of it there is.
_Row = tuple[str, str, Mapping[str, Any]]
_AUTOTUNING = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
_TUNING = (*_AUTOTUNING, "coordinate_descent_tuning", "benchmark_fusion")
_LOOPS = ("loop_ordering_after_fusion", "loop_reindexing_after_fusion", "loop_index_inversion_in_fusion")
_INLINING = ("realize_opcount_threshold", "realize_reads_threshold", "realize_acc_reads_threshold")
CODE_GENERATION: tuple[_Row, ...] = (
    ("option", "reuse of a buffer in place", {"inplace_buffers": False}),
    ("option", "padding in place", {"inplace_padding": False}),
    ("option", "reuse of freed buffers", {"allow_buffer_reuse": False}),
    ("option", "planning of memory in pools", {"memory_planning": False}),
    ("option", "another order to save memory", {"reorder_for_peak_memory": False}),
    ("option", "dead code elimination", {"use_dce": False}),
    ("option", "the tanh made of other functions", {"cpp.use_decompose_tanh": False}),
    ("option", "mathematics that is not exact", {"cpp.enable_unsafe_math_opt_flag": False}),
    ("option", "fast mathematics", {"use_fast_math": False}),
    ("option", "fused multiply-add", {"cpp.enable_floating_point_contract_flag": "off"}),
    ("option", "scatter with atomic additions", {"cpp.fallback_scatter_reduce_sum": True}),
    ("option", "packed weights", {"cpp.weight_prepack": False}),
    ("option", "frozen weights", {"freezing": False}),
    ("option", "softmax in one go", {"online_softmax": False}),
    ("option", "split reductions", {"split_reductions": False}),
    ("option", "unrolled reductions", {"unroll_reductions_threshold": 1}),
    ("option", "persistent reductions", {"triton.persistent_reductions": False}),
    ("option", "cooperative reductions", {"triton.cooperative_reductions": False}),
    ("option", "reductions of mixed order", {"triton.mix_order_reduction": False}),
    ("option", "several kernels for one", {"triton.multi_kernel": 0}),
    ("option", "block pointers", {"triton.use_block_ptr": False}),
    ("option", "tensor descriptors", {"triton.use_tensor_descriptor": False}),
    ("option", "tiling by coalescing", {"triton.coalesce_tiling_analysis": False}),
    ("option", "CUDA graphs", {"triton.cudagraphs": False}),
    ("option", "partition of the graph", {"graph_partition": False}),
    ("option", "kernels that do several things", {"combo_kernels": False}),
    ("option", "the wrapper in C++", {"cpp_wrapper": False}),
    ("option", "static launching of kernels", {"use_static_cuda_launcher": False}),
    ("option", "random numbers of its own", {"fallback_random": True}),
    ("option", "intermediate values that are not rounded", {"emulate_precision_casts": True}),
    ("option", "constants and indices computed ahead", {"constant_and_index_propagation": False}),
    ("option", "another layout for convolutions", {"layout_optimization": False}),
    ("option", "padded strides", {"comprehensive_padding": False}),
    ("option", "padded matrices", {"shape_padding": False}),
    ("option", "tuning", dict.fromkeys(_TUNING, False)),
    ("vectorisation", "vectorised tails of loops", {"cpp.enable_loop_tail_vec": False}),
    ("vectorisation", "the choice of loops to vectorise", {"cpp.enable_tiling_heuristics": False}),
    ("vectorisation", "vectorised C++ code", {"cpp.simdlen": 1}),
    ("option", "several threads", {"cpp.threads": 1}),
    ("option", "another order of loops", dict.fromkeys((*_LOOPS, "pick_loop_orders"), False)),
    ("fusion", "concatenation as a pointwise kernel", {"max_pointwise_cat_inputs": 0}),
    ("fusion", "fusion into templates", {"epilogue_fusion": False, "prologue_fusion": False}),
    ("fusion", "fusion side by side", {"cpp.max_horizontal_fusion_size": 1, "aggressive_fusion": False}),
    ("fusion", "fusion of kernels", {"max_fusion_size": 1}),
    ("fusion", "computing a value again where it is used", dict.fromkeys(_INLINING, 0)),
)
AOT: tuple[_Row, ...] = (
    ("option", "autocast in backward as in forward", {"backward_pass_autocast": "off"}),
    ("option", "views made again from their base", {"view_replay_for_aliased_outputs": False}),
    ("option", "buffers that backward may overwrite", {"donated_buffer": False}),
    ("option", "strides of tangents as those of outputs", {"guess_tangent_strides_as_outputs": False}),
    ("option", "random operators as functions", {"functionalize_rng_ops": False}),
    ("option", "generator states inside graphs", {"graphsafe_rng_functionalization": False}),
    ("option", "static shapes of weights", {"static_weight_shapes": False}),
)
PARTITION: tuple[_Row, ...] = (
    ("pass", "elimination of common subexpressions", {"cse": False}),
    ("pass", "parameters kept for backward at no cost", {"treat_parameters_as_free_to_save": False}),
    (
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
CAPTURE: tuple[_Row, ...] = (
    ("option", "dynamic shapes", {"automatic_dynamic_shapes": False, "assume_static_by_default": True}),
    ("option", "inlining of torch's own modules", {"inline_inbuilt_nn_modules": False}),
    ("option", "graphs of autograd functions", {"capture_autograd_function": False}),
    ("option", "graphs of transforms such as vmap", {"capture_func_transforms": False}),
    ("option", "numpy in graphs", {"trace_numpy": False}),
    ("option", "assertions in graphs", {"rewrite_assert_with_torch_assert": False}),
    ("option", "graphs that are shared", {"use_graph_deduplication": False}),
    ("option", "decompositions during capture", {"enable_dynamo_decompositions": False}),
    ("option", "context managers in graphs", {"enable_trace_contextlib": False}),
    ("option", "dead code elimination", {"dead_code_elimination": False}),
)


def switches_of(config: str, rows: Sequence[_Row], repro: Repro) -> list[Switch]:
    """Return the switches of a config that exist in this torch, are not off already, and can matter."""
    current, prefix = settings_of(config, repro), "" if config == INDUCTOR else f"{config}."
    # C++ is generated for the CPU, Triton for other devices.
    idle = () if devices_of(repro) else ("triton.", "use_static_cuda")
    found = []
    for kind, meaning, values in rows:
        changes = {name: off for name, off in values.items() if name in current and current[name] != off}
        if any(not name.startswith(idle) for name in changes):
            names = ", ".join(prefix + name for name in changes)
            found.append(Switch(kind, names, Off({config: changes}), meaning))
    return found


_MEANINGS = {
    PASSES: ("pass", "the pass"),
    PATTERNS: ("pass", "the rewrite"),
    DECOMPOSITIONS: ("decomposition", "the decomposition of"),
    LOWERINGS: ("lowering", "the lowering of"),
}


def by_name(part: str, names: Iterable[str]) -> list[Switch]:
    """Return a switch for each named pass, rewrite, decomposition or lowering."""
    kind, meaning = _MEANINGS[part]
    return [Switch(kind, name, Off(parts={part: (name,)}), f"{meaning} {name}") for name in names]


def all_off(switches: Sequence[Switch]) -> Off:
    return reduce(operator.or_, (switch.off for switch in switches), Off())


def settings_of(config: str, repro: Repro) -> dict[str, Any]:
    """Return the values of a config for this repro."""
    module: Any = import_module(CONFIG_MODULES[config])
    known: dict[str, Any] = module.get_config_copy()
    chosen = dict(repro.ambient.configs.get(config, {}))
    if config == INDUCTOR:
        chosen |= {**_options_of_mode(repro), **repro.compiler.options}
    return {**known, **{name: value for name, value in chosen.items() if name in known}}


def _options_of_mode(repro: Repro) -> Mapping[str, Any]:
    if not repro.compiler.mode:
        return {}
    from torchrepro.torch_api.inductor import list_mode_options

    options: dict[str, Any] = list_mode_options(repro.compiler.mode, repro.compiler.dynamic)
    return options


# In the child process.

_OVERLOAD = re.compile(r"op='([\w.]+)', overload='(\w+)'")
Note = Callable[[str, str], None]
"""Called with the kind and the name of each part that occurs in a compilation."""
IsOff = Callable[[str, str], bool]
"""(kind, name) -> whether it is turned off."""


def judge_without(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the verdict with the parts in `off` turned off.

    The parts that occur are written to the file `met`, line by line, so that they survive a crash.
    """
    from torchrepro.engine.jobs import judge

    told: set[tuple[str, str]] = set()
    with Path(payload["met"]).open("a") as file:

        def note(kind: str, name: str) -> None:
            if (kind, name) not in told:
                told.add((kind, name))
                file.write(msgspec.json.encode([kind, name]).decode() + "\n")
                file.flush()

        with turned_off(payload["off"], note):
            return judge(repro, payload, phase)


@contextmanager
def turned_off(names: Mapping[str, Sequence[str]], note: Note) -> Iterator[None]:
    """Turn off the named parts in the body; restore them after it, because a worker is reused."""
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver

    from torchrepro.torch_api.inductor import CompilerBisector, V

    def is_off(kind: str, name: str) -> bool:
        return name in names.get(kind, ())

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        described = debug_info() if debug_info is not None else ""
        if subsystem.endswith("_passes"):
            return is_off(PASSES, described)
        if subsystem == LOWERINGS:
            kind, name = LOWERINGS, str(V.graph.current_node.target)  # about to be lowered
        elif subsystem == "decomposition":
            # `<OpOverload(op='aten.gelu', overload='default')>` is `aten.gelu.default`.
            found = _OVERLOAD.search(described)
            kind, name = DECOMPOSITIONS, f"{found[1]}.{found[2]}" if found else described
        else:
            return False
        note(kind, name)
        return is_off(kind, name)

    observer: Any = GraphTransformObserver
    with ExitStack() as stack:
        asked = replaced(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem))
        stack.enter_context(asked)
        for name in ("apply_gm_pass", "apply_graph_pass"):
            noting = _noting_changes(getattr(observer, name), note)
            stack.enter_context(replaced(observer, name, noting))
        stack.enter_context(_checking_rewrites(is_off, note))
        yield


def _noting_changes(apply: Callable[..., Any], note: Note) -> Callable[..., Any]:
    """Note the passes that change the graph, or raise: most of some forty change nothing."""

    def parts_of(module: GraphModule) -> list[Any]:
        """Return the parts to compare by identity: a change of arguments makes new objects."""
        nodes = module.graph.nodes
        return [part for node in nodes for part in (node, node.target, node.args, node.kwargs)]

    def applied(self: Any, pass_fn: Callable[..., Any]) -> Any:
        if self.subsystem is None:
            return apply(self, pass_fn)  # torch cannot turn it off
        before = parts_of(self.gm)
        try:
            result = apply(self, pass_fn)
        except Exception:
            note(PASSES, self.passname)
            raise
        after = parts_of(self.gm)
        if len(after) != len(before) or any(map(operator.is_not, after, before)):
            note(PASSES, self.passname)
        return result

    return applied


@contextmanager
def _checking_rewrites(is_off: IsOff, note: Note) -> Iterator[None]:
    """Wrap the check of every rewrite with `is_off`, when its matcher is applied: then all are registered."""
    from torchrepro.torch_api.inductor import PatternMatcherPass

    matcher: Any = PatternMatcherPass
    apply, usual = matcher.apply, dict[int, tuple[Any, Any]]()

    def asking(check: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
        def asked(match: Any) -> Any:
            answer = not is_off(PATTERNS, name) and check(match)
            if answer is not False:
                note(PATTERNS, name)
            return answer

        return asked

    def applied(self: Any, graph: GraphModule | Graph) -> int:
        for entry in [entry for entries in self.patterns.values() for entry in entries]:
            if id(entry) not in usual:
                usual[id(entry)] = entry, entry.extra_check
                entry.extra_check = asking(entry.extra_check, _rewrite_of(entry))
        found: int = apply(self, graph)
        return found

    try:
        with replaced(matcher, "apply", applied):
            yield
    finally:
        for entry, check in usual.values():
            entry.extra_check = check


def _rewrite_of(entry: Any) -> str:
    """Return the name of a rewrite: of the pattern that it searches for, or of its handler."""
    function = getattr(entry, "handler", None) or closed_over(entry.extra_check, "search_fn")
    function = getattr(function, "func", function)  # of a partial
    named = getattr(entry, "pattern_name", None) or getattr(function, "__name__", type(entry).__name__)
    module = str(getattr(function, "__module__", "")).rpartition(".")[2]
    return f"{module}.{named}" if module else str(named)
