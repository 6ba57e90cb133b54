"""A whole call of the user's code in a bundle: arguments as data, code as source that needs trust."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro import Ambient, Compiler, Place, Repro, save_bundle
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest, read_source_text
from torchrepro.bundle.user_calls import callee_of, repro_of_call, run_call
from torchrepro.nouns.errors import BundleError

Pair = namedtuple("Pair", "left right")


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled: torch.Tensor = self.linear(x) * self.factor
        return scaled

    def step(self, x: torch.Tensor, *, power: int) -> torch.Tensor:
        result: torch.Tensor = self(x) ** power
        return result


class Options:
    def __init__(self, bias: float) -> None:
        self.bias = bias


def combine(x: torch.Tensor, options: Mapping[str, Any], *more: Any, scale: float = 1.0) -> Any:
    return x * scale + options["shift"][0] + sum(more)


def apply(function: Callable[..., Any], model: Any, options: Options, x: torch.Tensor) -> Any:
    return function(model(x)) + options.bias


def of_call(function: Any, *args: Any, **kwargs: Any) -> Repro:
    return repro_of_call(function, args, kwargs, compiler=Compiler("eager"), ambient=Ambient())


def called(repro: Repro) -> Any:
    """What the call in a repro returns."""
    return run_call(repro.graph, repro.inputs, callee_of(repro.graph))


def through_a_bundle(repro: Repro, path: Path) -> Repro:
    bundle = save_bundle(repro, path)
    return load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))


ONES = torch.ones(2)
CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a function with nested arguments": (combine, (ONES, {"shift": [ONES * 2]}, 3, 4.5), {"scale": 0.5}),
    "a partial function": (functools.partial(combine, ONES, scale=3.0), ({"shift": (ONES, 1)},), {}),
    "a lambda": (lambda x: x + 1, (ONES,), {}),
    "a module": (Scaled(2.0), (ONES,), {}),
    "a method": (Scaled(2.0).step, (ONES,), {"power": 2}),
    "functions and objects as arguments": (apply, (torch.sin, Scaled(3.0), Options(0.5), ONES), {}),
    "a function of torch": (torch.add, (ONES, ONES), {"alpha": 2}),
    "a compiled function": (torch.compile(combine, backend="eager"), (ONES, {"shift": [1]}), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_call_is_the_same_after_a_bundle(name: str, tmp_path: Path) -> None:
    function, args, kwargs = CALLS[name]
    repro = of_call(function, *args, **kwargs)
    assert repro.place is Place.BEFORE_CAPTURE
    with torch.compiler.set_stance("force_eager"):
        expected = function(*args, **kwargs)
    assert torch.equal(called(repro), expected)
    again = through_a_bundle(repro, tmp_path / "bundle")
    assert again.place is Place.BEFORE_CAPTURE
    assert torch.equal(called(again), expected)


nests = st.recursive(
    st.one_of(st.integers(), st.none(), st.booleans(), st.text(max_size=3), st.floats(allow_nan=False)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.lists(nests, max_size=3), st.dictionaries(st.sampled_from(["a", "arg_0", "call", "class_"]), nests))
@settings(max_examples=100, deadline=None)
def test_any_nest_of_arguments_comes_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    repro = of_call(combine, *args, **kwargs)
    given = run_call(repro.graph, repro.inputs, lambda *args, **kwargs: (args, kwargs))
    assert repr(given) == repr((tuple(args), kwargs))


def test_one_tensor_passed_twice_is_one_input(tmp_path: Path) -> None:
    repro = through_a_bundle(of_call(lambda x, y: x is y, ONES, ONES), tmp_path / "bundle")
    assert len(repro.inputs) == 1
    assert called(repro) is True


def test_the_code_runs_only_if_somebody_vouches_for_it(tmp_path: Path) -> None:
    bundle = save_bundle(of_call(combine, ONES, {"shift": [1]}), tmp_path / "bundle")
    assert read_manifest(bundle).needs_trust == ("source.combine",)
    assert names_it_runs(read_manifest(bundle)) == ("source",)
    with pytest.raises(BundleError, match=r"show --source .*bundle\), then allow it with --trust source"):
        load_bundle(bundle)
    assert "def combine" in read_source_text(bundle)
    assert called(load_bundle(bundle, trusted=("source",))).tolist() == [2.0, 2.0]


def test_a_bundle_of_a_loaded_bundle_is_the_same(tmp_path: Path) -> None:
    first = save_bundle(of_call(Scaled(2.0), ONES), tmp_path / "first")
    loaded = load_bundle(first, trusted=("source",))
    second = save_bundle(loaded, tmp_path / "second")
    assert torch.equal(called(load_bundle(second, trusted=("source",))), called(loaded))


def test_a_captured_graph_takes_along_what_no_import_finds(tmp_path: Path) -> None:
    offset = [3]

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + offset[0]

    graph = torch.fx.Graph()
    graph.output(graph.call_function(shifted, (graph.placeholder("x"),)))
    repro = Repro(torch.fx.GraphModule(torch.nn.Module(), graph), (ONES,), Place.AFTER_CAPTURE)
    again = through_a_bundle(repro, tmp_path / "bundle")
    assert again.graph(ONES).tolist() == [4.0, 4.0]


def test_parameters_are_exact_and_stay_tied(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    again = callee_of(through_a_bundle(of_call(model, ONES), tmp_path / "b").graph)
    assert isinstance(again, torch.nn.Sequential)
    assert again[0].weight is again[1].weight
    assert isinstance(again[0].weight, torch.nn.Parameter)
    assert torch.equal(again[0].weight, model[0].weight)
