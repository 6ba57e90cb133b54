"""`torchrepro run`: the user's program, unchanged, in a child process in which the watch is on.

The program is started as `python script.py args`: what it sees is what it would see without us. The parent
passes signals on, and turns what a dying process leaves behind into bundles.
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
from importlib.metadata import entry_points
from types import FrameType

from torchrepro.catch.autoload import GROUP
from torchrepro.catch.caught import Caught, Death, HangWatch, caught_in, finish_unfinished, write_summary
from torchrepro.catch.settings import LAUNCHED, TORCHS_OWN_TOOL, WatchSettings
from torchrepro.engine.processes.process_groups import die_with
from torchrepro.engine.search.run_directory import make_directory
from torchrepro.nouns.errors import TorchReproError

_TICK = 0.5
_ONE_EVENT = 0.1
"""Seconds within which the same signal counts once: some tools send it to a process and to its group."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the program ended, and what was caught in it."""

    exit_code: int
    """As `subprocess` has it: negative for a signal."""
    caught: tuple[Caught, ...]


def run_program(arguments: Sequence[str], settings: WatchSettings, *, hang_after: float = 20.0) -> Ended:
    """Run `python ARGUMENTS` watched, wait for it, and put in order what it leaves behind."""
    _require_autoload()
    directory = settings.directory
    make_directory(directory, "choose another directory with --out")
    started = time.monotonic()
    hangs = HangWatch(directory, settings.run_id, hang_after)
    with _Signals() as signals:
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
        write_summary(
            directory,
            settings.run_id,
            program=list(arguments),
            exit_code=exit_code,
            seconds=round(time.monotonic() - started, 3),
        )
        return Ended(exit_code, tuple(caught_in(directory, settings.run_id)))


def leave_like(exit_code: int) -> None:
    """End this process as the program ended: with its code, or by the signal that killed it."""
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -exit_code != signal.SIGKILL:
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    os._exit(exit_code if exit_code >= 0 else 128 - exit_code)


class _Signals:
    """Signals to this process are meant for the program.

    In the foreground of a terminal both get Ctrl-C from there. Elsewhere the program has a process group of
    its own, and each signal is passed on once.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.terminal = _in_foreground()
        self.interrupted = False
        self._last: dict[int, float] = {}
        self._former: dict[int, object] = {}

    def __enter__(self) -> _Signals:
        for name in ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT"):
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN or name == "SIGINT":
                self._former[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _take(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again = now - self._last.get(number, -1e9) < _ONE_EVENT
        self._last[number] = now
        if number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            self.interrupted = True
        from_terminal = self.terminal and number in (signal.SIGINT, signal.SIGQUIT)
        if self.child is not None and not from_terminal and not again:
            with suppress(ProcessLookupError):
                self.child.send_signal(number)


def _in_foreground() -> bool:
    """Return whether a terminal sends its signals to our process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _start(arguments: Sequence[str], settings: WatchSettings, *, own_group: bool) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if name not in TORCHS_OWN_TOOL}
    environ.update(settings.to_environ())
    environ[LAUNCHED] = "1"
    # The flags of the interpreter (-W, -X, -u ...) are part of how the program is run.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    parent = os.getpid()

    def in_child() -> None:
        die_with(parent)  # plain `python` would be gone after `kill -9`
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen(
        [sys.executable, *flags, *arguments],
        env=environ,
        process_group=0 if own_group else None,
        preexec_fn=in_child,
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
