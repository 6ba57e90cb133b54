"""Progress on standard error while a person waits: live on a terminal, a few lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from torchrepro.nouns.errors import on_one_line

_PHASES = {
    "start": "importing torch",
    "load": "loading the bundle",
    "warm": "warming up the compiler",
    "establish": "running the baseline",
    "build": "building the model",
    "eager": "running eager, twice",
    "reference": "running in float64",
    "compile": "compiling",
    "run": "running the compiled function",
    "compare": "comparing",
    "rounding": "running eager with rounding noise",
    "record": "recording the graphs",
    "measure": "measuring",
    "capture": "capturing",
    "search": "searching",
    "save": "saving the best",
    "script": "writing the script, and running it in a fresh process",
    "explain": "varying the result, to see what matters",
}
_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_BETWEEN_COUNTS = 10.0
_CULPRIT = "the culprit"
_VERIFIED = "fails in a fresh process"


def error_console() -> Console:
    return Console(stderr=True, highlight=False)


@dataclass
class Status:
    """What a search process has reported so far."""

    doing: str = _PHASES["start"]
    passes: Mapping[str, str] = field(default_factory=dict)
    """The passes that will run, and what each does."""
    pass_name: str = ""
    start: list[int] | None = None
    """Operations, inputs, elements."""
    best: list[int] | None = None
    queries: int = 0
    known: int = 0
    count: tuple[int, int] | None = None
    """Of work that has a known end: how much is done, and all of it."""
    stopping: str = ""
    script: str = ""
    """One that was seen to fail in a fresh process; what matters of it is still being found out."""
    culprit: str = ""
    """What `locate` has found; the evidence is still being collected."""
    began: float = field(default_factory=time.monotonic)
    _searching_since: float | None = None
    _spent: dict[str, float] = field(default_factory=dict)
    _pass_since: float = 0.0
    _again: bool = False

    def take(self, message: Mapping[str, Any]) -> None:
        """Bring it up to date."""
        now = time.monotonic()
        self.passes = message.get("passes", self.passes)
        if "phase" in message:
            self.doing = _PHASES.get(message["phase"], message["phase"])
            if message["phase"] == "search":
                self._searching_since = now
        self.doing = str(message.get("step", self.doing))
        self.count = message.get("count", self.count)
        if "progress" in message:
            progress = message["progress"]
            self.start, self.best = progress.get("start"), progress.get("best")
            self.queries, self.known = progress.get("queries", 0), progress.get("known", 0)
            name = progress.get("pass", "")
            if name and name != self.pass_name:
                if self.pass_name:
                    self._spent[self.pass_name] = now - self._pass_since
                self._again = name in self._spent
                self.pass_name, self._pass_since = name, now
                self.doing = ": ".join(part for part in (name, self.passes.get(name, "")) if part)
        self.script = message.get("script", self.script)
        self.culprit = message.get("culprit", self.culprit)
        if message.get("stopping"):
            what = "verifying the best so far" if self.best else "returning what was found so far"
            self.stopping = f"stopping: {what} (Ctrl-C again leaves at once)"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def estimate(self) -> float | None:
        """Seconds left if nothing more is found; None until every pass has run once."""
        if self.count is not None and self.count[0]:
            return self.seconds / self.count[0] * (self.count[1] - self.count[0])
        if not self._again:
            return None
        later = list(self.passes)
        later = later[later.index(self.pass_name) :] if self.pass_name in later else []
        left = sum(self._spent.get(name, 0.0) for name in later)
        return max(0.0, left - (time.monotonic() - self._pass_since))

    @property
    def size(self) -> str:
        """`340 ops, 12 inputs, 4,096 elements -> 1, 1, 8`; empty before anything was judged."""
        if self.start is None or self.best is None:
            return ""
        words = zip(self.start, ("ops", "inputs", "elements"), strict=True)
        before = ", ".join(f"{count:,} {word}" for count, word in words)
        return f"{before} -> {', '.join(f'{count:,}' for count in self.best)}"

    def lines(self) -> list[str]:
        """What a person wants to know, most important first."""
        found = [self.stopping or self.doing]
        if self.script:
            found.append(f"{_VERIFIED}: {self.script}")
        if self.culprit:
            found.append(f"{_CULPRIT}: {self.culprit}")
        if self.best is not None:
            searching = time.monotonic() - (self._searching_since or self.began)
            known = f", {self.known} known already" if self.known else ""
            rate = self.queries / max(searching, 1e-3)
            found += [self.size, f"{self.queries} queries ({rate:.1f}/s){known}"]
        if self.count is not None:
            found.append(self.counted)
        left = "unknown" if self.estimate is None else f"about {_clock(self.estimate)}"
        has_end = self.passes or self.count
        found.append(f"elapsed {_clock(self.seconds)}" + (f", left {left}" if has_end else ""))
        return found

    @property
    def counted(self) -> str:
        """`3 of 8`; empty where no end is known."""
        return "" if self.count is None else f"{self.count[0]:,} of {self.count[1]:,}"


class Silent:
    """Shows nothing."""

    def show(self, message: Mapping[str, Any]) -> None:
        """Take a message of a search process."""

    def phase(self, name: str) -> None:
        """Take the phase of a single run."""


class Lines(Silent):
    """Prints a line for each step of a search, and for an improvement at most once a second.

    `phases`: also one for each phase before the first step.
    """

    def __init__(self, console: Console, *, phases: bool = False) -> None:
        self._console = console
        self._status = Status()
        self._told = {"step", "stopping", "phase"} if phases else {"step", "stopping"}
        self._shown = ""
        self._last = 0.0

    def show(self, message: Mapping[str, Any]) -> None:
        status = self._status
        status.take(message)
        if "count" in message:
            later = time.monotonic() - self._last >= _SECONDS_BETWEEN_COUNTS
            left = "" if status.estimate is None else f", about {_clock(status.estimate)} left"
            if later or not self._shown.startswith(status.doing):
                self._print(f"{status.doing}: {status.counted}", f", {_clock(status.seconds)}{left}")
        elif message.get("phase", "start") in _PHASES and message.keys() & self._told:
            self._print(status.stopping or status.doing)
        elif "script" in message:
            self._print(f"{_VERIFIED}: {status.script}")
        elif "culprit" in message:
            self._print(f"{_CULPRIT}: {status.culprit}")
        elif status.best != status.start and time.monotonic() - self._last >= _SECONDS_BETWEEN_LINES:
            self._print(status.size, f" ({status.queries} queries, {status.seconds:.0f} s)")

    def _print(self, text: str, more: str = "") -> None:
        """Print a line unless the last one began in the same way."""
        if text != self._shown:
            self._shown, self._last = text, time.monotonic()
            line = on_one_line(f"torchrepro: {text}{more}")
            self._console.print(line, markup=False, soft_wrap=True)


class Screen(Silent):
    """Keeps a few lines in place, drawn four times a second from the first message on."""

    def __init__(self, console: Console) -> None:
        self._status = Status()
        self._width = max(10, console.width - 1)
        self.live = Live(get_renderable=self.__rich__, console=console, refresh_per_second=4, transient=True)

    def show(self, message: Mapping[str, Any]) -> None:
        self._status.take(message)
        self.live.start()  # not before: a watched program may still be printing

    def phase(self, name: str) -> None:
        self.show({"phase": name})

    def __rich__(self) -> Text:
        """Draw each line cut to the width: one that wraps and unwraps would make the screen jump."""
        drawn = [Text(on_one_line(line)) for line in self._status.lines()]
        for line in drawn:
            line.truncate(self._width, overflow="ellipsis")
        return Text("\n").join(drawn)


@contextmanager
def progress(*, quiet: bool, phases: bool = False) -> Iterator[Silent]:
    """Show progress on standard error in the form that fits where it goes."""
    console = error_console()
    if quiet:
        yield Silent()
    elif not console.is_terminal:
        yield Lines(console, phases=phases)
    else:
        screen = Screen(console)
        try:
            yield screen
        finally:
            screen.live.stop()


def _clock(seconds: float) -> str:
    """`8 s`, `2 min 05 s`."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"
