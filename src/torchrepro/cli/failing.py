"""What a command prints, and its exit code, when it fails."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from torchrepro.nouns.errors import HarnessError, TorchReproError

CANNOT_BE_TESTED = 125
INTERRUPTED = 130
_SHOWN = 300


@contextmanager
def failures_as_lines(*, as_json: bool, show_traceback: bool) -> Iterator[None]:
    """Print an error as one line with the next step; a bug of torchrepro says that it is one."""
    try:
        yield
    except TorchReproError as exc:
        if show_traceback:
            traceback.print_exc()
        _report(exc.fact, exc.next_step, as_json)
        raise typer.Exit(CANNOT_BE_TESTED) from exc
    except HarnessError as exc:
        first, _, rest = str(exc).partition("\n")
        if show_traceback:
            print(rest, file=sys.stderr)
        # An exception of the compiler can be a hundred lines of C++ errors, quoted in one.
        shown = first if len(first) <= _SHOWN else first[: _SHOWN - 3] + "..."
        _report(shown, "this is a bug of torchrepro: report it with the output of --traceback", as_json)
        raise typer.Exit(CANNOT_BE_TESTED) from exc
    except KeyboardInterrupt:
        print("torchrepro: interrupted; no process is left behind", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _report(fact: str, next_step: str, as_json: bool) -> None:
    line = f"{fact}; {next_step}" if next_step else fact
    print(f"torchrepro: {line}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": fact, "next_step": next_step}))
