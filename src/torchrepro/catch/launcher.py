"""Run the user's program, unchanged, in a child process with the watch on.

It is started as `python script.py args`, so its environment is the same as without torchrepro. The parent
forwards signals, and turns what a dying process leaves into bundles.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import TypeVar

from torchrepro.catch.autoload import GROUP
from torchrepro.catch.caught import (
    Caught,
    Death,
    HangWatch,
    Watched,
    caught_in,
    finish_unfinished,
    take_watched,
    write_summary,
)
from torchrepro.catch.places import GO_ELSEWHERE, elsewhere, errno_of
from torchrepro.catch.settings import LAUNCHED, TORCHS_OWN_TOOL, WatchSettings
from torchrepro.engine.processes.signals import die_with, handling
from torchrepro.engine.search.run_directory import make_directory
from torchrepro.nouns.errors import TorchReproError, advice_on, in_a_line, say

T = TypeVar("T")

_TICK = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_WRONG_PATH = frozenset({errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENOTDIR})
"""Errors of a directory that the user can choose better before the program starts."""
_ONE_EVENT = 0.1
"""Seconds within which a repeated signal is ignored: some tools send it to a process and to its group."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended, and what was caught in it."""

    exit_code: int
    """As in `subprocess`: negative for a signal."""
    caught: tuple[Caught, ...]
    watched: Watched


def run_program(arguments: Sequence[str], settings: WatchSettings, *, hang_after: float = 20.0) -> Ended:
    """Run `python ARGUMENTS` watched, wait for it, and finish its bundles."""
    _require_autoload()
    settings = settings.changed(out=_directory_for(settings.directory))
    directory = settings.directory
    started = time.monotonic()
    attempt = _Attempts()
    hangs = HangWatch(directory, settings.run_id, hang_after)
    signals = _Signals()
    with handling(dict.fromkeys(_PASSED_ON, signals.take)):
        child = _start(arguments, settings, own_group=not signals.terminal)
        signals.child = child
        while True:
            try:
                exit_code = child.wait(timeout=_TICK)
                break
            except subprocess.TimeoutExpired:
                attempt("look for hangs", hangs.look)
        run_id = settings.run_id
        death = Death(child.pid, exit_code, interrupted=signals.interrupted)
        attempt("finish the bundles", partial(finish_unfinished, directory, run_id, death))
        seconds = round(time.monotonic() - started, 3)
        watched = attempt("read what was watched", partial(take_watched, directory, run_id)) or Watched()
        facts = {"program": list(arguments), "exit_code": exit_code, "seconds": seconds, **asdict(watched)}
        summary = attempt("write summary.json", partial(write_summary, directory, run_id, **facts))
        if summary is not None and summary.parent != directory:
            say(f"{directory} cannot be written to; the summary is {summary}")
        caught = attempt("list what was caught", partial(caught_in, directory, run_id))
        return Ended(exit_code, tuple(caught or ()), watched)


def _directory_for(wanted: Path) -> Path:
    """Make the directory for bundles; one elsewhere if the disk is full or read-only."""
    try:
        make_directory(wanted, "choose another directory with --out")
        return wanted
    except TorchReproError as exc:
        if errno_of(exc) not in GO_ELSEWHERE - _WRONG_PATH:
            raise
        other = elsewhere()
        say(f"{exc.fact}; bundles go to {other}")
        return other


class _Attempts:
    """Work of this process that must not keep the program's exit code from the caller."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str, work: Callable[[], T]) -> T | None:
        """Return the result of the work; if it fails, say so in one line, once, and return None."""
        try:
            return work()
        except Exception as exc:
            line = f"could not {what} ({in_a_line(exc)})"
            if line not in self._said:
                self._said.add(line)
                say(line)
            return None


def leave_like(exit_code: int) -> None:
    """Exit as the program did: with its exit code, or by the signal that killed it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # its file is full, or closed
            stream.flush()
    if exit_code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -exit_code != signal.SIGKILL:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code if exit_code >= 0 else 128 - exit_code)


class _Signals:
    """Forwards signals of this process to the program.

    In the foreground of a terminal both get Ctrl-C from the terminal. Elsewhere the program has its own
    process group, and each signal is forwarded once.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.terminal = _in_foreground()
        self.interrupted = False
        self._last: dict[int, float] = {}

    def take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again = now - self._last.get(number, -1e9) < _ONE_EVENT
        self._last[number] = now
        self.interrupted |= number in _ENDING
        from_terminal = self.terminal and number in (signal.SIGINT, signal.SIGQUIT)
        if self.child is not None and not from_terminal and not again:
            with suppress(ProcessLookupError):
                self.child.send_signal(number)


def _in_foreground() -> bool:
    """Return whether a terminal sends its signals to our process group."""
    with suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


def _start(arguments: Sequence[str], settings: WatchSettings, *, own_group: bool) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name not in TORCHS_OWN_TOOL}
    environ.update(settings.to_environ())
    environ[LAUNCHED] = "1"
    # The program gets the flags of this interpreter (-W, -X, -u ...).
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen(
            [sys.executable, *flags, *arguments],
            env=environ,
            process_group=0 if own_group else None,
            preexec_fn=partial(die_with, os.getpid()),  # killed with the parent, as plain `python` would be
        )
    except OSError as exc:
        next_step = advice_on(exc.errno) or "try it with plain python"
        raise TorchReproError(f"cannot start the program: {exc.strerror}", next_step=next_step) from exc


def _require_autoload() -> None:
    if not any(entry.name == "torchrepro" for entry in entry_points(group=GROUP)):
        raise TorchReproError(
            "torchrepro is importable here but not installed: torch would not load the watch",
            next_step="pip install torchrepro",
        )
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise TorchReproError(
            "TORCH_DEVICE_BACKEND_AUTOLOAD keeps torch from loading the watch",
            next_step="unset it, or call torchrepro.enable() in the program",
        )
