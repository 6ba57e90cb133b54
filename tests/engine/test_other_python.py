from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchrepro import Compiler, Kind, Repro, Signature, save_bundle
from torchrepro.engine.generated_code import digest_code
from torchrepro.engine.other_python import Interpreter, ask_interpreter, generate, replay
from torchrepro.nouns.errors import TorchReproError

HERE = Interpreter(Path(sys.executable), "", "", "", "")


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3, -1).sum(0)


def bundle_of(directory: Path, compiler: str, kind: Kind = Kind.MISMATCH) -> Path:
    x = torch.randn(5, 4, requires_grad=compiler == "inductor")
    repro = Repro(
        torch.fx.symbolic_trace(scaled), (x,), compiler=Compiler(compiler), expected=Signature(kind)
    )
    return save_bundle(repro, directory / "bundle")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_is_no_python_is_an_error_with_the_next_step(tmp_path: Path):
    with pytest.raises(TorchReproError, match="is no program"):
        ask_interpreter(tmp_path / "nowhere")
    with pytest.raises(TorchReproError, match="is no Python that answers"):
        ask_interpreter(program(tmp_path / "python", "echo hello"))
    old = program(tmp_path / "old", """echo '{"version": "3.9.1"}'""")
    with pytest.raises(TorchReproError, match="too old"):
        ask_interpreter(old)


@pytest.mark.slow
def test_a_python_without_torch_is_told_how_to_get_it(tmp_path: Path):
    bare = program(tmp_path / "python", f'exec "{sys.executable}" -S "$@"')
    with pytest.raises(
        TorchReproError, match=r"has no package torch; install it there: .* -m pip install torch"
    ):
        ask_interpreter(bare)


@pytest.mark.thorough
def test_the_code_is_the_same_whether_it_is_run_or_only_generated(tmp_path: Path):
    bundle = bundle_of(tmp_path, "inductor")
    interpreter = ask_interpreter(Path(sys.executable))
    assert interpreter.torch == torch.__version__
    found, code = replay(bundle, interpreter)
    assert (found.kind, found.reproduces, found.cannot_run) == (Kind.PASS, False, "")
    assert code.count("def call(") == 2  # forward and backward
    assert generate(bundle, interpreter) == code
    assert found.code == digest_code(code)


@pytest.mark.slow
def test_caches_of_a_replay_are_its_own_and_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "compiler.py").write_text(
        "import os\n"
        "def noting(graph, inputs):\n"
        "    names = 'TORCHINDUCTOR_CACHE_DIR', 'TRITON_CACHE_DIR', 'TORCHREPRO_CACHE_DIR'\n"
        "    with open('caches', 'a') as file:\n"
        "        print(*(os.environ[name] for name in names), file=file)\n"
        "    return lambda *args: [out + 1 for out in graph(*args)]\n"
    )
    monkeypatch.chdir(tmp_path)
    bundle = bundle_of(tmp_path, "compiler:noting")
    first, second = (replay(bundle, HERE)[0] for _ in range(2))
    assert first.reproduces
    assert second.reproduces
    lines = [line.split() for line in (tmp_path / "caches").read_text().splitlines()]
    used = {path for line in lines for path in line}
    assert len(set(map(tuple, lines))) == 2
    assert not any(os.path.exists(path) for path in used)


@pytest.mark.slow
def test_a_replay_that_is_killed_could_not_run_and_is_no_pass(tmp_path: Path):
    killed = program(tmp_path / "python", "kill -9 $$")
    found, _ = replay(bundle_of(tmp_path, "aot_eager"), replace(HERE, python=killed))
    assert found.kind is None
    assert "SIGKILL" in found.cannot_run
