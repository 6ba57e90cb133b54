"""Level 4 on inputs that are too large to be copied: what it holds, and what it still sees."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.fx import GraphModule

from torchrepro import Kind, watch
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.checker import Checker

SIZE = 1 << 19  # 2 MiB of float32

PEAK = """
import json, sys, tempfile
from pathlib import Path
import torch
import torchrepro
from torchrepro.catch.checker import Checker

verdicts = []
check = Checker.check

def counted(*args):
    found = check(*args)
    verdicts.append(found[1])
    return found

Checker.check = counted

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

layers = [layer for _ in range(24) for layer in (torch.nn.Linear(2048, 2048), torch.nn.GELU())]
model = torch.nn.Sequential(*layers).bfloat16()
x = torch.randn(64, 2048, dtype=torch.bfloat16)
weights = sum(p.numel() * p.itemsize for p in model.parameters()) / (1 << 20)

def peak(function):
    "MiB beyond what is resident before the call, and the weights."
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    function()
    return weights + resident("VmHWM") - before

def rows(run):
    return [peak(lambda: run(x)) for _ in range(3)]

with torch.no_grad(), tempfile.TemporaryDirectory() as out:
    # Lazy imports and the work space of libraries are no part of what is measured.
    with torchrepro.watch(level=4, out=out):
        torch.compile(torch.nn.Sequential(*layers[:2]), backend=lambda graph, _: graph.forward)(x)
    (x.double() @ torch.ones(2048, 2048, dtype=torch.float64)).sum()
    eager = rows(model)
    with torchrepro.watch(level=4, out=out):
        compiled = torch.compile(model, backend=lambda graph, _: graph.forward)
        watched = rows(compiled)
    print(json.dumps([max(eager), *watched, [(each.kind.value, each.notes) for each in verdicts[1:]]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_the_peak_of_a_checked_call_is_at_most_1_6_times_that_of_eager() -> None:
    """With glibc's fixed threshold, freed tensors go back to the system at once."""
    fixed = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True, env=fixed)
    eager, *watched, verdicts = json.loads(done.stdout)
    note = "float64 op by op: all inputs at once would take 769 MiB"
    assert verdicts == [["pass", [note]]] * 3
    assert max(watched) <= 1.6 * eager, (watched, eager)


def run_checked(
    backend: Callable[..., Any], function: Callable[..., Any], calls: int, out: Path
) -> tuple[torch.Tensor, ...]:
    inputs = (torch.ones(SIZE), torch.full((SIZE,), 2.0), torch.zeros(3))
    with watch(level=4, out=out):
        run = torch.compile(function, backend=backend)
        for _ in range(calls):
            run(*inputs)
    return inputs


def step(weight: torch.Tensor, state: torch.Tensor, small: torch.Tensor) -> torch.Tensor:
    state.mul_(2)
    small.add_(1)
    return weight + state


def test_the_users_memory_is_as_unwatched_after_checks(tmp_path: Path) -> None:
    weight, state, small = run_checked(lambda graph, _: graph.forward, step, 3, tmp_path)
    assert (weight[0], state[0], small[0]) == (1, 16, 3)
    assert list(tmp_path.iterdir()) == []


def test_only_what_the_graph_writes_to_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[tuple[Any, ...]] = []
    before = Checker.before

    def spied(self: Checker, repro: Any) -> Any:
        found = before(self, repro)
        copies.append((repro.inputs, found.inputs))
        return found

    monkeypatch.setattr(Checker, "before", spied)
    run_checked(lambda graph, _: graph.forward, step, 1, tmp_path)
    ((inputs, kept),) = copies
    pairs = zip(inputs, kept, strict=True)
    shared = [one for one, other in pairs if one.data_ptr() == other.data_ptr()]
    assert [(value[0].item(), value.numel()) for value in shared] == [(1.0, SIZE)]


def overwrites(number: int) -> Callable[..., Any]:
    """Return a backend whose code writes to its first large input in call `number`, past torch."""
    calls: list[int] = []

    def backend(graph: GraphModule, _: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            calls.append(1)
            outputs = graph.forward(*args)
            if len(calls) == number:
                large = next(arg for arg in args if isinstance(arg, torch.Tensor) and arg.numel() == SIZE)
                ctypes.memset(large.data_ptr() + 400, 0, 4)
            return outputs

        return run

    return backend


@pytest.mark.parametrize("number", [1, 2])
def test_a_write_to_an_input_that_was_not_copied_is_a_mismatch(number: int, tmp_path: Path) -> None:
    weight, *_ = run_checked(overwrites(number), lambda w, s, small: w * 2 + s, 2, tmp_path)
    assert weight[100] == 0  # what the compiled function did to the user's memory is not hidden
    (bundle,) = (path for path in tmp_path.iterdir() if (path / "manifest.json").exists())
    repro = load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    assert repro.expected is not None
    assert repro.expected.kind is Kind.MISMATCH
    verdict = read_manifest(bundle).verdict
    assert verdict is not None
    assert "inputs[0]: the compiled function wrote to it" in verdict["summary"]
    # The bundle of the first call was written before it.
    assert repro.inputs[0][100] == (1 if number == 1 else 0)
    assert any("are as it left them" in note for note in repro.notes) == (number == 2)


def test_wrong_numbers_of_large_inputs_are_seen(tmp_path: Path) -> None:
    def wrong(graph: GraphModule, _: Any) -> Callable[..., Any]:
        return lambda *args: tuple(out * 1.25 for out in graph.forward(*args))

    run_checked(wrong, step, 1, tmp_path)
    (bundle,) = (path for path in tmp_path.iterdir() if (path / "manifest.json").exists())
    verdict = read_manifest(bundle).verdict
    assert verdict is not None
    assert verdict["kind"] == "mismatch"
    repro = load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    assert [value.flatten()[0].item() for value in repro.inputs] == [2.0, 0.0, 1.0]


def test_checkpointing_is_not_disturbed(tmp_path: Path) -> None:
    """Finding out what the graph writes to saves tensors, which checkpointing counts."""
    weight = torch.ones(SIZE, requires_grad=True)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * weight).sin()

    with watch(level=4, out=tmp_path):
        run = torch.compile(inner, backend=lambda graph, _: graph.forward)
        torch.utils.checkpoint.checkpoint(run, torch.ones(SIZE), use_reentrant=False).sum().backward()
    assert weight.grad is not None
    assert list(tmp_path.iterdir()) == []
