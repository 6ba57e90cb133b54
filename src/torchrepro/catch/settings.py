"""WatchSettings: the options of the watch, from a command line, a call or the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from torchrepro.catch.autoload import PREFIX, SWITCH
from torchrepro.nouns.errors import TorchReproError

LAUNCHED = f"{PREFIX}LAUNCHED"
"""Set by `torchrepro run` in the processes it starts: it prints the closing lines itself."""
TORCHS_OWN_TOOL = {"TORCHDYNAMO_REPRO_AFTER": "after", "TORCHDYNAMO_REPRO_LEVEL": "level"}
"""The variables of torch's own tool, and the options that they set here."""

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class After(StrEnum):
    """Which graphs are watched."""

    AUTO = "auto"
    """Captured graphs, and the backward graphs that AOT makes of them and autograd runs."""
    DYNAMO = "dynamo"
    """Captured graphs, before AOT."""
    AOT = "aot"
    """Forward, backward and inference graphs as passed to the backend."""


class OnMismatch(StrEnum):
    """What happens in the user's program when a check finds a mismatch."""

    WARN = "warn"
    RAISE = "raise"


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """All options of the watch. Each has an environment variable: `TORCHREPRO_` and its name in capitals."""

    level: int = 2
    """1 an exception leaves a bundle, 2 with all data, 3 written before the call, 4 calls are compared."""
    after: After = After.AUTO
    out: Path | None = None
    """Where bundles go; None: `torchrepro-out` in the working directory."""
    whole: bool = False
    """Also compare each whole compiled call with plain Python."""
    every: int = 1
    """At level 4: check one call of this many."""
    first: int | None = None
    """At level 4: check only this many calls of each graph."""
    budget: float | None = None
    """At level 4: spend at most this share of the run time on checks."""
    size_cap: int = 1 << 30
    """Bytes of tensors that a bundle may hold; tensors beyond that are kept as recipes."""
    on_mismatch: OnMismatch = OnMismatch.WARN
    limit: int = 20
    """Bundles that one process may write."""
    rank_timeout: float = 60.0
    """Seconds that a rank waits for the results of the others."""
    crash_safe: bool = False
    """At level 4: write the bundle before every call, not only before compiling and the first one."""
    minify: bool = False
    """Minify the first failure where it happens (`catch/search_here.py`)."""
    explain: bool = True
    """After minifying, find out what of the result matters."""
    locate: bool = False
    """Locate the first failure where it happens."""
    go_on: bool = False
    """Let the program go on while its failure is searched; it waits for the answer when it ends."""
    run_id: str = ""
    """Shared by all processes of one run."""

    def __post_init__(self) -> None:
        if self.level not in (1, 2, 3, 4):
            raise TorchReproError(f"there is no level {self.level}", next_step="choose 1, 2, 3 or 4")
        for name in ("every", "first", "limit", "size_cap"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TorchReproError(f"{name} is {value}", next_step="give a number from 1 on")
        if self.budget is not None and not 0 < self.budget <= 1:
            raise TorchReproError(
                f"the budget is {self.budget:.0%} of the run time", next_step="give a share such as 5%"
            )

    @property
    def directory(self) -> Path:
        return Path(os.path.abspath(self.out or "torchrepro-out"))

    def changed(self, **values: Any) -> WatchSettings:
        """Return a copy with values replaced; strings are parsed as in the environment, None is ignored."""
        known = {field.name for field in fields(self)}
        for name in values.keys() - known:
            known_ones = f"known are {', '.join(sorted(known))}"
            raise TorchReproError(f"the watch has no option {name!r}", next_step=known_ones)
        given = {name: _parsed(name, value) for name, value in values.items() if value is not None}
        return replace(self, **given)

    def to_environ(self) -> dict[str, str]:
        """Return the variables that make another process watch in the same way."""
        found = {SWITCH: "1"}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != field.default:
                found[PREFIX + field.name.upper()] = str(int(value) if isinstance(value, bool) else value)
        return found

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> WatchSettings:
        """Return the settings of the environment, with defaults for the others."""
        environ = os.environ if environ is None else environ
        texts = {field.name: environ.get(PREFIX + field.name.upper()) for field in fields(cls)}
        return cls().changed(**{name: text or None for name, text in texts.items()})


def torch_aliases(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options in TORCHDYNAMO_REPRO_AFTER and TORCHDYNAMO_REPRO_LEVEL, of torch's own tool."""
    return {option: environ[name] for name, option in TORCHS_OWN_TOOL.items() if environ.get(name)}


def parse_size(text: str) -> int:
    """Return bytes from `1G`, `500M`, `64KiB` or a plain number."""
    digits = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = digits[-1:] if digits[-1:] in _SIZES else ""
    try:
        return int(float(digits.removesuffix(unit)) * _SIZES.get(unit, 1))
    except ValueError:
        raise TorchReproError(f"{text!r} is not a size", next_step="write for example 500M or 1G") from None


def parse_share(text: str) -> float:
    """Return a share from `5%` or `0.05`."""
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise TorchReproError(f"{text!r} is not a share", next_step="write for example 5%") from None


def parse_switch(text: str) -> bool:
    return text.lower() not in ("", "0", "false", "no", "off")


_READERS: dict[str, Callable[[str], Any]] = {
    "after": After,
    "on_mismatch": OnMismatch,
    "out": Path,
    "size_cap": parse_size,
    "budget": parse_share,
    **dict.fromkeys(("whole", "crash_safe", "minify", "explain", "locate", "go_on"), parse_switch),
    "rank_timeout": float,
    "run_id": str,
}
"""Parsers of options; the others are integers."""


def _parsed(name: str, value: Any) -> Any:
    reader = _READERS.get(name, int)
    try:
        return reader(value) if isinstance(value, str) else value
    except ValueError:
        chosen = isinstance(reader, type) and issubclass(reader, StrEnum)
        step = f"choose one of {', '.join(reader)}" if chosen else "give a number"  # type: ignore[arg-type]
        raise TorchReproError(f"{name} is {value!r}", next_step=step) from None
