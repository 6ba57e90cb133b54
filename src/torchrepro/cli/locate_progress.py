"""What is being looked at, while a person waits: live on a terminal, a line for each question in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.status import Status

from torchrepro.cli.minify_progress import clock
from torchrepro.cli.render import error_console

_PHASES = {
    "load": "loading the bundle",
    "warm": "warming up the compiler",
    "establish": "running the original",
}
STOPPING = "stopping: giving what was found so far (Ctrl-C again leaves at once)"


class Shown(Protocol):
    """Who shows the messages of a search process."""

    def show(self, message: Mapping[str, Any]) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, message: Mapping[str, Any]) -> None:
        pass


class Lines:
    """A line for each thing that is looked at; none twice in a row."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def show(self, message: Mapping[str, Any]) -> None:
        words = words_of(message)
        if words and words != self._last:
            self._last = words
            self._console.print(f"torchrepro: {words}", markup=False, soft_wrap=True)


class Screen:
    """One line that stays in place."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self._began = time.monotonic()

    def show(self, message: Mapping[str, Any]) -> None:
        words = words_of(message)
        if words:
            self._status.update(f"{words} ({clock(time.monotonic() - self._began)})")


def words_of(message: Mapping[str, Any]) -> str:
    """What a message means to a person; empty: nothing new."""
    if "stopping" in message:
        return STOPPING
    if "step" in message:
        return str(message["step"])
    return _PHASES.get(message.get("phase", ""), "")


@contextmanager
def locate_progress(*, quiet: bool) -> Iterator[Shown]:
    """On standard error: what fits whoever reads it."""
    console = error_console()
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(console)
    else:
        with console.status("importing torch") as status:
            yield Screen(status)
