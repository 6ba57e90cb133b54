"""`torchrepro run` is `python`, as far as the program can tell."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from torchrepro.catch.settings import LAUNCHED

PROGRAM = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(), "path": sys.path,
    "stdin": sys.stdin.read(), "flags": [sys.flags.optimize, sys.flags.utf8_mode],
    "spec": repr(__spec__ is None),
    "main": sys.modules["__main__"].__file__, "prefix": sys.prefix,
}))
"""


def environ(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if name != LAUNCHED}
    return {**clean, "COLUMNS": "80", **more}


def command(*words: object, flags: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, *flags, "-m", "torchrepro", "run", *map(str, words)]


def run(
    *words: object, cwd: Path, stdin: str = "", flags: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words, flags=flags),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env=environ(**more),
        timeout=60,
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_a_script_sees_what_python_would_show_it(program: Path, tmp_path: Path) -> None:
    words = ["program.py", "--level", "9", "-x", "a b"]
    plain = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, input="hello", capture_output=True, text=True, timeout=60
    )
    watched = run("--out", tmp_path / "out", *words, cwd=tmp_path, stdin="hello")
    assert json.loads(watched.stdout) == json.loads(plain.stdout)
    assert watched.stderr == ""


def test_a_module_sees_what_python_would_show_it(program: Path, tmp_path: Path) -> None:
    plain = subprocess.run(
        [sys.executable, "-m", "program", "1"],
        cwd=tmp_path,
        input="",
        capture_output=True,
        text=True,
        timeout=60,
    )
    watched = run("--out", tmp_path / "out", "-m", "program", "1", cwd=tmp_path)
    assert json.loads(watched.stdout) == json.loads(plain.stdout)


def test_the_interpreters_flags_are_passed_on(program: Path, tmp_path: Path) -> None:
    watched = run("--out", "out", "program.py", cwd=tmp_path, flags=("-O", "-X", "utf8"))
    assert json.loads(watched.stdout)["flags"] == [1, 1]


def test_the_launcher_does_not_import_torch() -> None:
    program = "import sys, torchrepro.cli, torchrepro.catch.launcher; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("code", [0, 1, 3, 125])
def test_the_exit_code_is_the_programs(code: int, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(f"import sys; sys.exit({code})")
    assert run("leaves.py", cwd=tmp_path).returncode == code


def test_who_wants_a_failure_minified_is_told_that_nothing_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("print('plain')")
    ended = run("--minify", "plain.py", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "plain\n")
    assert ended.stderr == "torchrepro: nothing was compiled, so nothing was watched\n"


def test_a_traceback_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    plain = subprocess.run(
        [sys.executable, "fails.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run("fails.py", cwd=tmp_path).stderr == plain.stderr


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM"])
def test_a_death_by_signal_is_passed_on_as_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    assert run("dies.py", cwd=tmp_path).returncode == -getattr(signal, name)


WAITS = """
import signal, sys, time
def handler(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), handler)
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("got SIGINT", flush=True)
    sys.exit(7)
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "waits.py").write_text(WAITS)
    process = subprocess.Popen(
        command("waits.py"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=environ(),
        start_new_session=True,
        # A shell that runs tests in the background ignores SIGINT; the program under test must not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_signals_reach_the_program_once(name: str, tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(getattr(signal, name))
    output, _ = process.communicate(timeout=30)
    assert output == f"got {name}\n"
    assert process.returncode == 7


def test_a_signal_to_the_process_and_to_its_group_arrives_once(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert output == "got SIGINT\n"


def test_kill_9_takes_the_program_with_it(tmp_path: Path) -> None:
    process = start(tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_ctrl_c_in_a_terminal_arrives_once(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        words = command("waits.py")
        os.execve(words[0], words, environ())
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # raised once no process has the terminal open any more
        while chunk := os.read(terminal, 1000):
            seen += chunk
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert seen.count(b"got SIGINT") == 1


def test_nothing_failing_leaves_an_empty_summary_and_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "fine.py").write_text("print('fine')")
    watched = run("--out", "out", "fine.py", "arg", cwd=tmp_path)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (watched.stdout, watched.stderr) == ("fine\n", "")
    assert summary["bundles"] == []
    assert summary["program"] == ["fine.py", "arg"]
    assert summary["exit_code"] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["missing.py"], "missing.py does not exist; check the path of the script"),
        ([], "no program to run; torchrepro run SCRIPT [ARGS]..."),
        (["--level", "7", "program.py"], "there is no level 7; choose 1, 2, 3 or 4"),
        (["--after", "lunch", "program.py"], "after is 'lunch'; choose one of auto, dynamo, aot"),
        (["--budget", "lots", "program.py"], "'lots' is not a share; write for example 5%"),
        (["--out", "/proc/nowhere", "program.py"], "choose another directory with --out"),
    ],
)
def test_wrong_use_is_one_line_and_125(words: list[str], line: str, program: Path, tmp_path: Path) -> None:
    watched = run(*words, cwd=tmp_path)
    assert watched.returncode == 125
    assert line in watched.stderr
    assert watched.stderr.startswith("torchrepro: ")
    assert watched.stderr.count("\n") == 1


def test_a_switched_off_autoload_is_said_before_the_program_runs(program: Path, tmp_path: Path) -> None:
    watched = run("program.py", cwd=tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert watched.returncode == 125
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in watched.stderr
    assert watched.stdout == ""


def test_torchs_own_variables_turn_on_our_watch_and_not_theirs(tmp_path: Path) -> None:
    (tmp_path / "shows.py").write_text(
        "import os; print({k: v for k, v in os.environ.items() if 'REPRO_' in k and 'CACHE' not in k})"
    )
    watched = run("shows.py", cwd=tmp_path, TORCHDYNAMO_REPRO_AFTER="aot", TORCHDYNAMO_REPRO_LEVEL="4")
    assert "'TORCHREPRO_AFTER': 'aot'" in watched.stdout
    assert "'TORCHREPRO_LEVEL': '4'" in watched.stdout
    assert "TORCHDYNAMO" not in watched.stdout
