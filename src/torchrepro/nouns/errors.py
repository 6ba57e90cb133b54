"""Errors and messages a user can meet: each states the fact, then the next step.

`TorchReproError` is what a command prints as one line (exit 125, "cannot be tested"). `HarnessError` is
the other kind: our own bug, never to be mistaken for a failure of the compiler under test.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrepro.nouns.verdict import Verdict


_LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def visible(text: object) -> str:
    """Return text with visible control characters and uniform line ends: it cannot control the terminal."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else _shown(character)
        for character in _LINE_BREAKS.sub("\n", str(text))
    )


def on_one_line(text: object) -> str:
    """Return visible text as one line, with single blanks."""
    return " ".join(visible(text).split())


def _shown(character: str) -> str:
    return "\N{SYMBOL FOR ESCAPE}" if character == "\x1b" else "\N{REPLACEMENT CHARACTER}"


def say(line: str) -> None:
    """Print a line for the user; ignore a closed standard error, which must not stop their program."""
    try:
        print(f"torchrepro: {visible(line)}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return


def class_path(kind: type) -> str:
    """Return `package.module.Class`."""
    return f"{kind.__module__}.{kind.__qualname__}"


def message_of(exc: BaseException) -> str:
    """Return what an exception says; a user's `__str__` may raise, which must not lose the failure."""
    try:
        return str(exc)
    except Exception as fault:
        return f"<its __str__ raises {type(fault).__name__}>"


def in_a_line(exc: BaseException) -> str:
    """Return an exception as one line: a fact of torchrepro's own as it is, any other with its type."""
    text = exc.strerror or message_of(exc) if isinstance(exc, OSError) else message_of(exc)
    first = text.strip().partition("\n")[0]
    if isinstance(exc, TorchReproError | OSError) and first:
        return first
    return f"{type(exc).__name__}: {first}" if first else type(exc).__name__


_ADVICE = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or choose a directory on another disk"
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a directory that you may write to"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "close files, or raise the limit (ulimit -n)"),
    errno.EIO: "choose another directory, on another disk",
}


def advice_on(number: int | None) -> str:
    """Return what a user can do about an error of the system; empty for one that is not about writing."""
    return _ADVICE.get(number or 0, "")


def refused_by_system(exc: BaseException) -> TorchReproError | None:
    """Return the fact of an OSError that is no bug of torchrepro: a full disk, no rights, no descriptors."""
    if not isinstance(exc, OSError) or not advice_on(exc.errno):
        return None
    where = f" ({exc.filename})" if exc.filename else ""
    return TorchReproError(f"{exc.strerror}{where}", next_step=advice_on(exc.errno))


class TorchReproError(Exception):
    """A fact about the user's input, and what to do about it."""

    def __init__(self, fact: str, *, next_step: str = "") -> None:
        super().__init__(fact, next_step)
        self.fact = fact
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.fact}; {self.next_step}" if self.next_step else self.fact


class BundleError(TorchReproError):
    """A bundle is missing, damaged or of a newer format than this version reads."""


def damaged(fact: str) -> BundleError:
    """Return the error of a bundle whose content is not what torchrepro writes."""
    return BundleError(fact, next_step="get a fresh copy of the bundle, or capture the failure again")


class GraphTextError(TorchReproError):
    """The text of a graph does not belong to the subset of Python that describes graphs."""


class CannotSerialise(TorchReproError):
    """A value cannot be kept as data; the text names it."""


class UnknownCompilerError(TorchReproError):
    """The compiler under test is not registered and cannot be imported."""


class ReferenceUnavailable(TorchReproError):
    """The same computation cannot be run in float64; the text says why."""


class ReferenceError64(TorchReproError):
    """No float64 reference could be made, and `require_fp64` demanded one."""


class DoesNotFail(TorchReproError):
    """The repro was expected to fail and passes here, so there is no culprit to look for."""


class HarnessError(Exception):
    """A bug of torchrepro itself. Never a verdict about a compiler."""


class AccuracyError(Exception):
    """The compiled function is further from the truth than eager is. Carries the verdict."""

    def __init__(self, message: str, verdict: Verdict | None = None) -> None:
        super().__init__(message)
        self.verdict = verdict


class SearchStopped(Exception):
    """A search ends early, with what it has: a time limit, or the user interrupted it."""


class RankFailed(Exception):
    """Another rank of the job failed or died: this one stops before it waits for that one."""

    def __init__(self, message: str, *, failed: tuple[int, ...] = (), dead: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.failed = failed
        self.dead = dead
