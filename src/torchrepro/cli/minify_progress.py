"""Where a search stands, while a person waits: live on a terminal, a line for each improvement in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchrepro.cli.render import error_console

_PHASES = {
    "start": "importing torch",
    "load": "loading the bundle",
    "warm": "warming up the compiler",
    "establish": "running the original",
    "search": "searching",
    "save": "saving the best",
    "script": "writing the script, and running it in a fresh process",
    "explain": "varying the result, to see what matters",
}
_SECONDS_BETWEEN_LINES = 1.0


@dataclass
class Standing:
    """What the search process has told so far."""

    phase: str = "start"
    passes: Mapping[str, str] = field(default_factory=dict)
    """The passes that will run, and what each does."""
    pass_name: str = ""
    start: tuple[int, int, int] | None = None
    """Operations, inputs, elements."""
    best: tuple[int, int, int] | None = None
    queries: int = 0
    known: int = 0
    is_stopping: bool = False
    began: float = field(default_factory=time.monotonic)
    _searching_since: float | None = None
    _spent: dict[str, float] = field(default_factory=dict)
    _pass_since: float = 0.0
    _again: bool = False

    def take(self, message: Mapping[str, Any]) -> None:
        """Bring it up to date."""
        self.is_stopping = self.is_stopping or bool(message.get("stopping"))
        self.passes = message.get("passes", self.passes)
        if "phase" in message:
            self.phase = message["phase"]
            if self.phase == "search":
                self._searching_since = time.monotonic()
        if "progress" in message:
            self._take_progress(message["progress"])

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def rate(self) -> float:
        """Queries in a second of searching."""
        if self._searching_since is None:
            return 0.0
        return self.queries / max(time.monotonic() - self._searching_since, 1e-3)

    @property
    def estimate(self) -> float | None:
        """Seconds that are left if nothing more is found: known once every pass has been seen to run.

        Before that nobody knows, and a guess would be a lie.
        """
        if not self._again:
            return None
        later = list(self.passes)
        later = later[later.index(self.pass_name) :] if self.pass_name in later else []
        left = sum(self._spent.get(name, 0.0) for name in later)
        return max(0.0, left - (time.monotonic() - self._pass_since))

    def size(self) -> str:
        """`340 ops, 12 inputs, 4096 elements -> 1, 1, 8`."""
        if self.start is None or self.best is None:
            return ""
        words = zip(self.start, ("ops", "inputs", "elements"), strict=True)
        return f"{', '.join(f'{count:,} {word}' for count, word in words)} -> {numbers(self.best)}"

    def _take_progress(self, progress: Mapping[str, Any]) -> None:
        self.start, self.best = _triple(progress["start"]), _triple(progress["best"])
        self.queries, self.known = progress["queries"], progress["known"]
        name = progress["pass"]
        if name and name != self.pass_name:
            now = time.monotonic()
            if self.pass_name:
                self._spent[self.pass_name] = now - self._pass_since
            self._again = name in self._spent
            self.pass_name, self._pass_since = name, now


class Silent:
    """Shows nothing."""

    def show(self, message: Mapping[str, Any]) -> None:
        pass


class Lines:
    """A line when the best has become smaller, at most one a second, for a log that somebody reads later."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._standing = Standing()
        self._shown: tuple[int, int, int] | None = None
        self._last = 0.0

    def show(self, message: Mapping[str, Any]) -> None:
        self._standing.take(message)
        if "stopping" in message:
            self._print(stopping(self._standing))
        standing = self._standing
        if standing.best is None or standing.best == (self._shown or standing.start):
            return
        if time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._shown, self._last = standing.best, time.monotonic()
            self._print(f"{standing.size()} ({standing.queries} queries, {standing.seconds:.0f} s)")

    def _print(self, text: str) -> None:
        self._console.print(f"torchrepro: {text}", markup=False, soft_wrap=True)


class Screen:
    """Four lines that stay in place; drawn four times a second, so that nothing flickers."""

    def __init__(self, live: Live) -> None:
        self._standing = Standing()
        self._live = live

    def show(self, message: Mapping[str, Any]) -> None:
        self._standing.take(message)

    def __rich__(self) -> Text:
        """What is drawn, each time anew: the clock goes on while nothing is told."""
        width = self._live.console.width
        return Text("\n").join(_fitted(line, width) for line in lines_of(self._standing))


def stopping(standing: Standing) -> str:
    """What a first Ctrl-C brings about."""
    what = "verifying the best so far" if standing.best is not None else "nothing has been found yet"
    return f"stopping: {what} (Ctrl-C again leaves at once)"


def lines_of(standing: Standing) -> list[str]:
    """What a person wants to know, the most telling first."""
    doing = _PHASES.get(standing.phase, standing.phase)
    if standing.phase == "search" and standing.pass_name:
        description = standing.passes.get(standing.pass_name, "")
        doing = f"{standing.pass_name}: {description}" if description else standing.pass_name
    found = [stopping(standing) if standing.is_stopping else doing]
    if standing.best is not None:
        known = f", {standing.known} known already" if standing.known else ""
        found += [standing.size(), f"{standing.queries} queries ({standing.rate:.1f}/s){known}"]
    left = standing.estimate
    estimate = "unknown" if left is None else f"about {clock(left)}"
    found.append(f"elapsed {clock(standing.seconds)}, left {estimate}")
    return found


@contextmanager
def minify_progress(*, quiet: bool) -> Iterator[Silent | Lines | Screen]:
    """On standard error: what fits whoever reads it."""
    console = error_console()
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(console)
    else:
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            screen = Screen(live)
            live.update(screen)
            yield screen


def numbers(size: tuple[int, int, int]) -> str:
    return ", ".join(f"{count:,}" for count in size)


def clock(seconds: float) -> str:
    """`8 s`, `2 min 05 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def _fitted(line: str, width: int) -> Text:
    """On one line: a line that wraps and unwraps would make the screen jump."""
    text = Text(line)
    text.truncate(max(10, width - 1), overflow="ellipsis")
    return text


def _triple(values: Any) -> tuple[int, int, int]:
    ops, inputs, elements = values
    return ops, inputs, elements
