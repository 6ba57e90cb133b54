"""The last lines that a watched program leaves on the terminal, after its own traceback. Needs no torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchrepro.capture.summary import Caught

_SHOWN = 5


def closing_lines(caught: Sequence[Caught]) -> list[str]:
    """What failed, the bundle's path and the command to minify it: for each failure, the first one last.

    The last lines are what a person sees, and the first failure is most often the cause of the others.
    """
    lines = []
    left_out = len(caught) - _SHOWN
    if left_out > 0:
        lines.append(f"torchrepro: {left_out} more failures (summary.json has all)")
    for found in reversed(caught[:_SHOWN]):
        where = f" in {found.stage}" if found.stage != "none" else ""
        first_line = found.summary.splitlines()[0] if found.summary else ""
        lines.append(f"torchrepro: {found.verdict}{where}: {_shortened(first_line)}")
        lines.append(f"  bundle  {found.path}")
        lines.append(f"  minify  torchrepro minify {shlex.quote(str(found.path))}")
    return lines


def _shortened(text: str, width: int = 160) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
