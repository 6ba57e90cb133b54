"""Wrong paths, wrong flags, damaged bundles: one clear line with the next step, exit 125, no traceback."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import answer, as_strangers, torchrepro

from torchrepro import Repro, save_bundle

pytestmark = pytest.mark.slow

HEALTHY = """
import torch
def build():
    return torch.nn.Linear(2, 2), (torch.ones(1, 2),)
def broken_in_eager():
    return (lambda x: x @ torch.ones(3, 3)), (torch.ones(1, 2),)
def wrong_result():
    return 42
def slow():
    import time
    def f(x):
        time.sleep(60)
        return x
    return f, (torch.ones(1),)
def no_gradients():
    return (lambda x: x.argmax()), (torch.ones(2),)
NOT_A_FUNCTION = 3
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(HEALTHY)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    return save_bundle(Repro(graph, (torch.ones(3),)), tmp_path_factory.mktemp("bundle") / "b")


def assert_one_clear_line(finished: subprocess.CompletedProcess[str], *words: str) -> None:
    assert finished.returncode == 125, finished
    assert finished.stdout == ""
    lines = finished.stderr.strip().splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("torchrepro: ")
    assert "; " in lines[0], "no next step"
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{dir}/nowhere.py:build", ["no file"]),
        ("{model}:nothing", ["nothing", "it has: build"]),
        ("{model}", ["FILE.py:FUNCTION"]),
        ("no_such_package.models:build", ["no_such_package"]),
        ("{model}:NOT_A_FUNCTION", ["not a function"]),
        ("{model}:wrong_result", ["returned a int", "(model, inputs)"]),
    ],
)
def test_a_target_that_is_none(model: Path, target: str, words: list[str]) -> None:
    text = target.format(dir=model.parent, model=model)
    assert_one_clear_line(torchrepro("compare", text), *words)


def test_a_model_that_fails_in_eager_cannot_be_tested(model: Path) -> None:
    assert_one_clear_line(torchrepro("compare", f"{model}:broken_in_eager"), "eager itself fails")


def test_an_unknown_mode_is_no_failure_of_the_model(model: Path) -> None:
    finished = torchrepro("compare", f"{model}:build", "--mode", "fastest")
    assert_one_clear_line(finished, "no mode 'fastest'", "max-autotune")


def test_an_unknown_backend_names_the_nearest(model: Path) -> None:
    finished = torchrepro("compare", f"{model}:build", "--backend", "inducto")
    assert_one_clear_line(finished, "inducto", "did you mean 'inductor'?")


def test_a_bad_dtype_for_amp(model: Path) -> None:
    assert_one_clear_line(torchrepro("compare", f"{model}:build", "--amp", "bf16x"), "--amp bfloat16")


def test_backward_without_anything_that_needs_gradients(model: Path) -> None:
    finished = torchrepro("compare", f"{model}:no_gradients", "--backward", "--backend", "eager")
    assert_one_clear_line(finished, "leave out --backward")


def test_a_missing_bundle() -> None:
    assert_one_clear_line(torchrepro("check", "/nowhere/at/all"), "does not exist")


def test_a_directory_that_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert_one_clear_line(torchrepro("show", tmp_path), "not a bundle")


def damaged(bundle: Path, target: Path, name: str, content: bytes) -> Path:
    shutil.copytree(bundle, target)
    (target / name).write_bytes(content)
    # A stranger's: the digests of the user's own would show the damage first.
    return as_strangers(target)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": "one"}', b'{"format": 1}'])
def test_a_damaged_manifest(bundle: Path, tmp_path: Path, content: bytes) -> None:
    path = damaged(bundle, tmp_path / "d", "manifest.json", content)
    assert_one_clear_line(torchrepro("check", path), "manifest.json is damaged")


def test_a_newer_format_names_both_versions(bundle: Path, tmp_path: Path) -> None:
    path = damaged(bundle, tmp_path / "d", "manifest.json", b'{"format": 99}')
    assert_one_clear_line(torchrepro("check", path), "format 99", "up to 1", "upgrade")


def test_truncated_tensors(bundle: Path, tmp_path: Path) -> None:
    whole = (bundle / "tensors.safetensors").read_bytes()
    path = damaged(bundle, tmp_path / "d", "tensors.safetensors", whole[:-5])
    assert_one_clear_line(torchrepro("check", path), "truncated")


def test_a_graph_that_is_no_graph(bundle: Path, tmp_path: Path) -> None:
    hostile = b"import os\nos.system('touch /tmp/owned')\n"
    assert_one_clear_line(
        torchrepro("check", damaged(bundle, tmp_path / "d", "graph.py", hostile)), "no graph"
    )


def test_a_bundle_cannot_make_us_import_a_compiler(bundle: Path, tmp_path: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["compiler"]["name"] = "antigravity:fly"
    path = damaged(bundle, tmp_path / "d", "manifest.json", json.dumps(manifest).encode())
    assert_one_clear_line(torchrepro("check", path), "--trust antigravity")


@pytest.mark.parametrize(
    "state",
    [
        {"default_dtype": "os.system('id')"},
        {"matmul_precision": "x'); import os"},
        {"autocast": [{"device": "cpu", "dtype": "hub.load", "enabled": True, "cache_enabled": True}]},
    ],
)
def test_words_of_the_state_that_would_become_code_are_refused(
    bundle: Path, tmp_path: Path, state: dict[str, object]
) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["ambient"].update(state)
    path = damaged(bundle, tmp_path / "d", "manifest.json", json.dumps(manifest).encode())
    assert_one_clear_line(torchrepro("check", path), "state")


def test_a_bundle_cannot_choose_the_cxx_compiler(bundle: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["ambient"]["configs"] = {"inductor": {"cpp.cxx": [str(program)]}}
    manifest["ambient"]["environ"] = {"CXX": str(program)}
    path = damaged(bundle, tmp_path / "d", "manifest.json", json.dumps(manifest).encode())
    found = answer(torchrepro("check", path, "--json"))
    assert found["verdict"] == "pass"
    assert not marker.exists()
    assert any("cpp.cxx" in note for note in found["details"]["notes"])


@pytest.mark.parametrize(
    "words", [["check"], ["check", "--nope", "x"], ["frobnicate"], ["compare", "x", "--tol", "y"]]
)
def test_a_wrong_flag_is_no_verdict(words: list[str]) -> None:
    finished = torchrepro(*words)
    assert finished.returncode == 125
    assert "Traceback" not in finished.stderr
    assert finished.stderr


def test_errors_as_json_are_one_object(model: Path) -> None:
    finished = torchrepro("compare", f"{model}:nothing", "--json")
    found = answer(finished)
    assert "nothing" in found["error"]
    assert found["next_step"]
    assert finished.returncode == 125


def test_the_traceback_is_there_if_asked_for(model: Path) -> None:
    assert "Traceback" in torchrepro("compare", f"{model}:nothing", "--traceback").stderr


@pytest.mark.thorough
def test_a_model_that_does_not_end_in_eager_names_the_option(model: Path) -> None:
    finished = torchrepro("compare", f"{model}:slow", "--time-limit", "15")
    assert_one_clear_line(finished, "--time-limit")


def test_ctrl_c_ends_it_at_once_and_leaves_no_process(model: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "torchrepro", "compare", f"{model}:slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background of a shell ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(8)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in err
    listed = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True).stdout
    orphans = [line for line in listed.splitlines() if line.split()[0] == str(child.pid)]
    assert not orphans
