"""Exported programs as repros: state as inputs, mutations compared, dynamic sizes kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, torchrepro
from torch import nn
from zoo import PLAIN

from torchrepro import Ambient, Compiler, Kind, Place, Repro, TorchReproError, load_bundle, save_bundle
from torchrepro.bundle.exported import repro_of_exported
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.verdict import Signature


def from_program(program: torch.export.ExportedProgram, compiler: str = "aot_eager", **state: Any) -> Repro:
    return repro_of_exported(program, compiler=Compiler(compiler), ambient=Ambient(**state))


def exported(name: str, **options: Any) -> torch.export.ExportedProgram:
    model, args, kwargs = PLAIN[name]()
    return torch.export.export(model.eval(), args, kwargs, **options)


def dynamic_transformer() -> torch.export.ExportedProgram:
    return exported("transformer", dynamic_shapes=({0: torch.export.Dim("batch", max=64)},))


def through_a_bundle(repro: Repro, directory: Path) -> Repro:
    return load_bundle(save_bundle(repro, directory / "bundle"))


def test_state_and_arguments_are_inputs_and_the_program_computes_as_before() -> None:
    program = exported("transformer")
    repro = from_program(program)
    assert repro.place is Place.EXPORT
    assert not list(repro.graph.parameters())
    assert sum(isinstance(value, nn.Parameter) for value in repro.inputs) == len(list(program.parameters()))
    args, kwargs = program.example_inputs
    torch.testing.assert_close(repro.graph(*repro.inputs)[0], program.module()(*args, **kwargs))


@pytest.mark.parametrize("functional", [False, True])
def test_written_buffers_and_arguments_are_compared_and_named(functional: bool, tmp_path: Path) -> None:
    program = exported("in_place_state")
    program = program.run_decompositions() if functional else program
    repro = through_a_bundle(from_program(program), tmp_path)
    assert judge_repro(repro).kind is Kind.PASS
    (note,) = repro.notes
    for words in ("inputs[0] is the buffer cache", "inputs[1] is the buffer steps", "the argument x"):
        assert words in note
    after = tuple(value.clone() for value in repro.inputs)
    repro.graph(*after)
    assert after[1].item() == 1


class Swap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return x + self.a


def test_buffers_that_change_places_do() -> None:
    program = torch.export.export(Swap(), (torch.zeros(2),)).run_decompositions()
    repro = from_program(program)
    a, b, x = (value.clone() for value in repro.inputs)
    (out,) = repro.graph(a, b, x)
    assert (a.tolist(), b.tolist(), out.tolist()) == ([1, 1], [0, 0], [1, 1])


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, count: int, mode: str, y: Any = None, options: Any = None) -> Any:
        return {"scaled": x.sin() * count, "rest": [y, options["k"] + 1, None, 3]}


def test_keywords_constants_none_and_nested_values(tmp_path: Path) -> None:
    args, kwargs = (torch.randn(3), 2, "max"), {"options": {"k": torch.ones(2)}, "y": None}
    repro = through_a_bundle(from_program(torch.export.export(Nested(), args, kwargs)), tmp_path)
    assert [value for value in repro.inputs if not isinstance(value, torch.Tensor)] == [2, "max", None]
    assert "{'scaled': out[0], 'rest': [out[1], out[2], out[3], out[4]]}" in repro.notes[-1]
    assert judge_repro(repro).kind is Kind.PASS


def test_other_inputs_than_the_exported_ones_and_wrong_ones() -> None:
    program = dynamic_transformer()
    options: Any = {"compiler": Compiler("eager"), "ambient": Ambient()}
    x = torch.randn(5, 6, 16)
    assert repro_of_exported(program, (x,), **options).inputs[-1] is x
    with pytest.raises(TorchReproError, match="do not fit the program"):
        repro_of_exported(program, (x, x), **options)


def test_dynamic_sizes_keep_their_symbol_and_range(tmp_path: Path) -> None:
    repro = through_a_bundle(from_program(dynamic_transformer()), tmp_path)
    (symbol,) = repro.symbols
    assert (symbol.hint, symbol.lower, symbol.upper) == (2, 2, 64)
    assert judge_repro(repro).kind is Kind.PASS


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make_program",
    [
        pytest.param(lambda: exported("cnn"), marks=pytest.mark.thorough, id="cnn"),
        pytest.param(dynamic_transformer, id="dynamic batch"),
        pytest.param(lambda: exported("in_place_state"), marks=pytest.mark.thorough, id="mutated buffer"),
    ],
)
def test_a_healthy_program_passes_in_a_fresh_process(
    make_program: Callable[[], torch.export.ExportedProgram], tmp_path: Path
) -> None:
    bundle = save_bundle(from_program(make_program(), "inductor", grad_enabled=False), tmp_path / "bundle")
    found = answer(torchrepro("check", "--json", bundle))
    assert found["verdict"] == "pass", found


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["inductor", pytest.param("aot_inductor", marks=pytest.mark.thorough)])
def test_a_wrong_kernel_fails_again_from_the_bundle(compiler: str, tmp_path: Path) -> None:
    program = torch.export.export(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (torch.randn(4, 8),))
    wrong = {"inductor": {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}}
    healthy = judge_repro(from_program(program, compiler, grad_enabled=False))
    assert healthy.kind is Kind.PASS, healthy
    failing = from_program(program, compiler, grad_enabled=False, configs=wrong)
    verdict = judge_repro(failing)
    assert verdict.kind is Kind.MISMATCH, verdict
    failing = replace(failing, expected=Signature.of(verdict))
    bundle = save_bundle(failing, tmp_path / "bundle", verdict=verdict)
    finished = torchrepro("check", "--json", bundle)
    assert answer(finished)["reproduces"] is True
    assert finished.returncode == 1
