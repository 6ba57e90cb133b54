"""`torchrepro import`: what PyTorch's tools have written becomes a bundle, and none of it runs."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from artefact_text import ONE_TENSOR, SAMPLES, artefact
from commands import CASES, answer, torchrepro

from torchrepro import pipeline
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import read_manifest
from torchrepro.interchange.find_artefacts import Payload, find_artefacts
from torchrepro.interchange.import_artefact import import_artefact
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind

WEIGHT = torch.tensor([[-0.0037, 0.2682, -0.4115, -0.3680], [-0.1926, 0.1341, -0.0099, 0.3964]])


def imported(text: str, directory: Path, **options: Any) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / "repro.py"
    file.write_text(text)
    return import_artefact(Payload("repro", text, file), directory / "bundle", **options)


def test_recorded_bytes_become_the_inputs(tmp_path: Path) -> None:
    (one,) = pipeline.import_artefacts(SAMPLES / "dynamo_2_13", out=tmp_path / "bundle").bundles
    repro = load_bundle(one.bundle)
    weight, bias, x, buffer = repro.inputs
    torch.testing.assert_close(weight[:2].detach(), WEIGHT, rtol=0, atol=1e-4)
    assert weight.requires_grad
    assert not x.requires_grad
    assert (tuple(bias.shape), tuple(x.shape)) == ((3,), (5, 4))
    assert buffer.tolist() == [0.0, 1.0, 2.0]
    assert not any("random values" in note for note in one.notes)


@pytest.mark.parametrize("sample", ["aot_2_13", "aot_2_11", "dynamo_2_11", "debug_2_13"])
def test_inputs_without_data_are_recipes_and_the_notes_say_so(sample: str, tmp_path: Path) -> None:
    (one,) = pipeline.import_artefacts(SAMPLES / sample, out=tmp_path / "bundle").bundles
    repro = load_bundle(one.bundle)
    assert [tuple(value.shape) for value in repro.inputs] in ([(3, 4), (3,), (5, 4), (3,)],)
    assert all(value.device.type == "cpu" and value.isfinite().all() for value in repro.inputs)
    assert any("no data for 4 of its tensors" in note for note in one.notes)


def test_an_import_is_a_strangers_unless_it_is_trusted(tmp_path: Path) -> None:
    assert not is_own(imported(artefact(), tmp_path / "theirs"))
    assert is_own(imported(artefact(), tmp_path / "mine", trusted=("bundle",)))


def test_wrong_values_are_expected_where_torch_compared_them(tmp_path: Path) -> None:
    expected = read_manifest(imported(artefact(accuracy=True), tmp_path / "a")).expected
    assert expected is not None
    assert expected.kind is Kind.MISMATCH
    assert read_manifest(imported(artefact(), tmp_path / "b")).expected is None


def test_tensors_over_one_storage_share_it(tmp_path: Path) -> None:
    load = (
        "def load_args(reader):\n    buf0 = reader.storage(None, 48)\n"
        "    reader.tensor(buf0, (3,), (2,), storage_offset=1, is_leaf=True)\n"
        "    reader.tensor(buf0, (6,), dtype=torch.float64, is_leaf=True)"
    )
    first, second = load_bundle(imported(artefact(parameters="x, y", load=load), tmp_path / "a")).inputs
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert (first.stride(), first.storage_offset(), second.dtype) == ((2,), 1, torch.float64)


def test_state_of_the_class_is_state_of_the_graph(tmp_path: Path) -> None:
    state = (
        "self.lin = Linear(3, 2, bias=False)\nself.register_buffer('b', tensor([1., -inf]))\n"
        "self.p = torch.nn.Parameter(torch.randn([2], dtype=torch.float64))"
    )
    body = ("lin = self.lin(x);  x = None", "b = self.b", "p = self.p", "add = lin + b", "return (add * p,)")
    body = (*body[:-1], "mul = add * p", "return (mul,)")
    graph = load_bundle(imported(artefact(*body, state=state, place="after_dynamo"), tmp_path / "a")).graph
    found = {name: (tuple(value.shape), value.dtype) for name, value in graph.state_dict().items()}
    assert found == {
        "lin.weight": ((2, 3), torch.float32),
        "b": ((2,), torch.float32),
        "p": ((2,), torch.float64),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (artefact("y = torch.hub.load('x', 'y')", "return (y,)"), "not among the functions"),
        (artefact("y = x.__class__", "return (y,)"), "data attributes"),
        (artefact("y = torch.ops.aten.save.default(x, 'f')", "return (y,)"), "no operator"),
        (artefact("y = torch.ops.nobody.knows.default(x)", "return (y,)"), "not registered"),
        (artefact("return (undefined,)"), "not defined above"),
        (artefact(load=ONE_TENSOR.replace("(3,)", "(4000000000,)")), "does not fit into its storage"),
        (artefact(state="self.m = Linear(10000000, 10000000)"), "bytes of weights"),
        (
            artefact(state="self.register_buffer('b', torch.randn([4000000000, 4000000000, 4000000000]))"),
            "larger than a tensor",
        ),
    ],
)
def test_a_hostile_artefact_is_refused_before_it_costs_anything(
    text: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TorchReproError) as error:
        imported(text, tmp_path / "a")
    assert reason in error.value.fact
    assert not (tmp_path / "a" / "bundle").exists()


def test_terabytes_of_inputs_are_a_recipe(tmp_path: Path) -> None:
    text = artefact(load=ONE_TENSOR.replace("(3,)", f"({1 << 40},)").replace("12)", f"{1 << 42})"))
    assert read_manifest(imported(text, tmp_path / "a")).elements == 1 << 40


def test_bytes_of_other_places_are_not_read(tmp_path: Path) -> None:
    """A stranger's artefact names a directory of this machine, and a link to a file of it."""
    elsewhere = tmp_path / "elsewhere" / "storages"
    elsewhere.mkdir(parents=True)
    secret = elsewhere / ("a" * 40)
    with zipfile.ZipFile(secret, "w") as file:
        file.writestr("a/data/0", b"\0" * 12)
    load = ONE_TENSOR.replace("None, 12", f"'{secret.name}', 12")
    text = artefact(load=load, save_dir=str(elsewhere.parent))
    (tmp_path / "a" / "storages").mkdir(parents=True)
    (tmp_path / "a" / "storages" / secret.name).symlink_to(secret)
    notes = read_manifest(imported(text, tmp_path / "a")).notes
    assert any("cannot be read" in note for note in notes)
    assert any("no data for 1 of its tensors" in note for note in notes)
    trusted = read_manifest(imported(text, tmp_path / "b", trusted=("bundle",))).notes
    assert not any("no data" in note for note in trusted)


def test_a_directory_with_a_broken_artefact_gives_the_others(tmp_path: Path) -> None:
    for name, text in (("good", artefact()), ("bad", artefact("del x", "return (x,)"))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fx_graph_runnable.py").write_text(text)
    found = pipeline.import_artefacts(tmp_path, out=tmp_path / "out")
    assert [one.bundle.name for one in found.bundles] == ["imported-good-fx_graph_runnable"]
    (left,) = found.refused
    assert "line 13: del x is no node" in left.reason


def test_a_graph_in_a_file_and_in_a_trace_is_imported_once(tmp_path: Path) -> None:
    text = artefact()
    (tmp_path / "fx_graph_runnable.py").write_text(text)
    record = 'V1118 17:05:43.1 1 a.py:1] {"artifact": {"name": "fx_graph_runnable"}, "frame_id": 0}'
    payload = "".join(f"\t{line}\n" for line in text.split("\n"))
    (tmp_path / "dedicated_log_torch_trace_x.log").write_text(f"{record}\n{payload}")
    (found,) = find_artefacts(tmp_path)
    assert found.path.name == "fx_graph_runnable.py"
    assert len(find_artefacts(tmp_path / "dedicated_log_torch_trace_x.log")) == 1
    assert len(find_artefacts(SAMPLES)) == 7


def test_the_command_prints_the_path_or_one_object_or_one_line(tmp_path: Path) -> None:
    done = torchrepro("import", SAMPLES / "aot_2_13", "--out", "b", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert [Path(path).name for path in answer(done)["bundles"]] == ["b"]
    again = torchrepro("import", SAMPLES / "aot_2_13", "--out", "b", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (125, "")
    assert "exists" in again.stderr
    for wrong in (tmp_path / "nothing", tmp_path / "b", CASES):
        refused = torchrepro("import", wrong, "--json", cwd=tmp_path)
        assert refused.returncode == 125
        assert answer(refused)["next_step"]


@pytest.mark.thorough
def test_an_imported_launcher_fails_as_torch_saw_it(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(SAMPLES / "aot_2_13", tmp_path / "debug")
    assert torchrepro("import", tmp_path / "debug", "--out", bundle).returncode == 0
    checked = answer(torchrepro("check", bundle, "--json"))
    assert checked["signature"].startswith("compile_error | backend | CppCompileError")
    assert checked["sandbox"]
