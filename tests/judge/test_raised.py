"""What an exception tells: what was raised, while compiling or running, and at which stage."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.compile_worker.subproc_pool import SubprocException

from torchrepro.judge import execute as raised
from torchrepro.judge.execute import verdict_of
from torchrepro.nouns.verdict import Kind, Stage, Verdict


def verdict_with(backend: Any, fn: Any = torch.sin) -> Verdict:
    torch._dynamo.reset()
    try:
        torch.compile(fn, backend=backend)(torch.ones(2))
    except Exception as exc:
        return verdict_of(exc)
    raise AssertionError("nothing was raised")


def failing_compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    raise KeyError("buf7")


class Speechless(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("not ready")

    __repr__ = __str__


def test_an_exception_whose_text_cannot_be_had_is_described_by_its_type() -> None:
    verdict = verdict_of(Speechless(), compiling=False)
    assert verdict.kind is Kind.RUN_ERROR
    assert verdict.raised is not None
    assert (verdict.raised.type, verdict.raised.message) == ("Speechless", "<its __str__ raises ValueError>")


def failing_function(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    def call(*args: Any) -> Any:
        raise IndexError("row 3")

    return call


def test_a_failing_compiler_is_a_compile_error_without_its_wrappers() -> None:
    verdict = verdict_with(failing_compiler)
    assert verdict.kind is Kind.COMPILE_ERROR
    assert verdict.raised is not None
    assert (verdict.raised.type, verdict.raised.message) == ("KeyError", "'buf7'")


def test_a_failing_compiled_function_is_a_run_error_of_the_backend() -> None:
    verdict = verdict_with(failing_function)
    assert (verdict.kind, verdict.stage) == (Kind.RUN_ERROR, Stage.BACKEND)
    assert verdict.raised is not None
    assert verdict.raised.type == "IndexError"


def test_an_error_in_a_compile_worker_is_the_one_of_a_compilation_in_this_process() -> None:
    def fails() -> None:
        raise RuntimeError(
            "Failed to import /tmp/k.py\nSyntaxError: invalid syntax\n    compile error!\n    ^"
        )

    try:
        fails()
    except RuntimeError as exc:
        here = raised.describe(exc)
        there = raised.describe(SubprocException(traceback.format_exc(), "triton_poi_fused_relu_0"))
    assert (there.type, there.message) == (here.type, here.message)


def test_a_failure_of_capture_says_so() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported) as caught:
        torch.compile(breaks, backend="eager", fullgraph=True)(torch.ones(2))
    verdict = verdict_of(caught.value)
    assert (verdict.kind, verdict.stage) == (Kind.COMPILE_ERROR, Stage.CAPTURE)


def test_a_failing_decomposition_is_told_from_the_backend() -> None:
    from torch._inductor.decomposition import select_decomp_table

    def wrong(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("decomposition")

    op = torch.ops.aten.silu.default
    table = select_decomp_table()
    kept = table[op]
    table[op] = wrong
    try:
        verdict = verdict_with("aot_eager_decomp_partition", torch.nn.functional.silu)
    finally:
        table[op] = kept
    assert verdict.kind is Kind.COMPILE_ERROR
    assert verdict.stage is Stage.DECOMPOSITION


@pytest.mark.parametrize(
    "exc",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory: 9 GB"),
    ],
)
def test_no_memory_is_its_own_verdict(exc: Exception) -> None:
    assert verdict_of(exc).kind is Kind.OUT_OF_MEMORY


def test_every_place_of_our_own_front_end_exists() -> None:
    """A table of paths goes stale without an error when files are moved."""
    package = Path(raised.__file__).parents[1]
    ours = [place for place, _ in raised._STAGES if place.startswith("/torchrepro/")]
    ours += [place for place in raised._COMPILING if place.startswith("/torchrepro/")]
    assert ours
    for place in ours:
        file, _, function = place.removeprefix("/torchrepro/").partition(":")
        found = [path for path in package.rglob("*.py") if str(path.relative_to(package)).startswith(file)]
        assert found, place
        assert not function or any(f"def {function}(" in path.read_text() for path in found), place
