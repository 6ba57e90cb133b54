"""The bundle does not depend on what is only nice to have, and an incomplete one says what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty_backends
import pytest
import torch
from commands import torchrepro

from torchrepro import watch, wrap_compiler_debug
from torchrepro.bundle import archive
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.read import CAPTURED, PROVENANCE, VALUES, read_graph_text, read_manifest
from torchrepro.catch.backend import save_graph_repro
from torchrepro.catch.caught import caught_in, closing_lines
from torchrepro.engine.check_bundle import check_bundle
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import Place
from torchrepro.script import save_bundle, standalone
from torchrepro.torch_api.fake import FakeTensorMode


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("a defect of torchrepro")


SECONDARY: dict[str, tuple[Any, str, str]] = {
    "script": (standalone, "standalone_script", "repro.py could not be written"),
    "values of the script": (torch, "save", "values.pt could not be written"),
    "operators": (save_bundle, "operators_of", "the custom operators could not be described"),
    "environment": (Environment, "capture", "versions and hardware could not be read"),
}


@pytest.mark.parametrize("name", SECONDARY)
@pytest.mark.parametrize("level", [2, 3])
def test_what_fails_besides_the_graph_and_its_values_is_a_note(
    name: str, level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, note = SECONDARY[name]
    monkeypatch.setattr(owner, attribute, refuse)
    compiled = torch.compile(lambda x: x.to_dense() + 1, backend=faulty_backends.raises_while_compiling)
    with watch(level=level, out=tmp_path) as watching, pytest.raises(Exception, match="no kernel"):
        compiled(torch.randn(4, 4).to_mkldnn())
    (bundle,) = watching.kept
    assert [line for line in read_manifest(bundle).notes if note in line and "a defect" in line]
    assert load_bundle(bundle, trusted=["faulty_backends", "source"]).ops == 2


def test_a_bundle_that_cannot_be_sealed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "sealed", refuse)
    written = archive.write_bundle_files(tmp_path / "bundle", {"manifest.json": b"{}"})
    assert [path.name for path in written.iterdir()] == ["manifest.json"]
    assert PROVENANCE == "provenance.json"


def test_inputs_without_data_are_generated_for_the_script(tmp_path: Path) -> None:
    """The backward graph of a model in training is compiled on fake tensors, which `torch.save` refuses."""
    with FakeTensorMode():
        inputs = [torch.empty(3, 2), torch.empty(2, dtype=torch.int64)]
    graph = torch.fx.symbolic_trace(lambda x, index: (x.sum(0)[index],))
    bundle = save_graph_repro(tmp_path / "bundle", graph, inputs, "inductor")
    manifest = read_manifest(bundle)
    assert [note for note in manifest.notes if "no data existed" in note]
    assert not [note for note in manifest.notes if "could not be written" in note]
    # The script draws floating numbers by itself.
    assert {name: value.shape for name, value in torch.load(bundle / VALUES).items()} == {
        "input.1": torch.Size([2])
    }


class Strange:
    """Not data: it has no description in a bundle."""

    def __repr__(self) -> str:
        return "0"  # FX writes it into the code of the graph


def strange_graph() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.add, (x, x))
    chosen = graph.call_function(getattr, (doubled, Strange()))
    graph.output((chosen,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("level", [2, 3])
def test_a_graph_with_something_that_is_no_data_is_kept_with_a_hole(level: int, tmp_path: Path) -> None:
    compiler = wrap_compiler_debug(
        faulty_backends.raises_while_compiling,
        "faulty_backends:raises_while_compiling",
        level=level,
        out=tmp_path,
    )
    with pytest.raises(NotImplementedError, match="no kernel"):
        compiler(strange_graph(), [torch.ones(2)])
    (bundle,) = (path for path in tmp_path.iterdir() if path.name.endswith("-compile_error"))
    manifest = read_manifest(bundle)
    (missing,) = manifest.missing
    assert missing.startswith(
        "the node getattr_1 (call_function getattr): an argument of type test_incomplete.Strange"
    )
    text = read_graph_text(bundle)
    assert "add = torch.add(x, x)" in text
    assert 'getattr_1 = missing("the node getattr_1' in text
    assert manifest.values["input.0"].size == (2,)
    with pytest.raises(BundleError, match="is incomplete and cannot be run: it lacks the node getattr_1"):
        load_bundle(bundle, trusted=["faulty_backends", "source"])
    with pytest.raises(BundleError, match="is incomplete and cannot be run: it lacks the node getattr_1"):
        check_bundle(bundle)
    lines = closing_lines(caught_in(tmp_path, manifest.run_id))
    assert [line for line in lines if line.startswith("  kept in part: it lacks the node getattr_1")]
    assert not [line for line in lines if "minify" in line]


def test_level_4_says_once_that_a_graph_cannot_be_compared(tmp_path: Path, capfd: Any) -> None:
    compiler = wrap_compiler_debug(lambda graph, inputs: lambda x: (x,), "healthy", level=4, out=tmp_path)
    run = compiler(strange_graph(), [torch.ones(2)])
    for _ in range(3):
        run(torch.ones(2))
    assert (
        capfd.readouterr().err.count("a graph is not compared with eager, because it could not be kept") == 1
    )


@pytest.mark.slow
def test_the_verbs_say_what_an_incomplete_bundle_lacks(tmp_path: Path) -> None:
    compiler = wrap_compiler_debug(
        faulty_backends.raises_while_compiling,
        "faulty_backends:raises_while_compiling",
        level=2,
        out=tmp_path,
    )
    with pytest.raises(NotImplementedError, match="no kernel"):
        compiler(strange_graph(), [torch.ones(2)])
    (bundle,) = (path for path in tmp_path.iterdir() if path.name.endswith("-compile_error"))
    for verb in ("check", "minify", "locate"):
        finished = torchrepro(verb, bundle)
        assert finished.returncode == 125, finished.stderr
        assert "is incomplete and cannot be run: it lacks the node getattr_1" in finished.stderr
        assert "Traceback" not in finished.stderr
    shown = torchrepro("show", bundle, "--graph")
    assert shown.returncode == 0
    assert "it lacks the node getattr_1" in " ".join(shown.stdout.split())


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)


def unbacked() -> torch.Tensor:
    marked = torch.randn(4, 3)
    torch._dynamo.decorators.mark_unbacked(marked, 0)
    return marked


def mkldnn() -> torch.Tensor:
    return torch.randn(4, 4).to_mkldnn()


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


def dense(x: torch.Tensor) -> torch.Tensor:
    return x.to_dense().sin()


@pytest.mark.parametrize(
    ("make", "function", "place"),
    [
        (jagged, sine, Place.BEFORE_CAPTURE),
        (unbacked, sine, Place.AFTER_CAPTURE),
        (mkldnn, dense, Place.AFTER_CAPTURE),
    ],
)
def test_inputs_that_were_lost_are_kept(
    make: Callable[[], torch.Tensor], function: Callable[..., Any], place: Place, tmp_path: Path
) -> None:
    """Where the graph cannot be kept, the whole call can: it is complete, and says why it is there."""
    compiled = torch.compile(function, backend=faulty_backends.raises_while_compiling)
    with watch(level=2, out=tmp_path) as watching, pytest.raises(Exception, match="no kernel"):
        compiled(make())
    (bundle,) = watching.kept
    manifest = read_manifest(bundle)
    assert (manifest.place, manifest.missing) == (place, ())
    assert (CAPTURED in {path.name for path in bundle.iterdir()}) == (place is Place.BEFORE_CAPTURE)
    if place is Place.BEFORE_CAPTURE:
        assert [note for note in manifest.notes if "the graph that failed could not be kept" in note]
