"""The ways into the watch other than `torchrepro run`."""

from __future__ import annotations

from pathlib import Path

import faulty_backends
import pytest
import torch

import torchrepro
from torchrepro import Compiler, Kind, Place
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.caught import UNFINISHED
from torchrepro.catch.session import current_session
from torchrepro.nouns.errors import TorchReproError

WRONG = "faulty_backends:wrong"


def function(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 1


def only_bundle(directory: Path) -> Path:
    found = [path for path in directory.iterdir() if (path / "manifest.json").exists()]
    (finished,) = (path for path in found if not path.name.endswith(UNFINISHED))
    return finished


def test_a_backend_of_ours_around_another(tmp_path: Path) -> None:
    backend = torchrepro.backend(WRONG, level=4, out=tmp_path)
    torch.compile(function, backend=backend)(torch.ones(3))
    manifest = read_manifest(only_bundle(tmp_path))
    assert manifest.compiler == Compiler(WRONG)
    assert manifest.expected is not None
    assert manifest.expected.kind is Kind.MISMATCH


def test_the_backend_called_torchrepro(tmp_path: Path) -> None:
    options = {"backend": WRONG, "level": 4, "out": str(tmp_path)}
    torch.compile(function, backend="torchrepro", options=options)(torch.ones(3))
    assert read_manifest(only_bundle(tmp_path)).compiler.name == WRONG


def test_the_backend_called_torchrepro_is_known_to_torch() -> None:
    assert "torchrepro" in torch._dynamo.list_backends()


def test_a_backend_of_ours_is_watched_once_inside_a_watch(tmp_path: Path) -> None:
    with torchrepro.watch(level=4, out=tmp_path / "watch"):
        backend = torchrepro.backend(WRONG, level=4, out=tmp_path / "backend")
        torch.compile(function, backend=backend)(torch.ones(3))
    assert only_bundle(tmp_path / "backend")
    assert not (tmp_path / "watch").exists()


def test_a_backend_without_options_joins_the_watch(tmp_path: Path) -> None:
    with torchrepro.watch(level=4, out=tmp_path):
        torch.compile(function, backend=torchrepro.backend(WRONG))(torch.ones(3))
    assert only_bundle(tmp_path)


def test_enable_and_disable(tmp_path: Path) -> None:
    torchrepro.enable(level=4, out=tmp_path)
    torch.compile(function, backend=faulty_backends.wrong)(torch.ones(3))
    torchrepro.disable()
    assert current_session() is None
    bundle = only_bundle(tmp_path)
    torch._dynamo.reset()
    torch.compile(lambda x: x.sin(), backend=faulty_backends.wrong)(torch.ones(3))
    assert only_bundle(tmp_path) == bundle


def test_watches_nest(tmp_path: Path) -> None:
    with torchrepro.watch(level=4, out=tmp_path / "outer"):
        with torchrepro.watch(level=4, out=tmp_path / "inner"):
            torch.compile(function, backend=faulty_backends.wrong)(torch.ones(3))
        torch._dynamo.reset()
        torch.compile(lambda x: x.sin(), backend=faulty_backends.wrong)(torch.ones(3))
    assert only_bundle(tmp_path / "outer") != only_bundle(tmp_path / "inner")


def test_what_was_made_before_the_watch_and_first_called_in_it_is_watched(tmp_path: Path) -> None:
    run = torch.compile(function, backend=faulty_backends.wrong)
    with torchrepro.watch(level=4, out=tmp_path):
        run(torch.ones(3))
    assert only_bundle(tmp_path)


def test_the_environment_gives_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHREPRO_LEVEL", "4")
    monkeypatch.setenv("TORCHREPRO_OUT", str(tmp_path))
    with torchrepro.watch():
        torch.compile(function, backend=faulty_backends.wrong)(torch.ones(3))
    assert only_bundle(tmp_path)


@pytest.mark.parametrize("after", ["dynamo", "aot"])
def test_a_compiler_function_wrapped_by_hand(after: str, tmp_path: Path) -> None:
    compiler = torchrepro.wrap_compiler_debug(
        faulty_backends.wrong, WRONG, repro_after=after, level=4, out=tmp_path
    )
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    compiler(graph, [torch.ones(3)])(torch.ones(3))
    manifest = read_manifest(only_bundle(tmp_path))
    assert manifest.place is (Place.AFTER_AOT if after == "aot" else Place.AFTER_CAPTURE)
    assert manifest.compiler.name == WRONG


def test_graphs_written_down_by_hand(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    inputs = [torch.randn(1 << 19)]
    small = torchrepro.dump_compiler_graph_state(graph, inputs, "eager", out=tmp_path)
    ready = torchrepro.dump_to_minify(graph, inputs, "eager", out=tmp_path)
    named = torchrepro.save_graph_repro(tmp_path / "mine", graph, inputs, "eager", repro_after="dynamo")
    sizes = [(path / "tensors.safetensors").stat().st_size for path in (small, ready, named)]
    assert sizes[0] < 1 << 20 < sizes[1] == sizes[2]
    for path in (ready, named):
        repro = load_bundle(path, trusted=names_it_runs(read_manifest(path)))
        assert torch.equal(repro.inputs[0], inputs[0])
    with pytest.raises(TorchReproError, match="exists already"):
        torchrepro.save_graph_repro(tmp_path / "mine", graph, inputs, "eager")
    with pytest.raises(TorchReproError, match="repro_after is 'never'"):
        torchrepro.save_graph_repro(tmp_path / "other", graph, inputs, "eager", repro_after="never")
