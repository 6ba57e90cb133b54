"""A real search process: started, asked to stop, killed, started again; and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.limits import end_leftovers
from torchrepro.engine.search.process import SearchRequest, run_search
from torchrepro.engine.search.run_directory import RunDirectory, held

HERE = str(Path(__file__).parent)
ENVIRON = {"PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)])}
# A process that runs a search in this directory until it is killed.
PARENT = """
import sys
from pathlib import Path
from test_search_process import run_job
run_job("never_stops", Path(sys.argv[1]))
"""


def run_job(
    job: str, directory: Path, on_message: Callable[[Mapping[str, Any]], None] = lambda message: None
) -> Outcome:
    with held(RunDirectory(directory)) as lock:
        request = SearchRequest(
            job=f"search_jobs:{job}",
            bundle="",
            directory=str(directory),
            settings={"jobs": 2},
            seed="",
            parent=os.getpid(),
            lock=lock,
        )
        return run_search(request, environ=ENVIRON, on_message=on_message)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def pids_in(directory: Path) -> list[int]:
    path = directory / "pids"
    assert wait_until(lambda: path.exists() and len(path.read_text().split()) == 2)
    return [int(pid) for pid in path.read_text().split()]


def interrupt_once_it_searches(times: int) -> Callable[[Mapping[str, Any]], None]:
    def on_message(message: Mapping[str, Any]) -> None:
        if message.get("phase") == "search":
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return on_message


def test_it_answers_with_data_and_tells_what_it_does(tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []
    outcome = run_job("answers", tmp_path, told.append)
    mark = RunDirectory(tmp_path).mark
    assert outcome.result == {"settings": {"jobs": 2}, "mark": mark, "inherited": False}
    assert {"phase": "search"} in told
    assert {"progress": {"queries": 3}} in told
    assert "no answer" in outcome.output_tail


def test_the_first_interrupt_asks_it_to_stop_with_what_it_has(tmp_path: Path) -> None:
    assert run_job("stops_when_asked", tmp_path, interrupt_once_it_searches(1)).result == {"asked": 1}


def test_the_second_interrupt_ends_everything(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_job("never_stops", tmp_path, interrupt_once_it_searches(2))
    assert wait_until(lambda: not any(map(is_alive, pids_in(tmp_path))), 20.0)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the kernel does not tell of a parent's death")
def test_it_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env={**os.environ, **ENVIRON})
    try:
        search, orphan = pids_in(tmp_path)
        with pytest.raises(Exception, match="another run"), held(RunDirectory(tmp_path)):
            raise AssertionError("two runs in one directory")
    finally:
        parent.kill()  # -9
        parent.wait()
    assert wait_until(lambda: not is_alive(search))
    # The next run in the directory takes its lock and ends what the killed one has left.
    with held(RunDirectory(tmp_path)):
        assert end_leftovers(RunDirectory(tmp_path).mark) == 1
    assert not is_alive(orphan)


@pytest.mark.slow
def test_a_verdict_outlives_a_kill_and_is_known_to_the_next_process(tmp_path: Path) -> None:
    assert run_job("remembers_and_is_killed", tmp_path).signal == "SIGKILL"
    assert run_job("remembers_and_is_killed", tmp_path).result == {"known": "mismatch"}
