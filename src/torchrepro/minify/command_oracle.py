"""An oracle that is a command of the user: it takes a bundle, and its exit code tells whether that fails.

As for `git bisect run`: 0 it does not fail, 125 it cannot be tested, any other code it fails. Two codes are
two failures: the search keeps only candidates with the exit code of the original, so that `torchrepro check
{}`, which exits with 1 for "as recorded" and 2 for "otherwise", is an oracle. Python exits with 1 on an
exception: a command that may raise by itself should use another code for "it fails".
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrepro.bundle.archive import new_run_id
from torchrepro.engine.processes.child import Program, signal_name
from torchrepro.engine.processes.limits import scratch_directory
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Raised, Verdict
from torchrepro.script.save_bundle import save_bundle

FAILURE = "OracleCommand"
SAYS_SO = "the command says so"
CANNOT_BE_TESTED = 125
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127
_POLL_SECONDS = 0.005
_FIRST_LIMIT = 600.0
_LIMIT_FACTOR, _SHORTEST_LIMIT = 10.0, 30.0


@dataclass(frozen=True, eq=False)
class _Asked:
    """A candidate on which the command is running."""

    index: int
    program: Program
    bundle: Path


class CommandOracle(AbstractContextManager["CommandOracle"]):
    """Runs `command` with the path of a candidate's bundle for each `{}` in it, or at its end.

    Leaves no process and no temporary file once it is closed, not even after a search that is killed.
    """

    def __init__(self, command: str, *, workers: int, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait with `sleep`, which may raise to stop the search."""
        if not command.strip():
            raise TorchReproError("the oracle is empty", next_step='write --oracle "command {}"')
        self.command = command
        self.workers = workers
        self._sleep = sleep
        self._limit = _FIRST_LIMIT
        self._scratch = scratch_directory()

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) of each as they finish. Only the command judges: a job is ignored."""
        waiting = list(enumerate(candidates))
        asked: list[_Asked] = []
        try:
            while waiting or asked:
                while waiting and len(asked) < self.workers:
                    index, candidate = waiting.pop(0)
                    asked.append(self._ask(index, save_bundle(candidate, self._scratch / new_run_id())))
                for one in list(asked):
                    verdict = self._verdict(one)
                    if verdict is not None:
                        asked.remove(one)
                        one.program.end()
                        shutil.rmtree(one.bundle, ignore_errors=True)
                        yield one.index, verdict
                if asked:
                    self._sleep(_POLL_SECONDS)
        finally:
            for one in asked:
                one.program.end()
                shutil.rmtree(one.bundle, ignore_errors=True)

    def verdict_on(self, bundle: Path) -> Verdict:
        """Return the command's verdict on a bundle, run where it is."""
        asked = self._ask(0, bundle)
        try:
            while (verdict := self._verdict(asked)) is None:
                self._sleep(_POLL_SECONDS)
            return verdict
        finally:
            asked.program.end()

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _ask(self, index: int, bundle: Path) -> _Asked:
        path = shlex.quote(str(bundle))
        command = self.command.replace("{}", path) if "{}" in self.command else f"{self.command} {path}"
        return _Asked(index, Program.start(["/bin/sh", "-c", command]), bundle)

    def _verdict(self, asked: _Asked) -> Verdict | None:
        """Return the command's verdict; None while it is running."""
        seconds = asked.program.seconds
        code = asked.program.process.poll()
        if code is None and seconds < self._limit:
            return None
        tail = asked.program.tail()
        if code is None:
            said = f"the command did not end within {self._limit:g} s"
            return Verdict(Kind.HANG, summary=said, stderr_tail=tail, seconds=seconds)
        if self._limit == _FIRST_LIMIT:
            self._limit = max(_SHORTEST_LIMIT, _LIMIT_FACTOR * seconds)
        return verdict_of_exit(code, tail, seconds)


def verdict_of_exit(code: int, tail: str = "", seconds: float = 0.0) -> Verdict:
    """Return the verdict for an exit code; negative: the command was killed by a signal."""
    if code == 0:
        return Verdict(Kind.PASS, summary=SAYS_SO, stderr_tail=tail, seconds=seconds)
    if code == CANNOT_BE_TESTED:
        return Verdict(Kind.INVALID, summary="the command cannot test it", stderr_tail=tail, seconds=seconds)
    how = signal_name(code) or f"exit {code}"
    if code in (_NOT_EXECUTABLE, _NOT_FOUND):
        raise TorchReproError(
            f"the oracle cannot be run ({how}): {tail.strip() or 'the shell did not say why'}",
            next_step="try it by hand with the path of the bundle",
        )
    # Numbers in a message do not distinguish failures, the exception's type does: so it has the exit code.
    raised, said = Raised(f"{FAILURE}({how})", SAYS_SO), f"{SAYS_SO} ({how})"
    return Verdict(Kind.RUN_ERROR, summary=said, raised=raised, stderr_tail=tail, seconds=seconds)
