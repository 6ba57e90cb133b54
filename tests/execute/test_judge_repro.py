"""Running a repro at both places: the right verdict, the right exception, nothing of the caller's changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import capture
from torch import nn

from torchrepro import (
    AccuracyError,
    Ambient,
    Compiler,
    Kind,
    Place,
    Repro,
    TorchReproError,
    load_bundle,
    repro_common,
    repro_run,
    save_bundle,
)
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.judge.models import Judged
from torchrepro.nouns.repro import Autocast
from torchrepro.state.ambient import capture_ambient


def graph_of(fn: Any) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(fn)


def wrong(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: [out * 1.05 for out in graph(*args)]


def raising(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    raise KeyError("buf12")


def raising_when_called(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    def call(*args: Any) -> Any:
        raise IndexError("out of range")

    return call


def changing_its_graph(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    for node in graph.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.cos
    graph.recompile()
    return graph.forward


def forgetting_mutations(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: graph(*(arg.clone() for arg in args))


def drawing_elsewhere(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    def call(*args: Any) -> Any:
        torch.manual_seed(1234567)
        return graph(*args)

    return call


def wrong_dropout(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: [out * 1.2 for out in graph(*args)]


def silent(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    return lambda *args: (torch.zeros(()),)


HERE = "test_judge_repro"


def repro(fn: Any, *inputs: Any, compiler: str = "aot_eager", **fields: Any) -> Repro:
    return Repro(graph_of(fn), inputs, compiler=Compiler(compiler), **fields)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    sys.modules.setdefault(HERE, sys.modules[__name__])


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_healthy_passes_after_capture_with_every_backend(compiler: str) -> None:
    model = repro(lambda x: (torch.sin(x) @ x,), torch.randn(3, 3, requires_grad=True), compiler=compiler)
    assert judge_repro(model).kind is Kind.PASS


@pytest.mark.parametrize(
    ("compiler", "kind"),
    [
        ("wrong", Kind.MISMATCH),
        ("raising", Kind.COMPILE_ERROR),
        ("raising_when_called", Kind.RUN_ERROR),
        ("changing_its_graph", Kind.MISMATCH),
    ],
)
def test_a_failing_compiler_gets_its_verdict(compiler: str, kind: Kind) -> None:
    verdict = judge_repro(repro(lambda x: (torch.sin(x),), torch.ones(3), compiler=f"{HERE}:{compiler}"))
    assert verdict.kind is kind, verdict


def test_a_mismatch_raises_accuracy_error_with_its_verdict() -> None:
    with pytest.raises(AccuracyError) as caught:
        repro_run(repro(lambda x: (torch.sin(x),), torch.ones(3), compiler=f"{HERE}:wrong"))
    assert caught.value.verdict is not None
    assert caught.value.verdict.kind is Kind.MISMATCH


@pytest.mark.parametrize(("compiler", "error"), [("raising", KeyError), ("raising_when_called", IndexError)])
@pytest.mark.parametrize("accuracy", [True, False])
def test_the_compilers_own_exception_comes_out(compiler: str, error: type, accuracy: bool) -> None:
    with pytest.raises(error):
        repro_run(
            repro(lambda x: (torch.sin(x),), torch.ones(3), compiler=f"{HERE}:{compiler}"), accuracy=accuracy
        )


def test_without_accuracy_the_outputs_are_returned() -> None:
    (out,) = repro_run(repro(lambda x: (torch.sin(x),), torch.zeros(3)), accuracy=False)
    assert torch.equal(out, torch.zeros(3))


def test_a_lost_mutation_of_an_input_is_found_and_the_input_is_not_touched() -> None:
    x = torch.ones(3)
    failing = repro(lambda x: (x.add_(1).sum(),), x, compiler=f"{HERE}:forgetting_mutations")
    verdict = judge_repro(failing)
    assert verdict.kind is Kind.MISMATCH
    assert verdict.comparison is not None
    assert [leaf.path for leaf in verdict.comparison.differing] == ["inputs[0]"]
    assert torch.equal(x, torch.ones(3))


def dropping(x: torch.Tensor) -> Any:
    return (nn.functional.dropout(x, 0.5, True),)


def test_dropout_is_really_compared() -> None:
    assert judge_repro(repro(dropping, torch.ones(64))).kind is Kind.PASS
    verdict = judge_repro(repro(dropping, torch.ones(64), compiler=f"{HERE}:wrong_dropout"))
    assert verdict.kind is Kind.MISMATCH
    assert any("same draws" in note for note in verdict.notes)


def test_draws_that_cannot_be_made_equal_are_not_comparable() -> None:
    verdict = judge_repro(repro(dropping, torch.ones(64), compiler=f"{HERE}:drawing_elsewhere"))
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert "random" in verdict.summary


def test_values_that_do_not_depend_on_the_draws_count_all_the_same() -> None:
    def mixed(x: torch.Tensor) -> Any:
        return nn.functional.dropout(x, 0.5, True), x.clone()

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            torch.manual_seed(99)
            dropped, copied = graph(*args)
            return dropped, copied + 1

        return call

    sys.modules[HERE].both_wrong = compiler
    verdict = judge_repro(repro(mixed, torch.ones(64), compiler=f"{HERE}:both_wrong"))
    assert verdict.kind is Kind.MISMATCH


def test_a_recorded_random_state_is_used_and_the_callers_is_left_alone() -> None:
    torch.manual_seed(3)
    recorded = capture_ambient()
    torch.manual_seed(4)
    before = torch.get_rng_state()
    verdict = judge_repro(repro(dropping, torch.ones(64), ambient=recorded))
    assert verdict.kind is Kind.PASS
    assert torch.equal(torch.get_rng_state(), before)


def test_an_error_of_eager_that_the_compiled_side_does_not_raise_is_a_failure() -> None:
    verdict = judge_repro(
        repro(lambda x: (torch.bernoulli(x),), torch.tensor([1.7]), compiler=f"{HERE}:silent")
    )
    assert verdict.kind is Kind.MISSING_ERROR


def test_if_both_raise_nothing_can_be_said() -> None:
    verdict = judge_repro(repro(lambda x: (x @ torch.ones(7, 7),), torch.ones(3, 3)))
    assert verdict.kind is Kind.INVALID


def test_autocast_around_the_call_is_applied_to_both_sides() -> None:
    model = repro(
        lambda x: (x @ x,),
        torch.randn(4, 4),
        ambient=Ambient(autocast=(Autocast("cpu", "bfloat16"),)),
    )
    assert judge_repro(model).kind is Kind.PASS
    (out,) = repro_run(model, accuracy=False)
    assert out.dtype is torch.bfloat16


def test_an_unknown_compiler_and_wrong_inputs_are_clear_errors() -> None:
    with pytest.raises(TorchReproError, match="did you mean 'aot_eager'"):
        repro_common(repro(lambda x: x.sin(), torch.ones(1), compiler="aot_eagr"))
    with pytest.raises(TorchReproError, match="takes 1 inputs, the repro has 2"):
        repro_common(repro(lambda x: x.sin(), torch.ones(1), torch.ones(1)))
    with pytest.raises(TorchReproError, match="cannot import"):
        repro_common(repro(lambda x: x.sin(), torch.ones(1), compiler="no_such_module:f"))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def after_aot(compiler: str = "inductor", **options: Any) -> list[Repro]:
    torch.manual_seed(0)
    graphs = capture(Small(), torch.randn(5, 6), backward=True, inductor_decompositions=True, **options)
    return [
        Repro(found.graph, found.inputs, Place.AFTER_AOT, Compiler(compiler), symbols=symbols_of(found.graph))
        for found in graphs
        if found.place != "dynamo"
    ]


@pytest.mark.parametrize("compiler", ["aot_eager", "aot_eager_decomp_partition"])
def test_graphs_after_aot_run_with_the_debugging_backends(compiler: str) -> None:
    forward, backward = after_aot(compiler)
    assert judge_repro(forward).kind is Kind.PASS
    assert judge_repro(backward).kind is Kind.PASS


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, True])
def test_forward_and_backward_after_aot_compile_with_inductor_also_from_a_bundle(
    dynamic: bool | None, tmp_path: Path
) -> None:
    for number, found in enumerate(after_aot(dynamic=dynamic)):
        assert bool(found.symbols) == bool(dynamic)
        loaded = load_bundle(save_bundle(found, tmp_path / str(number)))
        assert loaded.symbols == found.symbols
        verdict = judge_repro(loaded)
        assert verdict.kind is Kind.PASS, verdict


@pytest.mark.slow
def test_inductor_after_capture_with_options_and_mode() -> None:
    plain = repro(lambda x: (torch.sin(x).sum(-1),), torch.randn(8, 40, requires_grad=True))
    for compiler in (
        Compiler("inductor", options={"max_autotune": False, "cpp.threads": 1}),
        Compiler("inductor", mode="max-autotune-no-cudagraphs"),
    ):
        assert judge_repro(replace(plain, compiler=compiler)).kind is Kind.PASS


@pytest.mark.slow
def test_a_wrong_kernel_of_inductor_is_found_after_aot() -> None:
    import torch._inductor.config as config

    graph = graph_of(lambda x: (torch.ops.aten.relu.default(x),))
    failing = Repro(graph, (torch.randn(16),), Place.AFTER_AOT)
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy", "fx_graph_cache": False}):
        assert judge_repro(failing).kind is Kind.MISMATCH
    assert judge_repro(failing).kind is Kind.PASS


def test_eager_shares_large_storages_that_are_only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[judge_repro.__module__], "SHARED_FROM", 1)

    def f(read: torch.Tensor, written: torch.Tensor) -> tuple[torch.Tensor]:
        return (written.add_(1)[:4] + read,)

    memory = torch.zeros(1 << 21, dtype=torch.uint8)
    inputs = (memory[-4:], torch.zeros(1 << 20))
    repro = Repro(torch.fx.symbolic_trace(f), inputs, Place.AFTER_CAPTURE, Compiler("aot_eager"))
    judged = Judged()
    assert judge_repro(repro, judged=judged).kind is Kind.PASS
    places = {
        name: [value.untyped_storage().data_ptr() for value in run.inputs]
        for name, run in judged.runs.items()
    }
    own = [value.untyped_storage().data_ptr() for value in inputs]
    assert [name for name, (read, _) in places.items() if read == own[0]] == ["eager", "truth"]
    assert all(written != own[1] for _, written in places.values())
    assert not inputs[1].any()


def test_only_the_compiler_gets_a_copy_of_a_graph_without_state(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    deepcopy = torch.fx.GraphModule.__deepcopy__

    def counted(graph: torch.fx.GraphModule, memo: Any) -> Any:
        copies.append(graph)
        return deepcopy(graph, memo)

    monkeypatch.setattr(torch.fx.GraphModule, "__deepcopy__", counted)
    repro = Repro(graph_of(lambda x: x.sin() + 1), (torch.randn(3),), Place.AFTER_CAPTURE, Compiler("eager"))
    assert judge_repro(repro).kind is Kind.PASS
    assert len(copies) == 1


def test_a_constant_that_the_graph_writes_to_is_as_it_was_after_a_judgement() -> None:
    lines = torch.fx.Graph()
    x, count = lines.placeholder("x"), lines.get_attr("count")
    lines.output((lines.call_method("mul", (x, lines.call_method("add_", (count, 1)))),))
    # A plain attribute, neither parameter nor buffer, and as wide as the truth.
    graph = torch.fx.GraphModule({"count": torch.zeros((), dtype=torch.float64)}, lines)
    repro = Repro(graph, (torch.randn(3),), Place.AFTER_CAPTURE, Compiler("eager"))
    assert judge_repro(repro).kind is Kind.PASS
    assert float(graph.count) == 0
