"""Inductor: its entry points, its configuration and what `locate` hooks in it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchrepro.torch_api.patching import replaced
from torchrepro.torch_api.seam import Seam, loading

if TYPE_CHECKING:
    from torch.fx import Node

SEAMS = {
    "config": Seam("torch._inductor.config", "settings of inductor", name="."),
    "functorch_config": Seam("torch._functorch.config", "settings of AOT", name="."),
    "list_mode_options": Seam("torch._inductor", "the options that a mode stands for"),
    "compile_fx_inner": Seam("torch._inductor.compile_fx", "inductor below AOT"),
    "select_decomp_table": Seam("torch._inductor.decomposition", "decompositions that inductor uses"),
    "lowering": Seam("torch._inductor.lowering", "decompositions use it without importing it", name="."),
    "aot_compile": Seam("torch._inductor", "compile an exported program ahead of time"),
    "aoti_load_package": Seam("torch._inductor", "load what was compiled ahead of time"),
    "package_aoti": Seam("torch._inductor.package.package", "pack what was compiled ahead of time"),
    "GraphLowering": Seam("torch._inductor.graph", "stop before code is compiled; see generated code"),
    "CppScheduling": Seam("torch._inductor.codegen.cpp", "see generated C++ kernels"),
    "TritonScheduling": Seam("torch._inductor.codegen.triton", "see generated Triton kernels"),
    "V": Seam("torch._inductor.virtualized", "the graph and node that inductor works on now"),
    "CompilerBisector": Seam("torch._inductor.compiler_bisector", "turn passes and lowerings off by name"),
    "clear_caches": Seam("torch._inductor.utils", "forget what is kept in memory of compilations"),
    "fresh_cache": Seam("torch._inductor.utils", "an empty directory for all caches"),
    "torch_key": Seam("torch._inductor.codecache", "hash inductor's sources ahead"),
    "triton_key": Seam("torch._inductor.runtime.triton_compat", "hash Triton's sources ahead"),
    "PatternMatcherPass": Seam("torch._inductor.pattern_matcher", "turn rewrites off by name"),
}


CHOICES: dict[str, dict[str, Any]] = {
    "unfused": {"max_fusion_size": 1, "epilogue_fusion": False},
    "scalar": {"cpp.simdlen": 1},
    "no-reuse": {"allow_buffer_reuse": False, "inplace_buffers": False},
    "no-patterns": {"pattern_matcher": False},
    "autotune": {"max_autotune": True, "coordinate_descent_tuning": True},
}
"""Choices of inductor that must not change a result: its settings by name, the slowest last."""


__getattr__ = loading(__name__, SEAMS)


def hash_compilers() -> None:
    """Hash the sources of inductor and of Triton, which torch remembers: half a second of a first compile."""
    loaded = __getattr__
    loaded("torch_key")()
    with suppress(RuntimeError):  # Triton is not installed
        loaded("triton_key")()


@contextmanager
def seeing_code(see: Callable[[str], None]) -> Iterator[None]:
    """Call `see` with the code of each graph that inductor compiles in the body, before it is compiled.

    Checked on torch 2.11 to 2.15 (`GraphLowering.save_output_code`).
    """
    if "torch._inductor" not in sys.modules:
        yield
        return
    from torch._inductor.graph import GraphLowering

    former = getattr(GraphLowering, "save_output_code", None)

    def save_output_code(code: str) -> None:
        see(code)
        if former is not None:
            former(code)

    with replaced(GraphLowering, "save_output_code", staticmethod(save_output_code)):
        yield


def ops_announced(words: str) -> AbstractContextManager[None]:
    """Let C++ kernels that inductor generates in the body print which ops they are about to compute.

    Each loop prints a line on standard error: `words`, and `target: aten.rsqrt.default` for each of its ops.
    """

    def line(origins: Sequence[Node]) -> str:
        targets = dict.fromkeys(f"target: {origin.target}" for origin in origins)
        return f"std::fputs({json.dumps(' '.join([words, *targets]) + chr(10))}, stderr);"

    return _around_each_loop(line)


@contextmanager
def failing_left_out(name: Callable[[Sequence[Node]], str]) -> Iterator[set[str]]:
    """Let inductor leave out what it cannot lower or the C++ compiler rejects in the body; yield the names.

    `name` returns what the compiler's errors are to call the loop of some nodes; empty: nothing is left out
    for them. An op that cannot be lowered is called instead. All loops of a name are left out together: one
    would read what another has not written. Then the results under that name mean nothing.
    Run on torch 2.13; 2.11 and 2.15 have the same (`GraphLowering.call_function`, `fallback_handler`,
    `AsyncCompile.cpp_pybinding`).
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.exc import CppCompileError
    from torch._inductor.graph import GraphLowering
    from torch._inductor.lowering import fallback_handler

    from torchrepro.torch_api.ops import OpOverload

    left_out: set[str] = set()
    call_function, cpp_pybinding = GraphLowering.call_function, AsyncCompile.cpp_pybinding

    def line(origins: Sequence[Node]) -> str:
        named = name(origins)
        return f"#line 1 {json.dumps(named)}" if named else ""

    def lowered(graph: Any, target: Any, args: Any, kwargs: Any) -> Any:
        try:
            return call_function(graph, target, args, kwargs)
        except Exception as exc:
            named = name([graph.current_node])
            if not named or not isinstance(target, OpOverload):
                raise
            try:
                called = fallback_handler(target, add_to_fallback_set=False)(*args, **kwargs)
            except Exception:
                raise exc from None
            left_out.add(named)
            return called

    def compiled(compiler: Any, types: Any, source: str) -> Any:
        while True:
            try:
                return cpp_pybinding(compiler, types, _without_loops(source, left_out))
            except CppCompileError as exc:
                rejected = set(_REJECTED.findall(str(exc))) & set(_LOOP.findall(source)) - left_out
                if not rejected:
                    raise
                left_out.update(rejected)

    with (
        _around_each_loop(line, _END),
        replaced(GraphLowering, "call_function", lowered),
        replaced(AsyncCompile, "cpp_pybinding", compiled),
    ):
        yield left_out


_END = "// torchrepro: the end of a loop"
_LOOP = re.compile(r'^ *#line 1 "(.+)"$', re.MULTILINE)
_REJECTED = re.compile(r"^(.+?):[\d:]* (?:fatal )?error:", re.MULTILINE)


def _without_loops(source: str, names: Collection[str]) -> str:
    """Return C++ source without the loops that have these names."""
    kept, leaving_out = [], False
    for row in source.splitlines(keepends=True):
        found = _LOOP.match(row)
        leaving_out = leaving_out or (found is not None and found[1] in names)
        if not leaving_out:
            kept.append(row)
        leaving_out = leaving_out and row.strip() != _END
    return "".join(kept)


@contextmanager
def _around_each_loop(line: Callable[[Sequence[Node]], str], end: str = "") -> Iterator[None]:
    """Insert a line, chosen by a loop's nodes, before each C++ loop that inductor generates in the body.

    Where there is one, `end` is inserted after the loop. Checked on torch 2.13
    (`KernelGroup.finalize_kernel`; without it nothing is inserted).
    """
    from torch._inductor.codegen.cpp import KernelGroup

    finalize = getattr(KernelGroup, "finalize_kernel", None)
    if finalize is None:
        yield
        return

    def finalize_kernel(group: Any, kernel: Any, nodes: Any) -> None:
        origins = [origin for node in nodes for origin in getattr(node.node, "origins", ())]
        inserted = line(origins)
        if inserted:
            group.loops_code.writeline(inserted)
        finalize(group, kernel, nodes)
        if inserted and end:
            group.loops_code.writeline(end)

    with replaced(KernelGroup, "finalize_kernel", finalize_kernel):
        yield


@contextmanager
def loops_together() -> Iterator[None]:
    """Let inductor put the C++ loops of the body's graphs into few files: each costs 0.4 s of g++, if empty.

    Calls of operators end a file. So all calls that can come first do, then all loops, and so on, whatever
    memory that takes. What is fused has been decided before. Checked on torch 2.13
    (`_post_fusion_custom_pass`, `reorder_for_peak_memory`, which would undo it).
    """
    from torch._inductor import config

    def calls_first(nodes: Sequence[Any]) -> list[Any]:
        missing = {name for node in nodes for name in node.get_operation_names()}
        ordered, left = [], list(nodes)
        while left:
            for called in (True, False):
                later = []
                for node in left:
                    own = node.get_operation_names()
                    if node.is_extern() is called and not (node.ancestors - own) & missing:
                        ordered.append(node)
                        missing -= own
                    else:
                        later.append(node)
                left = later
        return ordered

    with config.patch(_post_fusion_custom_pass=calls_first, reorder_for_peak_memory=False):
        yield


@contextmanager
def linear_indices_as_they_are() -> Iterator[None]:
    """Let inductor not simplify sums of multiples of variables, whose strides show without it, in the body.

    It does so to choose what it vectorises, and sympy takes a third of the time in which loops are generated.
    Run on torch 2.13; 2.15 has the same, 2.11 not (`simplify_index_in_vec_range`; nothing is changed then).
    """
    from torch._inductor import sizevars

    simplify = getattr(sizevars, "simplify_index_in_vec_range", None)
    if simplify is None:
        yield
        return

    def simplify_index_in_vec_range(index: Any, var: Any, length: int) -> Any:
        linear = all(term.is_Symbol or term.is_Integer for term in _factors(index))
        return index if linear else simplify(index, var, length)

    with replaced(sizevars, "simplify_index_in_vec_range", simplify_index_in_vec_range):
        yield


def _factors(index: Any) -> Iterator[Any]:
    """Yield what the summands of an index are made of; two variables in one make it a product."""
    for term in index.args if index.is_Add else (index,):
        factors = term.args if term.is_Mul else (term,)
        if sum(not factor.is_Integer for factor in factors) > 1:
            yield term
        yield from factors


@contextmanager
def generating_only(*, backward: bool) -> Iterator[None]:
    """Let inductor generate code in the body, with `backward` for that too, and compile none of it.

    Checked on torch 2.13, 2.14 (`PyCodeCache.load_by_key_path`, which compiles the kernels by importing the
    generated module; `force_non_lazy_backward_lowering`, without which backward is lowered when it first
    runs). The names are the same in 2.11 to 2.15.
    """
    from torch._functorch import config as functorch
    from torch._inductor.codecache import PyCodeCache

    def not_compiled(*args: Any) -> None:
        raise RuntimeError("this code was generated only")

    def load_by_key_path(key: str, path: str, *args: Any, **more: Any) -> ModuleType:
        module = ModuleType(f"{__name__}.{key}")
        vars(module).update(__file__=path, key=key, call=not_compiled)
        return module

    with (
        functorch.patch(force_non_lazy_backward_lowering=backward),
        replaced(PyCodeCache, "load_by_key_path", staticmethod(load_by_key_path)),
    ):
        yield


@contextmanager
def graph_caches() -> Iterator[None]:
    """Turn the caches of whole graphs on in the body, in a directory that is empty at first.

    The environment of a judging process forces them off, which a config alone cannot undo. Without a
    precompiled header, which would take longer than what it saves. Checked on torch 2.13 (`fx_graph_cache`,
    `enable_autograd_cache`, `cpp_cache_precompile_headers`, `env_value_force`).
    """
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.utils import fresh_cache

    own: Any = config
    of_aot: Any = functorch
    others = {"fx_graph_remote_cache": False, "cpp_cache_precompile_headers": False}
    with (
        replaced(own._config["fx_graph_cache"], "env_value_force", True),
        replaced(of_aot._config["enable_autograd_cache"], "env_value_force", True),
        own.patch(others),
        fresh_cache(),
    ):
        yield


def graph_cache_hits() -> int:
    """Return how often a whole graph came from a cache (`fxgraph_cache_hit`). Checked on torch 2.13."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]


def compile_in_this_thread() -> None:
    """Let inductor and AOT use no threads, no worker processes and no caches of whole graphs from now on.

    A fresh process gets the same from its environment. Checked on torch 2.13 (`compile_threads`,
    `fx_graph_cache`, `enable_autograd_cache`).
    """
    from torch._functorch import config as functorch
    from torch._inductor import config

    config.compile_threads = 1
    config.fx_graph_cache = False
    functorch.enable_autograd_cache = False
