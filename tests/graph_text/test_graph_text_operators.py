"""Graphs with operators that call graphs, write to arguments or order effects: kept exactly, and pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.utils.checkpoint
from capturing import Captured, capture
from test_graph_text_captured import FUNCTIONS, assert_survives
from torch._ops import HigherOrderOperator

from torchrepro import Ambient, Compiler, Kind, Place, Repro, load_bundle, save_bundle
from torchrepro.bundle.exported import repro_of_exported
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.graph_text.metadata import symbols_of

_BIAS = torch.randn(4, 4)


@torch.library.custom_op("torchrepro_tests::fill", mutates_args=("x",))
def fill(x: torch.Tensor, value: float) -> None:
    x.fill_(value)


@torch.library.custom_op("torchrepro_tests::say", mutates_args=())
def say(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@say.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _associative_scan(x: torch.Tensor) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic")


def _flex_with_bias(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    query = x.view(1, 1, 4, 8).expand(1, 2, 4, 8)
    return flex_attention(query, query, query, score_mod=lambda s, b, h, i, j: s + _BIAS[i, j])


def _flex_with_mask(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    query = x.view(1, 1, 4, 8).expand(1, 2, 4, 8)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 4, 4, device="cpu")
    return flex_attention(query, query, query, block_mask=mask)


def _written_view(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    torch.ops.torchrepro_tests.fill(y[1:], 2.0)
    return y * x


def _effects(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.torchrepro_tests.say(x) + torch.ops.torchrepro_tests.say(x * 2)


NAMES: dict[str, Callable[..., Any]] = {
    **{name: FUNCTIONS[name] for name in ("cond", "while_loop", "scan", "map", "flex_attention")},
    **{name: FUNCTIONS[name] for name in ("invoke_subgraph", "autograd_function", "checkpoint")},
    "associative_scan": _associative_scan,
    "flex_attention with a captured tensor": _flex_with_bias,
    "flex_attention with a mask": _flex_with_mask,
    "auto_functionalized_v2": _written_view,
    "auto_functionalized": _written_view,
    "with_effects": _effects,
}


def captured(name: str, *, decompose: bool = False) -> list[Captured]:
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    gradients = name in ("autograd_function", "checkpoint", "cond")
    if name == "with_effects":
        _register_effectful_op(torch.ops.torchrepro_tests.say.default, _EffectType.ORDERED)
    x = torch.randn(4, 8, requires_grad=gradients)
    with torch._inductor.config.patch(enable_auto_functionalized_v2=name != "auto_functionalized"):
        return capture(NAMES[name], x, backward=gradients, inductor_decompositions=decompose)


def repro_of(item: Captured, compiler: str) -> Repro:
    place = Place.AFTER_CAPTURE if item.place == "dynamo" else Place.AFTER_AOT
    return Repro(item.graph, item.inputs, place, Compiler(compiler), symbols=symbols_of(item.graph))


def higher_order_operators(graph: torch.fx.GraphModule) -> set[str]:
    return {
        node.target.name()
        for module in graph.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, HigherOrderOperator)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_passes_from_a_bundle(name: str, tmp_path: Path) -> None:
    items = captured(name)
    operators = {"map": "map_impl", "autograd_function": "autograd_function_apply"}
    operator = operators.get(name, {"checkpoint": "tag_activation_checkpoint"}.get(name, name.split()[0]))
    if name != "associative_scan":  # on the CPU it is unrolled
        assert any(operator in higher_order_operators(item.graph) for item in items)
    for number, item in enumerate(items):
        assert_survives(item.graph)
        loaded = load_bundle(save_bundle(repro_of(item, "aot_eager"), tmp_path / str(number)))
        verdict = judge_repro(loaded)
        assert verdict.kind is Kind.PASS, (item.place, verdict)


class Modes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = x @ x.t()
        with torch.no_grad():
            double = x * 2
        return product, double * x


def test_modes_of_an_exported_program_are_regions_and_pass(tmp_path: Path) -> None:
    program = torch.export.export(Modes(), (torch.randn(4, 8, requires_grad=True),))
    repro = repro_of_exported(program, compiler=Compiler("aot_eager"), ambient=Ambient())
    found = higher_order_operators(repro.graph)
    assert {"wrap_with_autocast", "wrap_with_set_grad_enabled"} <= found
    assert_survives(repro.graph)
    assert judge_repro(load_bundle(save_bundle(repro, tmp_path / "bundle"))).kind is Kind.PASS


JUDGE = """
import json, sys
from pathlib import Path
from torchrepro import load_bundle
from torchrepro.execute.judge_repro import judge_repro
verdicts = {path: str(judge_repro(load_bundle(Path(path), trusted=("source",)))) for path in sys.argv[1:]}
print(json.dumps(verdicts))
"""


@pytest.mark.slow
@pytest.mark.thorough
def test_bundles_pass_with_inductor_in_a_fresh_process(tmp_path: Path) -> None:
    bundles = [
        save_bundle(repro_of(item, "inductor"), tmp_path / f"{number}_{item.place}")
        for number, name in enumerate(("while_loop", "flex_attention with a captured tensor", "with_effects"))
        for item in captured(name, decompose=True)
    ]
    finished = subprocess.run([sys.executable, "-c", JUDGE, *bundles], capture_output=True, text=True)
    verdicts = json.loads(finished.stdout.splitlines()[-1])
    assert len(verdicts) == len(bundles)
    assert {path: verdict for path, verdict in verdicts.items() if not verdict.startswith("pass")} == {}
