"""User-defined Triton kernels in a bundle: named in the text, their source kept, run only on trust.

Triton itself is not needed here: a stand-in has what torch asks of a kernel and runs it as plain Python.
The real thing is in tests/accelerator/triton_kernels.py.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from commands import answer, torchrepro
from graph_equality import first_difference
from hypothesis import given
from hypothesis import strategies as st
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)

from torchrepro import Compiler, Repro, load_bundle, save_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import CannotSerialise, GraphTextError

KERNELS = """
import inspect

OFFSET = 1.0


class jit:
    def __init__(self, fn):
        self.fn = fn
        self.arg_names = list(inspect.signature(fn).parameters)

    def __getitem__(self, grid):
        return self.fn


class Autotuner:
    def __init__(self, fn, configs):
        self.fn, self.configs = fn, configs
        self.arg_names = fn.arg_names

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.fn[grid](*args, **kwargs, **self.configs[0])


def autotune(configs):
    return lambda fn: Autotuner(fn, configs)


def shifted(value):
    return value + OFFSET


@jit
def scale(x, out, FACTOR):
    out.copy_(shifted(x * FACTOR))


@autotune(configs=[{"BLOCK": 16}])
@jit
def tuned(x, out, FACTOR, BLOCK):
    out.copy_(x * FACTOR + BLOCK)


raise_if_run_again = None
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"kernels_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(name)


def calling(kernel: Any, constants: dict[str, Any]) -> torch.fx.GraphModule:
    """A graph that calls a kernel, as capture writes it."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    out = graph.call_function(torch.empty_like, (x,))
    graph.call_function(
        triton_kernel_wrapper_mutation,
        kwargs={
            "kernel_idx": kernel_side_table.add_kernel(kernel),
            "constant_args_idx": kernel_side_table.add_constant_args(constants),
            "grid": [(1, 1, 1)],
            "tma_descriptor_metadata": {},
            "kwargs": {"x": x, "out": out},
        },
    )
    graph.output((out,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def places(graph: torch.fx.GraphModule) -> tuple[int, int]:
    (node,) = graph.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_mutation)
    return node.kwargs["kernel_idx"], node.kwargs["constant_args_idx"]


def test_the_text_names_the_kernel_and_its_constants(kernels: ModuleType) -> None:
    graph = calling(kernels.scale, {"FACTOR": 3})
    written = write_graph(graph)
    assert 'kernel_idx=triton_kernel("scale")' in written.text
    assert 'constant_args_idx=triton_constants({"FACTOR": 3})' in written.text
    assert written.kernels == {"scale": kernels.scale}
    again = read_graph(written.text, written.constants, kernels=written.kernels)
    assert again(torch.ones(2))[0].tolist() == [4, 4]
    assert kernel_side_table.get_constant_args(places(again)[1]) == {"FACTOR": 3}
    assert first_difference(graph, again) is None
    assert write_graph(again).text == written.text


def test_kernels_with_one_name_stay_apart(kernels: ModuleType) -> None:
    def other() -> Any:
        @kernels.jit
        def scale(x: Any, out: Any, FACTOR: Any) -> None:
            out.copy_(x - FACTOR)

        return scale

    graph = calling(kernels.scale, {"FACTOR": 3})
    second = calling(other(), {"FACTOR": 5})
    graph.graph.graph_copy(second.graph, {})
    written = write_graph(graph)
    assert set(written.kernels) == {"scale", "scale_2"}


def test_without_trust_the_refusal_says_how(kernels: ModuleType, tmp_path: Path) -> None:
    bundle = save_bundle(Repro(calling(kernels.scale, {"FACTOR": 3}), (torch.ones(2),)), tmp_path / "bundle")
    with pytest.raises(GraphTextError, match=r"Triton kernel scale, code of the user.*--trust source"):
        load_bundle(bundle)
    assert "Triton, source in the bundle" in torchrepro("show", bundle).stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), [("scale", 4), ("tuned", 19)])
def test_a_bundle_brings_its_kernels_along(
    kernels: ModuleType, name: str, expected: int, tmp_path: Path
) -> None:
    graph = calling(getattr(kernels, name), {"FACTOR": 3})
    repro = Repro(graph, (torch.ones(2),), compiler=Compiler("eager"))
    bundle = save_bundle(repro, tmp_path / "bundle")
    Path(str(kernels.__file__)).unlink()
    manifest = read_manifest(bundle)
    assert manifest.kernels == (name,)
    assert "raise_if_run_again" not in (bundle / "operators.py").read_text()
    loaded = load_bundle(bundle, trusted=names_it_runs(manifest))
    assert places(loaded.graph)[0] != places(graph)[0]
    assert loaded.graph(torch.ones(2))[0].tolist() == [expected, expected]
    found = answer(torchrepro("check", "--json", bundle, "--trust", "source"))
    assert found["verdict"] == "pass", found


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


@given(st.dictionaries(st.text("ABC_", min_size=1), plain | st.tuples(plain, plain), max_size=4))
def test_constant_arguments_come_back_as_they_were(constants: dict[str, Any]) -> None:
    def kernel() -> None: ...

    written = write_graph(calling(kernel, constants))
    again = read_graph(written.text, written.constants, kernels=written.kernels)
    assert kernel_side_table.get_constant_args(places(again)[1]) == constants


def test_a_place_that_holds_no_kernel_is_an_error(kernels: ModuleType) -> None:
    graph = calling(kernels.scale, {})
    (node,) = graph.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_mutation)
    node.kwargs = {**node.kwargs, "kernel_idx": sys.maxsize}
    with pytest.raises(CannotSerialise, match="this process does not know"):
        write_graph(graph)


def test_the_functional_form_survives(kernels: ModuleType) -> None:
    graph = calling(kernels.scale, {"FACTOR": 2})
    (node,) = graph.graph.find_nodes(op="call_function", target=triton_kernel_wrapper_mutation)
    node.target = triton_kernel_wrapper_functional
    node.kwargs = {**node.kwargs, "tensors_to_clone": ["out"]}
    graph.recompile()
    written = write_graph(graph)
    again = read_graph(written.text, written.constants, kernels=written.kernels)
    assert write_graph(again).text == written.text
