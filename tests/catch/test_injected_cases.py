"""Bugs injected into inductor: each is caught in a running program, and its bundle fails again by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import answer, torchrepro
from injected_expected import CATCHES

pytestmark = pytest.mark.slow

INJECTED = Path(__file__).resolve().parents[1] / "cases" / "injected"

COMPILE_ERROR = "c01_mlp_relu_cpp_compile_error"
HANG = "c10_transformer_erf_hang_compile"
FLAKY = "c18_mlp_flaky_compile_error"
WARM_CACHE = "c20_mlp_relu_accuracy_warm_cache"

thorough = [pytest.mark.thorough, pytest.mark.timeout(900)]
AT_ONCE = [
    pytest.param(name, marks=thorough)  # test_caught.py has smaller programs that crash, in CI
    for name in CATCHES
    if name not in (HANG, FLAKY, WARM_CACHE)
]
"""The programs that fail in their first run, every time."""
HEALTHY = [pytest.param(name, marks=() if name == COMPILE_ERROR else thorough) for name in CATCHES]


def script(name: str) -> Path:
    return INJECTED / name / "model.py"


def environment(name: str, **more: str) -> dict[str, str]:
    """A process in which the bug is in the compiler.

    The kernels of all tests lie in one cache, each found by its source. The caches of whole graphs are off:
    they do not know of the bug, and would answer with what a healthy compiler made.
    """
    return {
        "PYTHONPATH": os.pathsep.join([str(INJECTED / "_site"), os.environ.get("PYTHONPATH", "")]),
        "FXBUG": str(INJECTED / name / "inject.py"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        **more,
    }


def caught_in(out: Path) -> list[dict[str, Any]]:
    """The bundles that `summary.json` names; none if it is not there yet."""
    try:
        found: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())["bundles"]
    except FileNotFoundError:
        return []
    return found


def run_watched(name: str, out: Path, **environ: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of the program, and what was caught in it."""
    words = ("run", "--level", CATCHES[name].level, "--out", out, script(name))
    threads = {"OMP_NUM_THREADS": str(CATCHES[name].threads)}
    finished = torchrepro(*words, **environment(name, **threads, **environ))
    return finished.returncode, caught_in(out)


def require_known(name: str, bundle: dict[str, Any]) -> None:
    expected = CATCHES[name]
    assert bundle["verdict"] == expected.verdict, bundle
    assert expected.signature in bundle["signature"], bundle


def checked(name: str, bundle: dict[str, Any], *options: object) -> tuple[int, dict[str, Any]]:
    finished = torchrepro("check", bundle["path"], "--json", *options, **environment(name))
    return finished.returncode, answer(finished)


def require_reproduced(name: str, bundle: dict[str, Any], *options: object) -> None:
    code, found = checked(name, bundle, *options)
    assert found["reproduces"] is True, found
    assert code == 1


@pytest.mark.parametrize("name", AT_ONCE)
def test_the_failure_leaves_one_bundle_that_fails_again_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    code, bundles = run_watched(name, tmp_path)
    assert code == CATCHES[name].exit_code
    (bundle,) = bundles
    require_known(name, bundle)
    require_reproduced(name, bundle)


@pytest.mark.thorough  # test_hook_aot.py warms inductor's caches in one process in CI
def test_a_warm_cache_does_not_hide_the_failure(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    caching = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    unwatched = [sys.executable, str(script(WARM_CACHE))]
    environ = os.environ | environment(WARM_CACHE, **caching)
    assert subprocess.run(unwatched, env=environ, capture_output=True, timeout=200).returncode == 1
    assert {"fxgraph", "aotautograd"} <= {path.name for path in cache.iterdir()}
    code, bundles = run_watched(WARM_CACHE, tmp_path / "out", **caching)
    assert code == CATCHES[WARM_CACHE].exit_code
    (bundle,) = bundles
    require_known(WARM_CACHE, bundle)
    require_reproduced(WARM_CACHE, bundle)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_what_fails_now_and_then_is_caught_exactly_when_it_fails(tmp_path: Path) -> None:
    for attempt in range(10):  # it fails in 60 % of all compilations: ten healthy ones are one case in 9,500
        code, bundles = run_watched(FLAKY, tmp_path / str(attempt))
        assert len(bundles) == code
        if bundles:
            break
    (bundle,) = bundles
    require_known(FLAKY, bundle)
    answers = {checked(FLAKY, bundle)[0] for _ in range(10)}
    assert answers <= {0, 1}, "it passes or fails as recorded, and is never taken for something else"
    assert 1 in answers


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_leaves_no_bundle(name: str, tmp_path: Path) -> None:
    finished = torchrepro("run", "--level", 4, "--out", tmp_path, script(name), **environment(name, FXBUG=""))
    assert finished.returncode == 0, finished.stderr
    assert "torchrepro" not in finished.stderr
    assert caught_in(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@contextmanager
def hanging(out: Path, hang_after: float) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher of a program that hangs, once the hang is in `summary.json`.

    The program is given the directory as an argument, by which its processes can be told from others.
    """
    options = ["--level", "3", "--hang-after", str(hang_after), "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "torchrepro", "run", *options, str(script(HANG)), str(out)],
        env=os.environ | environment(HANG),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A shell that runs the tests in the background has interrupts ignored, which would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as launcher:
        try:
            deadline = time.monotonic() + 120
            while not any(bundle["verdict"] == "hang" for bundle in caught_in(out)):
                assert launcher.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield launcher
        finally:
            launcher.kill()


def processes_with(mark: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if mark in line]


def require_gone(mark: str) -> None:
    """The kernel takes a moment to bring the end of a process to its children."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and processes_with(mark):
        time.sleep(0.1)
    assert processes_with(mark) == []


@pytest.mark.thorough  # test_caught.py interrupts a hang of a cheaper compiler in CI
def test_a_hang_in_the_compiler_is_known_while_it_lasts_and_kept_after_an_interrupt(tmp_path: Path) -> None:
    with hanging(tmp_path, hang_after=10) as launcher:
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(timeout=60) != 0
    require_gone(str(tmp_path))
    (bundle,) = caught_in(tmp_path)
    require_known(HANG, bundle)
    assert not bundle["path"].endswith("-unfinished")
    require_reproduced(HANG, bundle, "--time-limit", 20)


@pytest.mark.thorough
def test_a_hang_is_kept_and_its_program_gone_when_the_launcher_is_killed(tmp_path: Path) -> None:
    with hanging(tmp_path, hang_after=2) as launcher:
        launcher.kill()
        assert launcher.wait(timeout=10) == -signal.SIGKILL
    require_gone(str(tmp_path))
    (bundle,) = caught_in(tmp_path)
    require_known(HANG, bundle)
    assert Path(bundle["path"]).is_dir()
    require_reproduced(HANG, bundle, "--time-limit", 20)
