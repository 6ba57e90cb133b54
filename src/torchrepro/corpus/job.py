"""One query of a corpus, as plain data: what an executor is given, here or on another machine."""

from __future__ import annotations

import platform
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchrepro.engine.other_python import Interpreter, Replayed, generate, replay
from torchrepro.nouns.environment import cpu_name, cxx_version


@dataclass(frozen=True, slots=True)
class Request:
    """Replay a bundle, or only generate its code."""

    bundle: str
    """Its id."""
    path: Path
    interpreter: Interpreter
    side: int
    only_code: bool
    time_limit: float | None
    trusted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request, and where."""

    request: Request
    replayed: Replayed
    """With nothing but the digest of the code, if that was all that was asked for."""
    code: str
    """The normalised generated code."""
    host: str
    tools: str


def run_request(request: Request) -> Answer:
    """Run a request in a fresh process with fresh caches, and wait for it. Never raises."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-corpus-", ignore_cleanup_errors=True) as directory:
        code_to = Path(directory) / "code.txt"
        how = {"time_limit": request.time_limit, "trusted": request.trusted, "code_to": code_to}
        if request.only_code:
            replayed = Replayed(code=generate(request.path, request.interpreter, **how))  # type: ignore[arg-type]
        else:
            replayed = replay(request.path, request.interpreter, **how)  # type: ignore[arg-type]
        code = code_to.read_text(errors="replace") if code_to.exists() else ""
    return Answer(request, replayed, code, platform.node(), tools_of(request.interpreter))


@cache
def tools_of(interpreter: Interpreter) -> str:
    """Return what generated code is compiled by and for: the same code may behave otherwise with others."""
    return " | ".join((cxx_version(), cpu_name(), interpreter.triton))
