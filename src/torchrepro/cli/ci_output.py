"""Keep a stranger's text from commanding the CI service that reads what a step prints.

GitHub's runner takes `::error::text` at the start of a line and `##[error]text` anywhere for commands,
Azure's takes `##vso[...]`: a bundle could hide output, set results of the step or annotate healthy lines.
"""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

SERVICES = frozenset({"GITHUB_ACTIONS", "TF_BUILD"})
"""Variables that CI services set which read commands from what is printed."""
_COMMANDS = re.compile(r"^[^\S\n]*:(?=:)|#(?=#\w{0,20}\[)", re.MULTILINE)


class WithoutCommands:
    """A stream in which no command of a CI service arrives; `commands` is the stream for intended ones."""

    def __init__(self, stream: TextIO) -> None:
        self.commands = stream

    def write(self, text: str) -> int:
        return self.commands.write(_COMMANDS.sub(r"\g<0> ", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.commands, name)


def break_commands() -> None:
    """Let what is printed from here on hold no commands."""
    sys.stdout, sys.stderr = WithoutCommands(sys.stdout), WithoutCommands(sys.stderr)


def stream_for_commands(stream: TextIO) -> TextIO:
    """Return the stream under `stream`, for commands that are intended."""
    return stream.commands if isinstance(stream, WithoutCommands) else stream
