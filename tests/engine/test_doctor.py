"""`torchrepro doctor` on machines that lack something: what it says, and that it goes on."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import answer, torchrepro

from torchrepro.engine.doctor import CHECKS, Examination, Finding, Status, examine


def found(name: str) -> Finding:
    (check,) = (check for check in CHECKS if check.name == name)
    return check.run(Examination())


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("C++ compiler", "OpenMP"):
        finding = found(name)
        assert finding.status is Status.MISSING
        assert "install g++ or clang++" in finding.remedy


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo no such header >&2; exit 1", "no such header"),
        ("exit 3", "exit code 3"),
        ("true", "No such file"),
        ('for last; do :; done; printf "#!/bin/sh\\necho 7" > "$last"; chmod +x "$last"', "printed '7"),
        (
            'for last; do :; done; printf "#!/bin/sh\\nkill -SEGV \\$\\$" > "$last"; chmod +x "$last"',
            "exit code -11",
        ),
    ],
)
def test_a_compiler_that_does_not_work_is_broken(
    script: str, detail: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path / "c++", script)))
    finding = found("C++ compiler")
    assert finding.status is Status.BROKEN
    assert detail in finding.detail
    assert "set CXX" in finding.remedy


def test_a_directory_that_cannot_be_written_to_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name, variable in (("cache", "TORCHREPRO_CACHE_DIR"), ("config", "TORCHREPRO_CONFIG_DIR")):
        monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
        finding = found(name)
        assert finding.status is Status.BROKEN
        assert str(tmp_path / "file" / "below") in finding.detail
        assert variable in finding.remedy


def test_what_only_a_part_needs_does_not_make_a_machine_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for name in ("uv", "Chromium"):
        assert found(name).status is Status.NOT_NEEDED


@pytest.mark.parametrize(
    ("torch", "devices", "status", "remedy"),
    [
        ({"built_for": "", "gpus": []}, [], Status.NOT_NEEDED, ""),
        ({"built_for": "", "gpus": []}, ["/dev/nvidia0"], Status.MISSING, "install torch for CUDA"),
        ({"built_for": "13.0", "gpus": []}, ["/dev/nvidia0"], Status.BROKEN, "update the driver"),
        ({"built_for": "13.0", "gpus": ["H200"], "triton": False}, [], Status.MISSING, "pip install triton"),
        ({}, ["/dev/nvidia0"], Status.BROKEN, "see torch above"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_told_apart_from_none(
    torch: dict[str, Any], devices: list[str], status: Status, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "torchrepro.engine.doctor.glob", lambda pattern: devices if "nvidia" in pattern else []
    )
    (check,) = (check for check in CHECKS if check.name == "GPU")
    finding = check.run(Examination(torch=torch))
    assert (finding.status, finding.remedy) == (status, remedy)


def test_a_compiler_works_here() -> None:
    assert found("C++ compiler").status is Status.OK


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_one_line_and_the_other_checks_go_on(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch_cpu.so: cannot open')")
    finished = torchrepro("doctor", "--json", PYTHONPATH=str(tmp_path))
    told = answer(finished)
    checks = {check["name"]: check for check in told["checks"]}
    assert (finished.returncode, told["fit"]) == (1, False)
    assert checks["torch"]["status"] == "broken"
    assert "libtorch_cpu.so: cannot open" in checks["torch"]["detail"]
    assert checks["torch.compile"]["detail"] == "not tried: torch does not work"
    assert checks["C++ compiler"]["status"] == "ok"
    assert len(checks) == len(CHECKS)


@pytest.mark.slow
def test_an_interpreter_without_torch_is_told_to_install_it(tmp_path: Path) -> None:
    """The interpreter below the environment, with the packages of torchrepro but torch."""
    site = Path(pytest.__file__).resolve().parent.parent
    for entry in site.iterdir():
        if not entry.name.lower().startswith(("torch", "functorch", "_torch", "__editable__")):
            (tmp_path / entry.name).symlink_to(entry)
    source = Path(__file__).resolve().parent.parent.parent / "src"
    finished = subprocess.run(
        [sys._base_executable, "-m", "torchrepro", "doctor", "-q"],  # type: ignore[attr-defined]
        env={**os.environ, "PYTHONPATH": f"{source}:{tmp_path}", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 1, finished.stderr
    assert "this machine is not fit: torch, torch.compile" in finished.stdout
    assert "no package torch; remedy: pip install 'torch>=2.11'" in finished.stdout


@pytest.mark.thorough
def test_this_machine_is_fit_and_no_check_takes_long() -> None:
    steps: list[str] = []
    findings = examine(steps.append)
    assert [finding.name for finding in findings if finding.unfit] == []
    assert len(steps) == len(findings)
