"""Lines that torchrepro prints for the user while their program runs."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """A line for the user. Standard error may be closed: that is no reason to stop their program."""
    try:
        print(f"torchrepro: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
