"""`save_repro`: from a call, often in an `except` block, to a bundle; the program is as it was."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_backends import raises_while_compiling
from torch import nn

from torchrepro import check_bundle, save_repro
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.compiled_target import target_of
from torchrepro.catch.save_repro import in_a_fork
from torchrepro.catch.torch_hooks import watch
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place
from torchrepro.nouns.verdict import Kind


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = self.norm(self.linear(x)).sin()
        torch._dynamo.graph_break()
        return torch.relu(h) + torch.rand(4)

    @torch.compile(backend="eager", fullgraph=True)
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x + 1


def test_a_compiled_object_tells_what_it_was_made_from() -> None:
    model = Counting()
    own = Counting()
    own.compile(backend="aot_eager")
    options = {"epilogue_fusion": False}
    made = {
        "function": torch.compile(plus_one, options=options, dynamic=True),
        "module": torch.compile(model, backend="eager"),
        "torch's": torch.compile(model.linear, backend="eager"),
        "own": own,
        "method": model.step,
    }
    found = {name: target_of(compiled) for name, compiled in made.items()}
    assert all(found.values())
    functions = {name: target.function for name, target in found.items() if target}
    compilers = {name: target.compiler for name, target in found.items() if target}
    assert functions["function"] is plus_one
    assert functions["module"] is model
    assert functions["torch's"] is model.linear
    assert functions["own"] is own
    assert functions["method"].__self__ is model
    assert (compilers["function"].name, compilers["function"].dynamic) == ("inductor", True)
    assert compilers["function"].options == options
    assert (compilers["own"].name, compilers["method"].fullgraph) == ("aot_eager", True)
    assert target_of(model) is None
    assert target_of(plus_one) is None


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((plus_one, torch.ones(1)), "args is a Tensor"),
        ((3, ()), "model is a int"),
        ((plus_one, (), 3), "kwargs"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments: tuple[Any, ...], fact: str) -> None:
    with pytest.raises(TorchReproError, match=fact):
        save_repro(*arguments)


def test_an_existing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TorchReproError, match="exists already"):
        save_repro(plus_one, (torch.ones(1),), path=tmp_path)


@pytest.mark.parametrize("name", ["copy", "copy.zip"])
def test_what_the_watch_has_kept_is_not_judged_again(tmp_path: Path, name: str) -> None:
    with watch(out=tmp_path / "out") as session:
        compiled = torch.compile(plus_one, backend=raises_while_compiling)
        try:
            compiled(torch.ones(2))
        except Exception:
            assert [save_repro(compiled, (torch.ones(2),))] == session.kept
            copy = save_repro(compiled, (torch.ones(2),), path=tmp_path / name)
    assert read_manifest(copy) == read_manifest(session.kept[0])


def test_a_fork_leaves_nothing_behind_but_what_it_writes(tmp_path: Path) -> None:
    log: list[int] = []

    def work() -> None:
        log.append(1)
        (tmp_path / "log").write_text(str(log))

    assert in_a_fork(work, 30)
    assert log == []
    assert (tmp_path / "log").read_text() == "[1]"
    assert not in_a_fork(lambda: os._exit(3), 30)
    assert not in_a_fork(lambda: time.sleep(60), 0.2)


@pytest.mark.slow
def test_an_except_block_saves_the_graph_that_fails_as_the_exception_says(tmp_path: Path) -> None:
    import torch._inductor.config as inductor

    torch.manual_seed(0)
    model, x = Counting(), torch.randn(3, 4)
    compiled = torch.compile(model)
    broken = {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error", "fx_graph_cache": False}
    with inductor.patch(broken):
        try:
            compiled(x)
        except Exception:
            before = [value.clone() for value in model.state_dict().values()]
            state, calls, entries = torch.get_rng_state(), model.calls, _cache_entries(Counting.forward)
            path = save_repro(compiled, (x,), path=tmp_path / "bundle")
    after = list(model.state_dict().values())
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert torch.equal(state, torch.get_rng_state())
    assert (calls, entries) == (model.calls, _cache_entries(Counting.forward))
    manifest = read_manifest(path)
    assert manifest.place is Place.AFTER_CAPTURE
    assert manifest.expected is not None
    assert manifest.expected.exception == "CppCompileError"
    assert check_bundle(path).reproduces


@pytest.mark.slow
def test_where_capture_fails_the_whole_call_is_saved(tmp_path: Path) -> None:
    compiled = torch.compile(broken, backend="eager", fullgraph=True)
    try:
        compiled(torch.ones(2))
    except torch._dynamo.exc.Unsupported:
        path = save_repro(compiled, (torch.ones(2),), path=tmp_path / "bundle")
    manifest = read_manifest(path)
    assert manifest.place is Place.BEFORE_CAPTURE
    assert manifest.expected is not None
    assert manifest.expected.kind is Kind.COMPILE_ERROR
    assert manifest.notes == (), "in a process of its own it failed in the same way"


@pytest.mark.slow
def test_a_graph_that_cannot_be_judged_elsewhere_is_saved_as_the_program_saw_it(tmp_path: Path) -> None:
    held = threading.Lock()  # neither data nor code: no source text can make the backend again

    def local(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with held:
            raise NotImplementedError("no kernel for this")

    compiled = torch.compile(plus_one, backend=local)
    try:
        compiled(torch.ones(2))
    except Exception:
        path = save_repro(compiled, (torch.ones(2),), path=tmp_path / "bundle")
    manifest = read_manifest(path)
    assert (manifest.place, manifest.ops) == (Place.AFTER_CAPTURE, 1)
    assert manifest.expected is not None
    assert manifest.expected.exception == "NotImplementedError"
    assert any("could not be judged" in note for note in manifest.notes)


@pytest.mark.slow
def test_an_exported_program_is_saved_without_an_exception(tmp_path: Path) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    path = save_repro(program, path=tmp_path / "bundle.zip", backend="aot_eager")
    manifest = read_manifest(path)
    assert (manifest.place, manifest.expected) == (Place.EXPORT, None)


def _cache_entries(function: Any) -> int:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return len(_debug_get_cache_entry_list(function.__code__))
