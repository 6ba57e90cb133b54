"""Run the user's program, unchanged, in a child process with the watch on.

It is started as `python script.py args`, so its environment is the same as without torchrepro. The parent
forwards signals, and turns what a dying process leaves into bundles. `Target` is the argument of `minify`
and `locate`: a bundle, a program to run in this way, or a function.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.read import file_digest
from torchrepro.catch.autoload import GROUP
from torchrepro.catch.caught import Caught, Death, HangWatch, caught_in, finish_unfinished, write_summary
from torchrepro.catch.settings import LAUNCHED, TORCHS_OWN_TOOL, WatchSettings
from torchrepro.engine.processes.child import die_with, handling
from torchrepro.engine.search.run_directory import CAUGHT, make_directory, write_json
from torchrepro.nouns.errors import TorchReproError

_TICK = 0.5
_CATCH_ALL = 4
"""The level that catches exceptions, crashes, hangs and wrong numbers."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target."""

    text: str
    file: Path | None = None
    """The program, or the file of the function; None: a bundle, or a function of an installed module."""
    function: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a bundle, a SCRIPT.py, FILE.py:FUNCTION or package.module:FUNCTION."""
        found = re.fullmatch(r"(.+\.py|[A-Za-z_][\w.]*):([A-Za-z_]\w*)", text)
        if found is None and Path(text).suffix != ".py":
            return cls(text)
        file = Path(text) if found is None else _file_of(found[1])
        if file is not None and not file.exists():
            raise TorchReproError(
                f"{file} does not exist", next_step="give a bundle, a script or FILE.py:FUNCTION"
            )
        return cls(text, file, "" if found is None else found[2])

    @property
    def is_bundle(self) -> bool:
        return self.file is None and not self.function

    @property
    def path(self) -> Path:
        """The path that a directory for its results is named after."""
        named = self.file if self.file is not None else Path(re.sub(r"\W", "-", self.text))
        return named.with_name(f"{named.stem}-{self.function}" if self.function else named.stem)

    def caught_before(self, directory: Path) -> Path | None:
        """Return the bundle that the same command left in a directory, if the file is still the same."""
        if self.file is None:
            return None
        try:
            record = json.loads((directory / f"{CAUGHT}.json").read_text())
            bundle = directory / str(record["bundle"])
            return bundle if record["file"] == file_digest(self.file) and bundle.exists() else None
        except (OSError, ValueError, KeyError):
            return None

    def remember(self, bundle: Path, directory: Path) -> None:
        """Record which bundle was caught, for `caught_before`."""
        if self.file is not None:
            record = {"file": file_digest(self.file), "bundle": str(bundle.relative_to(directory))}
            write_json(directory / f"{CAUGHT}.json", record)


@dataclass(frozen=True, slots=True)
class CaughtBundle:
    """The bundle of a target."""

    bundle: Path
    directory: Path | None = None
    """The directory of the caught bundles; None: the target is a bundle."""
    notes: tuple[str, ...] = ()

    @property
    def own(self) -> bool:
        """Whether it was made from the user's own program, now or by the same command before."""
        return self.directory is not None


def run_until_caught(file: Path, out: Path) -> Ended:
    """Run a program watched; if no graph of it fails, run it again with its whole calls compared.

    The first run misses a failure of capture itself, because it compares only graphs.
    """
    for whole in (False, True):
        settings = WatchSettings(level=_CATCH_ALL, out=out, run_id=new_run_id(), whole=whole)
        with _standard_output_to_error():
            ended = run_program([str(file)], settings)
        if ended.caught:
            break
    return ended


def _file_of(named: str) -> Path | None:
    """Return the file of FILE.py or of a module in the working directory; None for an installed one."""
    if named.endswith(".py"):
        return Path(named)
    path = Path(*named.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.exists()), None)


@contextmanager
def _standard_output_to_error() -> Iterator[None]:
    """Send the program's standard output to standard error, which keeps ours clean."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
