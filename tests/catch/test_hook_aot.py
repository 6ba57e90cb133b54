"""The watch below AOT: backward graphs, which only autograd calls, and all graphs if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed
from torch.utils.checkpoint import checkpoint

from torchrepro import Kind, Place, Repro, watch
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.execute.judge_repro import judge_repro


def bundles(directory: Path) -> list[Repro]:
    found = sorted(path for path in directory.iterdir() if (path / "manifest.json").exists())
    return [load_bundle(path, trusted=names_it_runs(read_manifest(path))) for path in found]


def healthy(graph: Any, example_inputs: Any) -> Any:
    return make_boxed_func(graph.forward)


def failing(graph: Any, example_inputs: Any) -> Any:
    raise NotImplementedError("no backward kernel")


def failing_later(graph: Any, example_inputs: Any) -> Any:
    def run(args: list[Any]) -> Any:
        args.clear()
        raise RuntimeError("the backward kernel failed")

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def wrong(graph: Any, example_inputs: Any) -> Any:
    def run(*args: Any) -> Any:
        return [out * 1.25 if isinstance(out, torch.Tensor) else out for out in graph.forward(*args)]

    return make_boxed_func(run)


def train(backward: Any, forward: Any = healthy, **options: Any) -> torch.Tensor:
    """One step of a function whose graphs go to the given compilers."""
    backend = aot_autograd(fw_compiler=forward, bw_compiler=backward)
    x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
    run = torch.compile(lambda x: (x.sin() @ x.t()).exp().sum(), backend=backend)
    with watch(**options):
        run(x).backward()
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("after", ["auto", "aot"])
def test_an_error_while_compiling_backward_leaves_a_bundle(after: str, tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="no backward kernel"):
        train(failing, level=2, after=after, out=tmp_path)
    (repro,) = bundles(tmp_path)
    assert repro.place is Place.AFTER_AOT
    assert repro.expected is not None
    assert repro.expected.kind is Kind.COMPILE_ERROR
    assert any("no data existed" in note for note in repro.notes)


@pytest.mark.parametrize("backward", [None, healthy])
def test_a_backend_that_aot_autograd_made_is_kept_as_source(backward: Any, tmp_path: Path) -> None:
    compilers = (
        {"fw_compiler": failing} if backward is None else {"fw_compiler": failing, "bw_compiler": healthy}
    )
    run = torch.compile(lambda x: x.sin(), backend=aot_autograd(**compilers))
    for _ in range(2):  # the first call changes the backend
        with watch(level=2, out=tmp_path), pytest.raises(BackendCompilerFailed, match="no backward kernel"):
            run(torch.ones(3))
    for repro in bundles(tmp_path):
        verdict = judge_repro(repro)
        assert verdict.kind is Kind.COMPILE_ERROR
        assert "no backward kernel" in verdict.summary


@pytest.mark.parametrize("level", [2, 3])
def test_an_error_while_running_backward_leaves_a_bundle(level: int, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the backward kernel failed"):
        train(failing_later, level=level, out=tmp_path)
    (repro,) = bundles(tmp_path)
    assert repro.place is Place.AFTER_AOT
    assert repro.expected is not None
    assert repro.expected.kind is Kind.RUN_ERROR
    freed = any("had freed its inputs" in note for note in repro.notes)
    assert freed == (level == 2), repro.notes


def test_auto_sees_wrong_gradients_after_capture(tmp_path: Path) -> None:
    train(wrong, level=4, out=tmp_path)
    (repro,) = bundles(tmp_path)
    assert repro.place is Place.AFTER_CAPTURE


def test_aot_sees_them_in_the_backward_graph_with_the_real_tangents(tmp_path: Path) -> None:
    train(wrong, level=4, after="aot", out=tmp_path)
    (repro,) = bundles(tmp_path)
    assert repro.place is Place.AFTER_AOT
    assert repro.expected is not None
    assert repro.expected.kind is Kind.MISMATCH


def test_dynamo_alone_does_not_look_below_aot(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError):
        train(failing, level=2, after="dynamo", out=tmp_path)
    assert bundles(tmp_path) == []


@pytest.mark.parametrize("after", ["auto", "dynamo", "aot"])
@pytest.mark.parametrize("level", [2, 3, 4])
def test_a_healthy_step_leaves_nothing_and_has_the_right_gradients(
    after: str, level: int, tmp_path: Path
) -> None:
    found = train(healthy, level=level, after=after, out=tmp_path)
    x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
    (x.sin() @ x.t()).exp().sum().backward()
    assert x.grad is not None
    assert torch.allclose(found, x.grad)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("after", ["auto", "aot"])
def test_inductor_with_warm_caches_is_still_watched(after: str, tmp_path: Path) -> None:
    """A hit of AOT's cache hands out compiled graphs that met no hook when they were compiled."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    def step() -> None:
        torch._dynamo.reset()
        x = torch.linspace(-1, 1, 6).requires_grad_()
        torch.compile(lambda x: torch.relu(x).sin().sum())(x).backward()

    broken = inductor.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy", "fx_graph_cache": True})
    with broken, functorch.patch(enable_autograd_cache=True), inductor.patch(force_disable_caches=False):
        step()
        with watch(level=4, after=after, out=tmp_path):
            step()
    found = bundles(tmp_path)
    assert {repro.place for repro in found} == {Place.AFTER_AOT if after == "aot" else Place.AFTER_CAPTURE}


@pytest.mark.slow
def test_dropout_that_backward_computes_again_from_a_seed_is_no_mismatch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 8))
    run = torch.compile(lambda x: x + checkpoint(block, x, use_reentrant=False))
    with watch(level=4, out=tmp_path):
        run(torch.randn(4, 8)).sum().backward()
    assert bundles(tmp_path) == []
