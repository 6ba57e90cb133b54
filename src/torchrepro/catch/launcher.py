"""Run the user's program, unchanged, in a child process with the watch on.

It is started as `python script.py args`, so its environment is the same as without torchrepro. The parent
forwards signals, and turns what a dying process leaves into bundles.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from types import FrameType

from torchrepro.catch.autoload import GROUP
from torchrepro.catch.caught import Caught, Death, HangWatch, caught_in, finish_unfinished, write_summary
from torchrepro.catch.settings import LAUNCHED, TORCHS_OWN_TOOL, WatchSettings
from torchrepro.engine.processes.child import die_with, handling
from torchrepro.engine.search.run_directory import make_directory
from torchrepro.nouns.errors import TorchReproError

_TICK = 0.5
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
_ONE_EVENT = 0.1
"""Seconds within which a repeated signal is ignored: some tools send it to a process and to its group."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended, and what was caught in it."""

    exit_code: int
    """As in `subprocess`: negative for a signal."""
    caught: tuple[Caught, ...]


def run_program(arguments: Sequence[str], settings: WatchSettings, *, hang_after: float = 20.0) -> Ended:
    """Run `python ARGUMENTS` watched, wait for it, and finish its bundles."""
    _require_autoload()
    directory = settings.directory
    make_directory(directory, "choose another directory with --out")
    started = time.monotonic()
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
                hangs.look()
        death = Death(child.pid, exit_code, interrupted=signals.interrupted)
        finish_unfinished(directory, settings.run_id, death)
        facts = {"program": list(arguments), "exit_code": exit_code}
        seconds = round(time.monotonic() - started, 3)
        write_summary(directory, settings.run_id, **facts, seconds=seconds)
        return Ended(exit_code, tuple(caught_in(directory, settings.run_id)))


def leave_like(exit_code: int) -> None:
    """Exit as the program did: with its exit code, or by the signal that killed it."""
    sys.stdout.flush()
    sys.stderr.flush()
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
    return subprocess.Popen(
        [sys.executable, *flags, *arguments],
        env=environ,
        process_group=0 if own_group else None,
        preexec_fn=partial(die_with, os.getpid()),  # killed with the parent, as plain `python` would be
    )


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
