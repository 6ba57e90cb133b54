"""A failure is recognised by the rule of its bucket, and another failure is not; nothing is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from torchrepro.explain.rules import limits_of
from torchrepro.hunt.known import match, rule_of
from torchrepro.nouns.limits import Limits
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area, Fact
from torchrepro.nouns.verdict import Kind, Signature
from torchrepro.script.save_bundle import save_bundle

SIGNATURE = Signature(Kind.NON_FINITE)
FROM_16 = Limits(((16, None),))
LARGE = Limits(((1.9e19, None),))


def quiet(phase: str) -> None:
    pass


def saved(place: Path, function: Callable[..., Any], *inputs: Tensor) -> str:
    graph = torch.fx.symbolic_trace(function)
    return str(save_bundle(Repro(graph, inputs), place, script=False))


def fact(area: Area, *, limits: Limits | None = None, failing: Sequence[str] = ()) -> Fact:
    return Fact(area, "x", "", matters=True, failing=tuple(failing), inputs=(0,), limits=limits)


@pytest.fixture
def rule(tmp_path: Path) -> dict[str, Any]:
    """Explained: `acosh` of at least 16 large numbers in float32 fails."""
    facts = [
        fact(Area.VALUES, limits=LARGE),
        fact(Area.SIZES, limits=FROM_16),
        fact(Area.DTYPES, failing=["float32", "bfloat16"]),
    ]
    bundle = saved(tmp_path / "minimal", lambda x: (torch.acosh(x),), torch.full((16,), 3e38))
    payload = {"bundle": bundle, "facts": msgspec.to_builtins(facts), "paths": ["out[0]"]}
    found = rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)
    assert found["words"] == "acosh(bfloat16|float32, size >= 16, a value >= 1.9e+19)"
    rule: dict[str, Any] = found["rule"]
    return rule


def is_known(rule: dict[str, Any], bundle: str, *paths: str) -> bool:
    return match({"bundle": bundle, "rules": [rule], "paths": list(paths)}, quiet)["number"] == 0


def ones_and(value: float, count: int = 20) -> Tensor:
    return torch.cat([torch.ones(count - 1), torch.tensor([value])])


def test_the_same_op_in_a_longer_program_is_known_however_it_is_spelled(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    def chain(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2).arccosh().reshape(4, 5) + y, y.sin()

    bundle = saved(tmp_path / "chain", chain, ones_and(1e38), torch.ones(5))
    assert is_known(rule, bundle, "out[0]")


@pytest.mark.parametrize(
    ("name", "function", "given"),
    [
        ("another op", torch.asinh, ones_and(3e38)),
        ("another dtype", torch.acosh, ones_and(3e38).double()),
        ("fewer elements", torch.acosh, ones_and(3e38, 8)),
        ("other values", torch.acosh, ones_and(1e10)),
    ],
)
def test_what_the_facts_do_not_admit_is_a_failure_of_its_own(
    rule: dict[str, Any], tmp_path: Path, name: str, function: Callable[..., Any], given: Tensor
) -> None:
    assert not is_known(rule, saved(tmp_path / "other", lambda x: (function(x),), given), "out[0]"), name


def test_a_wrong_result_that_does_not_depend_on_the_op_is_a_failure_of_its_own(
    rule: dict[str, Any], tmp_path: Path
) -> None:
    bundle = saved(tmp_path / "two", lambda x, y: (torch.acosh(x), y.sin()), ones_and(3e38), torch.ones(3))
    assert is_known(rule, bundle, "out[0]")
    assert not is_known(rule, bundle, "out[1]")
    assert not is_known(rule, bundle, "out[0]", "out[1]")


def test_an_op_that_writes_through_a_view_is_followed(rule: dict[str, Any], tmp_path: Path) -> None:
    def written(x: Tensor, y: Tensor) -> tuple[Tensor]:
        base = y.clone()
        base[0:1].copy_(torch.acosh(x)[None])
        return (base,)

    given = ones_and(3e38), torch.ones(2, 20)
    graph = torch.fx.GraphModule({}, _traced(written))
    bundle = str(save_bundle(Repro(graph, given), tmp_path / "view", script=False))
    assert is_known(rule, bundle, "out[0]")


def _traced(function: Callable[..., Any]) -> torch.fx.Graph:
    return torch.fx.Tracer().trace(function)


def test_ops_of_a_rule_have_to_depend_on_one_another_as_in_the_minimal_repro(tmp_path: Path) -> None:
    bundle = saved(tmp_path / "minimal", lambda x: (x.exp().log1p(),), torch.ones(4))
    payload = {"bundle": bundle, "facts": [], "paths": ["out[0]"]}
    rule = rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)["rule"]
    chained = saved(tmp_path / "chained", lambda x: ((x.exp() * 2).log1p(),), torch.ones(4))
    apart = saved(tmp_path / "apart", lambda x: (x.exp() + x.log1p(),), torch.ones(4))
    assert is_known(rule, chained, "out[0]")
    assert not is_known(rule, apart, "out[0]")


def test_an_op_is_known_by_what_inductor_decomposes_it_into(tmp_path: Path) -> None:
    """`softshrink` multiplies by zero, which inductor folds to zero where the other factor is NaN."""
    bundle = saved(tmp_path / "minimal", lambda x: (torch.mul(x, 0),), torch.tensor([math.nan]))
    facts = [fact(Area.VALUES, limits=Limits(others=("nan",))), fact(Area.ARGUMENTS)]
    payload = {"bundle": bundle, "facts": msgspec.to_builtins(facts), "paths": ["out[0]"]}
    rule = rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)["rule"]

    def shrunk(x: Tensor) -> tuple[Tensor]:
        return (torch.nn.functional.softshrink(x * 2),)

    assert is_known(rule, saved(tmp_path / "nan", shrunk, torch.tensor([1.0, math.nan])), "out[0]")
    assert not is_known(
        rule, saved(tmp_path / "twice", lambda x: (x * 2,), torch.tensor([math.nan])), "out[0]"
    )


def test_an_op_that_is_another_one_to_the_dispatcher_must_be_called_by_name(tmp_path: Path) -> None:
    """Dropout of everything is a multiplication by zero: another product of NaN is not the same failure."""
    given = torch.tensor([math.nan, 1.0])
    minimal = saved(tmp_path / "minimal", lambda x: (torch.nn.functional.dropout(x, 1.0),), given)
    payload = {"bundle": minimal, "facts": [], "paths": ["out[0]"]}
    rule = rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)["rule"]
    assert [each["op"] for each in rule["ops"]] == ["mul"]

    def chained(x: Tensor) -> tuple[Tensor]:
        return (torch.nn.functional.dropout(x.sin(), 1.0).cos(),)

    def product(x: Tensor) -> tuple[Tensor]:
        return (x * torch.zeros(2),)

    assert is_known(rule, saved(tmp_path / "chained", chained, given), "out[0]")
    assert not is_known(rule, saved(tmp_path / "product", product, given), "out[0]")


def test_a_gradient_is_recognised_by_the_op_of_its_backward(tmp_path: Path) -> None:
    def bundle_of(name: str, function: Callable[..., Any]) -> str:
        return saved(tmp_path / name, function, torch.ones(4, requires_grad=True))

    minimal = bundle_of("minimal", lambda x: (torch.nn.functional.elu(x),))
    paths = ['grad["inputs[0]"]']
    payload = {"bundle": minimal, "facts": [], "paths": paths}
    rule = rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)["rule"]
    assert [each["op"] for each in rule["ops"]][-1] == "elu_backward"
    assert is_known(rule, bundle_of("other", lambda x: (torch.nn.functional.elu(x * 3).sin(),)), *paths)
    assert not is_known(rule, bundle_of("none", lambda x: (torch.nn.functional.silu(x),)), *paths)


def test_a_graph_that_is_not_minimal_makes_no_rule(tmp_path: Path) -> None:
    def long(x: Tensor) -> tuple[Tensor]:
        for _ in range(9):
            x = x.sin()
        return (x,)

    payload = {"bundle": saved(tmp_path / "long", long, torch.ones(2)), "facts": [], "paths": ["out[0]"]}
    assert rule_of({**payload, "signature": msgspec.to_builtins(SIGNATURE)}, quiet)["rule"] is None


@pytest.mark.parametrize(
    ("failing", "passing", "admitted", "refused", "words"),
    [
        ([16, 17, 64], [1, 8, 15], [16, 40, 1000], [15, 1], ">= 16"),
        ([8, 16, 24], [4, 7, 9, 12, 20, 33], [32, 128], [12, 9, 4], ">= 8, multiple of 8"),
        ([7, 9, 12, 15, 17, 33], [8, 16, 32], [5, 31], [24], "no multiple of 8"),
        ([1.5, 2.0], [1.0, 3.0], [1.7], [1.2, 2.5, float("inf")], "1.5 to 2"),
        ([float("nan")], [0.0, 1.0], [float("nan")], [0.5, float("-inf")], "nan"),
        ([-5.0, 5.0, float("inf")], [0.0], [-9.0, 6.0, float("inf")], [1.0], "<= -5 or >= 5 or inf"),
    ],
)
def test_limits_admit_what_lies_between_failing_numbers(
    failing: list[float], passing: list[float], admitted: list[float], refused: list[float], words: str
) -> None:
    limits = limits_of(failing, passing)
    assert limits is not None
    assert all(map(limits.admits, admitted))
    assert not any(map(limits.admits, refused))
    assert str(limits) == words


def test_there_are_no_limits_where_nothing_passes() -> None:
    assert limits_of([1, 2, 3], []) is None
