"""What the watch keeps of a failing graph, at each level."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import faulty_backends
import pytest
import torch
import torch.utils.checkpoint

import torchrepro
from torchrepro import Kind, Place, Repro, watch
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.catch import hook
from torchrepro.catch.caught import caught_in
from torchrepro.nouns.errors import AccuracyError

LEVELS = pytest.mark.parametrize("level", [1, 2, 3, 4])


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x) + 1


def compiled(backend: Any, fn: Any = function) -> Any:
    return torch.compile(fn, backend=backend)


def only_bundle(directory: Path) -> Path:
    found = [path for path in directory.iterdir() if (path / "manifest.json").exists()]
    assert len(found) == 1, found
    return found[0]


def load(bundle: Path) -> Repro:
    return load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))


def ops_of(repro: Repro) -> list[str]:
    return [node.name for node in repro.graph.graph.nodes if node.op.startswith("call")]


@LEVELS
def test_an_exception_while_compiling_leaves_a_bundle_and_arrives_unchanged(
    level: int, tmp_path: Path
) -> None:
    with watch(level=level, out=tmp_path), pytest.raises(Exception, match="no kernel for this") as caught:
        compiled(faulty_backends.raises_while_compiling)(torch.eye(3))
    assert type(caught.value).__name__ == "BackendCompilerFailed"
    assert "raises_while_compiling" in str(caught.value)
    repro = load(only_bundle(tmp_path))
    assert repro.expected is not None
    assert repro.expected.kind is Kind.COMPILE_ERROR
    assert repro.place is Place.AFTER_CAPTURE
    assert repro.compiler.name.endswith(":raises_while_compiling")
    (backend,) = read_manifest(only_bundle(tmp_path)).user_settings
    assert backend.reference == "faulty_backends:raises_while_compiling"
    assert torch.equal(repro.inputs[0], torch.eye(3))


def test_the_graph_kept_is_the_one_before_the_compiler_changed_it(tmp_path: Path) -> None:
    with watch(level=2, out=tmp_path), pytest.raises(Exception, match="no kernel"):
        compiled(faulty_backends.raises_while_compiling)(torch.eye(3))
    assert ops_of(load(only_bundle(tmp_path))) == ["matmul", "relu", "add"]


@pytest.mark.parametrize("level", [3, 4])
def test_the_inputs_kept_are_those_from_before_the_call(level: int, tmp_path: Path) -> None:
    run = compiled(faulty_backends.raises_while_running)
    with watch(level=level, out=tmp_path), pytest.raises(RuntimeError, match="the kernel failed"):
        run(torch.eye(3))
    repro = load(only_bundle(tmp_path))
    assert torch.equal(repro.inputs[0], torch.eye(3))
    assert repro.expected is not None
    assert repro.expected.kind is Kind.RUN_ERROR


def test_at_level_2_inputs_that_may_have_been_written_to_are_said_to_be_so(tmp_path: Path) -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    with watch(level=2, out=tmp_path), pytest.raises(RuntimeError):
        compiled(faulty_backends.raises_while_running, in_place)(torch.zeros(3))
    assert any("as the failed call left them" in note for note in load(only_bundle(tmp_path)).notes)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_below_level_4_wrong_numbers_go_unseen(level: int, tmp_path: Path) -> None:
    with watch(level=level, out=tmp_path):
        compiled(faulty_backends.wrong)(torch.eye(3))
    assert list(tmp_path.iterdir()) == []


def test_level_4_sees_wrong_numbers_and_lets_the_program_go_on(tmp_path: Path, capfd: Any) -> None:
    with watch(level=4, out=tmp_path) as session:
        result = compiled(faulty_backends.wrong)(torch.eye(3))
    assert torch.equal(result, function(torch.eye(3)) * 1.25)
    repro = load(only_bundle(tmp_path))
    assert repro.expected is not None
    assert repro.expected.kind is Kind.MISMATCH
    assert session.kept == [only_bundle(tmp_path)]
    assert str(session.kept[0]) in capfd.readouterr().err


def test_a_mismatch_can_be_made_to_raise(tmp_path: Path) -> None:
    with watch(level=4, out=tmp_path, on_mismatch="raise"), pytest.raises(AccuracyError, match="out"):
        compiled(faulty_backends.wrong)(torch.eye(3))


def test_level_4_sees_a_lost_mutation(tmp_path: Path) -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    with watch(level=4, out=tmp_path):
        compiled(faulty_backends.loses_a_mutation, in_place)(torch.ones(3))
    verdict = read_manifest(only_bundle(tmp_path)).verdict
    assert verdict is not None
    assert "inputs[0]" in verdict["summary"]


def test_level_4_sees_results_that_are_cut_off_from_autograd(tmp_path: Path) -> None:
    def backend(graph: Any, example_inputs: Any) -> Any:
        return lambda *args: tuple(out.detach() for out in graph.forward(*args))

    with watch(level=4, out=tmp_path):
        compiled(backend)(torch.ones(3))
        compiled(backend, lambda x: x.detach() * 2)(torch.ones(3, requires_grad=True))
        with torch.no_grad():
            compiled(backend, lambda x: x * 3)(torch.ones(3, requires_grad=True))
    assert not list(tmp_path.glob("*-mismatch"))
    with watch(level=4, out=tmp_path):
        compiled(backend, lambda x: x * 4)(torch.ones(3, requires_grad=True))
    verdict = read_manifest(only_bundle(tmp_path)).verdict
    assert verdict is not None
    assert "grad" in verdict["summary"]


def test_level_4_sees_wrong_gradients_and_leaves_the_users_own_alone(tmp_path: Path) -> None:
    class WrongGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return grad * 3

    def backend(graph: Any, example_inputs: Any) -> Any:
        return lambda *args: tuple(WrongGradient.apply(out) for out in graph.forward(*args))

    layer = torch.nn.Linear(3, 3)
    with watch(level=4, out=tmp_path):
        torch.compile(layer, backend=backend)(torch.ones(2, 3))
    assert layer.weight.grad is None
    verdict = read_manifest(only_bundle(tmp_path)).verdict
    assert verdict is not None
    assert "grad" in verdict["summary"]


@LEVELS
def test_a_healthy_program_leaves_nothing(level: int, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    with watch(level=level, out=tmp_path):
        run = torch.compile(model, backend="aot_eager")
        for _ in range(3):
            run(torch.randn(5, 4)).sum().backward()
    assert list(tmp_path.iterdir()) == []


@LEVELS
def test_the_users_random_numbers_are_the_same_watched_or_not(level: int, tmp_path: Path) -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    torch.manual_seed(5)
    expected = [compiled("aot_eager", noisy)(torch.zeros(3)), torch.rand(2)]
    torch._dynamo.reset()
    torch.manual_seed(5)
    with watch(level=level, out=tmp_path):
        found = [compiled("aot_eager", noisy)(torch.zeros(3)), torch.rand(2)]
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize("level", [2, 3])
def test_asking_eager_about_an_error_draws_none_of_the_users_numbers(level: int, tmp_path: Path) -> None:
    run = compiled(faulty_backends.raises_while_running, lambda x: x + torch.rand(3))
    torch.manual_seed(5)
    with watch(level=level, out=tmp_path), pytest.raises(RuntimeError, match="the kernel failed"):
        run(torch.zeros(3))
    found = torch.rand(2)
    torch.manual_seed(5)
    assert torch.equal(found, torch.rand(2))


def test_a_fault_of_ours_while_asking_eager_does_not_lose_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(prepared: Any) -> Any:
        raise ValueError("the graph cannot be copied")

    monkeypatch.setattr(hook.Prepared, "graph", broken)
    with watch(level=2, out=tmp_path), pytest.raises(RuntimeError, match="the kernel failed"):
        compiled(faulty_backends.raises_while_running)(torch.eye(3))
    assert only_bundle(tmp_path)


@LEVELS
def test_checkpointing_goes_on_as_if_unwatched(level: int, tmp_path: Path) -> None:
    """It stops recomputing by an exception, and counts what autograd saves meanwhile."""
    layer = torch.nn.Linear(4, 4)
    run = torch.compile(lambda x: torch.relu(layer(x)).sin(), backend="aot_eager")
    with watch(level=level, out=tmp_path):
        x = torch.ones(2, 4, requires_grad=True)
        torch.utils.checkpoint.checkpoint(run, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.hessian])
def test_healthy_transforms_of_torch_func_leave_nothing(transform: Any, tmp_path: Path) -> None:
    with watch(level=4, out=tmp_path) as session:
        compiled("aot_eager", transform(lambda x: x.sin().sum()))(torch.randn(4))
    assert session.kept == []


def test_an_error_that_eager_raises_as_well_is_not_the_compilers(tmp_path: Path) -> None:
    def picks(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]

    with watch(level=2, out=tmp_path), pytest.raises(IndexError):
        compiled("aot_eager", picks)(torch.zeros(3), torch.tensor([7]))
    assert list(tmp_path.iterdir()) == []


def test_the_same_failure_of_the_same_graph_is_kept_once(tmp_path: Path) -> None:
    run = compiled(faulty_backends.wrong)
    with watch(level=4, out=tmp_path):
        for _ in range(5):
            run(torch.eye(3))
    assert len(caught_in(tmp_path, only_bundle(tmp_path).name.rsplit("-", 2)[0])) == 1


def test_no_more_bundles_than_the_limit(tmp_path: Path) -> None:
    with watch(level=4, out=tmp_path, limit=2):
        for size in range(2, 7):
            torch._dynamo.reset()
            compiled(faulty_backends.wrong, lambda x, size=size: x * size)(torch.ones(size))
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


def test_every_failure_of_a_program_is_kept_under_its_own_name(tmp_path: Path) -> None:
    with watch(level=4, out=tmp_path) as session:
        compiled(faulty_backends.wrong, lambda x: x + 1)(torch.ones(2))
        compiled(faulty_backends.wrong, lambda x: x.sin())(torch.ones(2))
    assert len(set(session.kept)) == 2
    assert [caught.verdict for caught in caught_in(tmp_path, session.run_id)] == ["mismatch"] * 2


def test_what_was_compiled_inside_a_watch_is_not_watched_after_it(tmp_path: Path) -> None:
    with watch(level=4, out=tmp_path):
        run = compiled(faulty_backends.wrong_from_the_third_call_on)
        run(torch.eye(3))
    for _ in range(3):
        run(torch.eye(3))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_that_needs_earlier_calls_is_kept_with_them(tmp_path: Path) -> None:
    run = compiled(faulty_backends.raises_from_the_second_call_on)
    with watch(level=2, out=tmp_path):
        run(torch.eye(3))
        with pytest.raises(RuntimeError, match="second replay"):
            run(torch.eye(3))
    repro = load(only_bundle(tmp_path))
    assert len(repro.earlier) == 1
    with pytest.raises(RuntimeError, match="second replay"):
        torchrepro.repro_run(repro)


def test_a_late_mismatch_replays_from_its_bundle(tmp_path: Path) -> None:
    run = compiled(faulty_backends.wrong_from_the_third_call_on)
    with watch(level=4, out=tmp_path):
        for _ in range(3):
            run(torch.eye(3))
    with pytest.raises(AccuracyError):
        torchrepro.repro_run(load(only_bundle(tmp_path)))


def test_dynamic_sizes_are_kept_as_symbols(tmp_path: Path) -> None:
    run = torch.compile(function, backend=faulty_backends.raises_while_compiling, dynamic=True)
    with watch(level=2, out=tmp_path), pytest.raises(Exception, match="no kernel"):
        run(torch.randn(5, 5))
    repro = load(only_bundle(tmp_path))
    assert {symbol.hint for symbol in repro.symbols} == {5}
    assert any(value == 5 for value in repro.inputs)


def test_the_state_around_the_call_is_kept(tmp_path: Path) -> None:
    run = compiled(faulty_backends.raises_while_compiling)
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    with watch(level=2, out=tmp_path), torch.no_grad(), context, pytest.raises(Exception, match="no kernel"):
        run(torch.eye(3))
    ambient = load(only_bundle(tmp_path)).ambient
    assert not ambient.grad_enabled
    assert [(cast.device, cast.dtype) for cast in ambient.autocast] == [("cpu", "bfloat16")]
    assert torch.equal(ambient.rng["cpu"], torch.get_rng_state())


@pytest.mark.parametrize("level", [1, 2])
def test_inputs_are_not_kept_alive(level: int, tmp_path: Path) -> None:
    run = compiled(faulty_backends.healthy)
    with watch(level=level, out=tmp_path):
        x = torch.eye(3)
        y = run(x)
        dead = weakref.ref(x), weakref.ref(y)
        del x, y
        gc.collect()
    assert [ref() for ref in dead] == [None, None]


def test_who_interrupts_a_compiler_that_does_not_answer_has_met_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(graph: Any, example_inputs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(hook, "HANG_SECONDS", 0.0)
    with watch(level=1, out=tmp_path), pytest.raises(KeyboardInterrupt):
        compiled(interrupted)(torch.eye(3))
    expected = read_manifest(only_bundle(tmp_path)).expected
    assert expected is not None
    assert expected.kind is Kind.HANG


def test_a_quick_interrupt_is_no_hang(tmp_path: Path) -> None:
    def interrupted(graph: Any, example_inputs: Any) -> Any:
        raise KeyboardInterrupt

    with watch(level=3, out=tmp_path), pytest.raises(KeyboardInterrupt):
        compiled(interrupted)(torch.eye(3))
    assert list(tmp_path.iterdir()) == []


def test_the_compilers_name_and_options_are_kept(tmp_path: Path) -> None:
    options = {"max_autotune": False, "epilogue_fusion": False}
    run = torch.compile(function, options=options, dynamic=False)
    inner = torch._inductor.config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"})
    with watch(level=2, out=tmp_path), inner, pytest.raises(Exception, match="compile"):
        run(torch.eye(3))
    repro = load(only_bundle(tmp_path))
    assert repro.compiler.name == "inductor"
    assert repro.compiler.options == options
    assert repro.ambient.configs["inductor"]["cpp.inject_relu_bug_TESTING_ONLY"] == "compile_error"


@pytest.mark.slow
def test_the_standalone_script_makes_the_earlier_calls_too(tmp_path: Path) -> None:
    run = compiled(faulty_backends.raises_from_the_second_call_on)
    with watch(level=3, out=tmp_path):
        run(torch.eye(3))
        with pytest.raises(RuntimeError, match="second replay"):
            run(torch.eye(3))
    here = str(Path(__file__).resolve().parent)
    script = subprocess.run(
        [sys.executable, only_bundle(tmp_path) / "repro.py"],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "PYTHONPATH": here},
        check=False,
    )
    assert script.returncode == 1, script.stdout + script.stderr
    assert script.stdout.endswith("reproduced\n")
