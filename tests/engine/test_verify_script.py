"""Scripts are run in a fresh process before anybody sees them, and what they do is read as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from script_cases import ERROR, captured, lowered, wrong

from torchrepro.engine.verify_script import (
    SCRIPT,
    UNVERIFIED,
    FreshProcesses,
    Verified,
    settle,
    verify_script,
)
from torchrepro.nouns.verdict import Kind, Raised, Signature, Stage, Verdict
from torchrepro.script.document import Script

pytestmark = pytest.mark.slow

_MISMATCH = Signature(Kind.MISMATCH)


def _verified(text: str, expected: Signature, time_limit: float = 60.0) -> Verified:
    return verify_script(
        Script(text, "of the bundle"), expected, time_limit=time_limit, processes=FreshProcesses({})
    )


def test_failures_are_told_apart() -> None:
    asserting = "assert 1 == 2, 'not close'"
    assert _verified(asserting, _MISMATCH).reproduces
    assert not _verified("assert 1 == 1", _MISMATCH).reproduces
    assert not _verified("raise ValueError('not close')", _MISMATCH).reproduces

    wrapped = "raise RuntimeError('backend raised: LoweringException: ValueError: no buffer buf7 in 12')"
    expected = Signature(Kind.COMPILE_ERROR, Stage.BACKEND, "ValueError", "no buffer buf<n> in <n>")
    assert _verified(wrapped, expected).reproduces
    assert not _verified("raise KeyError('no buffer buf7 in 12')", expected).reproduces

    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    assert _verified(crash, Signature(Kind.CRASH, exception="SIGSEGV")).reproduces
    assert not _verified(crash, Signature(Kind.CRASH, exception="SIGABRT")).reproduces


@pytest.mark.parametrize(("value", "imported"), [("3", "True"), ("4", "False")])
def test_a_script_is_run_before_torch_is_imported_only_if_it_changes_a_variable(
    tmp_path: Path, value: str, imported: str
) -> None:
    path = tmp_path / SCRIPT
    path.write_text(
        f'import os, sys\n\nos.environ["OMP_NUM_THREADS"] = "{value}"\nprint("torch" in sys.modules)\n'
    )
    with FreshProcesses({"OMP_NUM_THREADS": "3"}) as processes:
        processes.start_ahead(Kind.CRASH)
        with processes.run(path) as program:
            program.process.wait(timeout=120)
            assert program.tail().split()[-1] == imported


def test_a_script_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    text = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '1000'])\nopen({str(note)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    verified = _verified(text, Signature(Kind.HANG), time_limit=3.0)
    assert verified.reproduces
    assert verified.how == "no end after 3 s"
    assert not _runs(int(note.read_text()))


def _runs(pid: int) -> bool:
    """Whether a process does anything; in a container nobody may reap it once it has died."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_script_that_fails_without_the_compiler_says_nothing_about_it() -> None:
    text = "import torch\ntorch.compile(torch.relu)\nassert False"
    verified = verify_script(Script(text), _MISMATCH, time_limit=60.0)
    assert not verified.reproduces
    assert "without the compiler" in verified.how


@pytest.mark.thorough
def test_a_wrong_result_of_the_installed_torch_ends_as_a_script(tmp_path: Path) -> None:
    """pytorch #191499: the smallest of a vector of uint8."""
    x = torch.full((64,), 21, dtype=torch.uint8)
    settled = settle(captured(lambda x: x.amin(), x), wrong(eager="21", compiled="0"), tmp_path)
    assert settled.reproduces
    assert not settled.script.remark
    assert settled.path == tmp_path / SCRIPT
    assert len(settled.script.text.splitlines()) <= 25
    assert "AssertionError" in settled.tried[-1][1].output_tail
    again = subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 1


@pytest.mark.thorough
def test_what_does_not_fail_is_not_claimed_to(tmp_path: Path) -> None:
    settled = settle(lowered(torch.relu, torch.ones(3)), ERROR, tmp_path)
    assert not settled.reproduces
    assert {verified.how for _, verified in settled.tried} == {"ends without an error"}
    assert "Graph" in (tmp_path / SCRIPT).read_text()
    assert "def f(x):" in (tmp_path / UNVERIFIED).read_text()


@pytest.mark.thorough
def test_an_error_of_the_installed_torch_ends_as_a_script(tmp_path: Path) -> None:
    """pytorch #196570: an index write on a full tensor, then a softmax."""

    def function(x: torch.Tensor) -> torch.Tensor:
        m = torch.full((8, 8), -10000.0)
        m[torch.arange(8).unsqueeze(0), torch.arange(8).unsqueeze(1)] = 0
        return torch.softmax(x + m, dim=-1)

    verdict = Verdict(Kind.COMPILE_ERROR, Stage.BACKEND, raised=Raised("KeyError", "'buf1'"))
    settled = settle(captured(function, torch.zeros(8, 8)), verdict, tmp_path)
    assert settled.reproduces
    assert not settled.script.remark
