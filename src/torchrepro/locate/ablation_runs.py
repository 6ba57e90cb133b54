"""Trials: does the failure go away with something turned off? And what did the compilation meet?

What `locate` runs in a process of its own: a verdict with parts of the compiler turned off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.engine.failure import Failure
from torchrepro.judge.models import Phase
from torchrepro.locate.ablation import Off
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


def judge_without(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The verdict with `off` left out; what the compilation meets is noted in the file `met`."""
    from torchrepro.engine.jobs import judge
    from torchrepro.locate.apply_ablation import Met, turned_off

    with Path(payload["met"]).open("a") as file, turned_off(payload["off"], Met(file)):
        return judge(repro, payload, phase)


_JOB = "torchrepro.locate.ablation_runs:judge_without"


@dataclass(eq=False)
class Trials:
    """Questions about one repro. Asked a second time, the answer is known."""

    inquiry: Inquiry
    repro: Repro

    def __post_init__(self) -> None:
        self._known: dict[str, Verdict] = {}
        self._met: dict[str, list[str]] = {}

    def met(self, kind: str) -> list[str]:
        """Names of `passes`, `patterns`, `decompositions` or `lowerings` that the runs so far have met."""
        if not self._known:
            self.verdict(Off())
        return self._met.get(kind, [])

    def goes_away(self, off: Off) -> bool:
        """Whether the repro passes. Failing in another way, or not at all testable, is no way out."""
        return self.inquiry.is_gone(self.verdict(off))

    def fails_as_before(self, verdict: Verdict) -> bool:
        """Whether a verdict shows the failure that this repro has with nothing turned off."""
        return Failure.of(self.inquiry.verdict_on(self.repro)).shown_by(verdict)

    def verdict(self, off: Off) -> Verdict:
        key = msgspec.json.encode([off.options, off.configs, off.names()], order="sorted").decode()
        if key not in self._known:
            self._known[key] = self._settled(off)
        return self._known[key]

    def _settled(self, off: Off) -> Verdict:
        """Of a failure that is flaky, absence counts only after several runs."""
        verdict = self._ask(off)
        for _ in range(self.inquiry.repeats - 1):
            if not self.inquiry.is_gone(verdict):
                break
            verdict = self._ask(off)
        return verdict

    def _ask(self, off: Off) -> Verdict:
        self.inquiry.compiles += 1
        candidate = off.settings_on(self.repro)
        with tempfile.TemporaryDirectory(prefix="torchrepro-met-") as directory:
            path = Path(directory) / "met.jsonl"
            path.touch()
            judged = self.inquiry.oracle.judge([candidate], job=_JOB, off=off.names(), met=str(path))
            ((_, verdict),) = list(judged)
            # A process that dies may leave half a line.
            self._learn(line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))
        return verdict

    def _learn(self, lines: Iterable[str]) -> None:
        for line in lines:
            kind, name = msgspec.json.decode(line)
            names = self._met.setdefault(kind, [])
            if name not in names:
                names.append(name)
