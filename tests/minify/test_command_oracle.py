"""A command of the user as the oracle: exit codes as for `git bisect run`, several at a time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from torchrepro import Kind, Repro, Signature, Verdict
from torchrepro.engine.baseline import Failure
from torchrepro.minify.command_oracle import CommandOracle, verdict_of_exit
from torchrepro.nouns.errors import TorchReproError


def repro(function: object) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), (torch.ones(3),))  # type: ignore[arg-type]


SINE, COSINE = repro(lambda x: (torch.sin(x),)), repro(lambda x: (torch.cos(x),))


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever is left behind is seen."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    yield
    assert list(place.iterdir()) == []


def verdicts(command: str, *candidates: Repro, workers: int = 2) -> list[Verdict]:
    with CommandOracle(command, workers=workers) as oracle:
        return [verdict for _, verdict in sorted(oracle.judge(candidates), key=lambda pair: pair[0])]


def test_the_command_looks_at_the_bundle_of_each_candidate() -> None:
    first, second = verdicts("! grep -q sin {}/graph.py", SINE, COSINE)
    assert first.fails
    assert second.kind is Kind.PASS


def test_without_braces_the_path_comes_last(tmp_path: Path) -> None:
    script = tmp_path / "oracle with a space.sh"
    script.write_text('#!/bin/sh\ntest -f "$1/manifest.json" && exit 3\n')
    script.chmod(0o755)
    (verdict,) = verdicts(f"'{script}'", SINE)
    assert str(Signature.of(verdict)) == "run_error | OracleCommand(exit 3) | the command says so"


def test_125_cannot_be_tested() -> None:
    (verdict,) = verdicts("exit 125;", SINE)
    assert verdict.kind is Kind.INVALID


def test_another_code_is_another_failure() -> None:
    failure = Failure.of(verdict_of_exit(1))
    assert failure.shown_by(verdict_of_exit(1))
    assert not failure.shown_by(verdict_of_exit(2))
    assert not failure.shown_by(verdict_of_exit(-signal.SIGSEGV))
    assert not failure.shown_by(verdict_of_exit(0))


@pytest.mark.parametrize("command", ["/no/such/oracle {}", "no_such_oracle_anywhere"])
def test_a_command_that_cannot_be_run_is_no_verdict(command: str) -> None:
    with pytest.raises(TorchReproError, match="by hand"):
        verdicts(command, SINE)


def test_an_empty_command_is_refused() -> None:
    with pytest.raises(TorchReproError, match="empty"):
        CommandOracle("  ", workers=1)


def test_candidates_are_asked_about_at_the_same_time() -> None:
    started = time.monotonic()
    found = verdicts("sleep 0.7; exit 1 #", *[SINE] * 4, workers=4)
    assert all(verdict.fails for verdict in found)
    assert time.monotonic() - started < 2.1


def test_whoever_stops_reading_ends_the_rest_with_everything_that_it_started(tmp_path: Path) -> None:
    command = f"grep -q sin {{}}/graph.py && exit 1; sleep 60 & echo $! > {tmp_path}/pid; wait"
    with CommandOracle(command, workers=2) as oracle, closing(oracle.judge([COSINE, SINE])) as answers:
        assert next(answers)[0] == 1
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_what_the_command_prints_is_the_evidence() -> None:
    (verdict,) = verdicts("echo the kernel is wrong >&2; exit 1 #", SINE)
    assert verdict.stderr_tail == "the kernel is wrong\n"


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "Z"
