"""One query of a corpus, as plain data: what an executor is given, here or on another machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchrepro.engine.generated_code import digest_code
from torchrepro.engine.other_python import Interpreter, Replayed, ReplaySettings, generate, replay
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
    how: ReplaySettings


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
    if request.only_code:
        code = generate(request.path, request.interpreter, request.how)
        replayed = Replayed(code=digest_code(code))
    else:
        replayed, code = replay(request.path, request.interpreter, request.how)
    return Answer(request, replayed, code, platform.node(), tools_of(request.interpreter))


@cache
def tools_of(interpreter: Interpreter) -> str:
    """Return what generated code is compiled by and for: the same code may behave otherwise with others."""
    return " | ".join((cxx_version(), cpu_name(), interpreter.triton))
