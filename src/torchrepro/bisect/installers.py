"""Make environments and install packages: with uv where it is installed, else with venv and pip.

pip runs from one small environment of our own, so that the others need none and the user's may lack it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from torchrepro.engine.processes.child import Program
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.nouns.errors import TorchReproError

_POLL_SECONDS = 0.1
_LAUNCH = (
    "import os, sys; from torchrepro.engine.processes.signals import die_with; "
    "die_with(int(sys.argv[1])); os.execvp(sys.argv[2], sys.argv[2:])"
)
stopping = Event()
"""Set when the user has ended the run: installers in other threads end."""


class Stopped(TorchReproError):
    """The user ended the run while a program was at work for it."""


@dataclass(frozen=True, slots=True)
class Installer(ABC):
    """Makes environments of one Python, with packages of the user's indexes and these."""

    python: Path
    indexes: tuple[str, ...] = ()

    @abstractmethod
    def versions(self, package: str, *, before_release: bool) -> list[str]:
        """Return the versions of a package that this Python can install, in no order."""

    @abstractmethod
    def create(self, directory: Path) -> None:
        """Make an empty environment."""

    @abstractmethod
    def install(self, directory: Path, requirements: Iterable[str], *, alone: bool = False) -> None:
        """Install packages into an environment; `alone`: without what they depend on."""


@dataclass(frozen=True, slots=True)
class Uv(Installer):
    """https://docs.astral.sh/uv: packages come from its cache by hard links."""

    def versions(self, package: str, *, before_release: bool) -> list[str]:
        # uv has no command that lists versions: ask what it would install below the last answer.
        command = ["uv", "pip", "install", "--dry-run", "--no-deps", "--reinstall-package", package]
        command += ["--python", str(self.python), *self._from()]
        command += ["--prerelease", "allow"] if before_release else []
        found: list[str] = []
        while True:
            wanted = f"{package}<{found[-1].partition('+')[0]}" if found else package
            try:
                told = run_tool([*command, wanted])
            except TorchReproError:
                if found:
                    return found
                raise
            answer = re.search(rf"^ \+ {package}==(\S+)", told, re.MULTILINE)
            if answer is None or answer[1] in found:
                return found
            found.append(answer[1])

    def create(self, directory: Path) -> None:
        run_tool(["uv", "venv", "--quiet", "--no-project", "--python", str(self.python), str(directory)])

    def install(self, directory: Path, requirements: Iterable[str], *, alone: bool = False) -> None:
        command = ["uv", "pip", "install", "--quiet", "--python", str(python_of(directory)), *self._from()]
        run_tool([*command, *(["--no-deps"] if alone else []), *requirements])

    def _from(self) -> list[str]:
        more = [part for index in self.indexes for part in ("--index", index)]
        return [*more, "--index-strategy", "unsafe-best-match"] if more else []


@dataclass(frozen=True, slots=True)
class Pip(Installer):
    """The standard library's venv, and pip."""

    def versions(self, package: str, *, before_release: bool) -> list[str]:
        more = ["--pre"] if before_release else []
        told = run_tool([*self._pip(), "index", "versions", package, *self._from(), *more])
        listed = re.search(r"^Available versions: (.*)$", told, re.MULTILINE)
        return listed[1].split(", ") if listed else []

    def create(self, directory: Path) -> None:
        run_tool([str(self.python), "-m", "venv", "--without-pip", str(directory)])

    def install(self, directory: Path, requirements: Iterable[str], *, alone: bool = False) -> None:
        # What is kept is the environment: a second copy of torch in pip's cache is half a gigabyte.
        options = ["--quiet", "--no-input", "--no-cache-dir", "--no-warn-conflicts", *self._from()]
        options += ["--no-deps"] if alone else []
        command = [*self._pip(), "--python", str(python_of(directory)), "install", *options]
        run_tool([*command, *requirements])

    def _pip(self) -> list[str]:
        digest = hashlib.sha256(str(self.python).encode(errors="replace")).hexdigest()[:12]
        home = cache_directory() / "environments" / f"pip-{digest}"
        home.parent.mkdir(parents=True, exist_ok=True)
        with locked(home.with_name(f"{home.name}.lock")):
            if not (home / "ready").exists():
                run_tool([str(self.python), "-m", "venv", "--clear", str(home)])
                (home / "ready").touch()
        return [str(python_of(home)), "-m", "pip", "--disable-pip-version-check"]

    def _from(self) -> list[str]:
        return [part for index in self.indexes for part in ("--extra-index-url", index)]


def installer_for(python: Path, indexes: tuple[str, ...]) -> Installer:
    """Return what makes environments of a Python on this machine."""
    chosen = Uv if shutil.which("uv") else Pip
    return chosen(python, indexes)


def python_of(directory: Path) -> Path:
    """Return the interpreter of an environment."""
    return directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_packages_of(directory: Path) -> Path:
    """Return where the packages of an environment are."""
    found = [*directory.glob("lib/python*/site-packages"), *directory.glob("Lib/site-packages")]
    return found[0]


def run_tool(command: Sequence[str]) -> str:
    """Run a program to its end and return what it prints; raise with its last line if it fails."""
    with Program.start(ends_with_us(command)) as program:
        while program.process.poll() is None:
            if stopping.wait(_POLL_SECONDS):
                raise Stopped("stopped")
        told = program.tail(1 << 20)
        code = program.process.poll()
    if code != 0:
        errors = [line for line in told.splitlines() if line.lower().lstrip(" ×╰─▶").startswith("error")]
        last = (errors or [line for line in told.splitlines() if line.strip()] or [f"exit code {code}"])[-1]
        raise TorchReproError(
            f"{command[2] if command[1] == '-m' else command[0]} failed: {last.strip()}",
            next_step="see whether the package index can be reached and has this version",
        )
    return told


@contextmanager
def locked(path: Path, on_step: Callable[[str], None] = lambda step: None) -> Iterator[None]:
    """Hold a lock against other processes and threads; the kernel releases that of a killed process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try(descriptor):
            on_step("waiting for another process that makes the environment")
        while not _try(descriptor):
            if stopping.wait(_POLL_SECONDS):
                raise Stopped("stopped")
        yield
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ends_with_us(command: Sequence[str]) -> list[str]:
    """Return a command whose process ends with this one, even if that is killed.

    An installer that outlived it would write into the environment that the next command makes there.
    """
    return [sys.executable, "-P", "-c", _LAUNCH, str(os.getpid()), *command]
