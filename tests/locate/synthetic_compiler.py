"""A compiler that is wrong on demand, for tests of `locate`: nothing is compiled, and questions are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


@dataclass(frozen=True)
class Asked:
    """What one question was about."""

    repro: Repro
    off: Mapping[str, Sequence[str]]

    def has_off(self, kind: str, name: str) -> bool:
        """Whether a pass, rewrite, decomposition or lowering is left out."""
        return name in self.off.get(kind, ())

    @property
    def backend(self) -> str:
        return self.repro.compiler.name

    @property
    def options(self) -> Mapping[str, Any]:
        return self.repro.compiler.options


Answer = Callable[[Asked], Kind]


@dataclass(eq=False)
class SyntheticCompiler:
    """Answers for an oracle; `met` is what its compilations say they have met."""

    answer: Answer
    met: Mapping[str, Sequence[str]] = field(default_factory=dict)
    as_verdict: Callable[[Kind], Verdict] = Verdict
    workers: int = 1
    asked: list[Asked] = field(default_factory=list)

    def judge(
        self,
        candidates: Sequence[Repro],
        *,
        job: str = "",
        off: Mapping[str, Sequence[str]] = {},
        met: str = "",
    ) -> Iterator[tuple[int, Verdict]]:
        for index, repro in enumerate(candidates):
            question = Asked(repro, off)
            self.asked.append(question)
            kind = self.answer(question)
            if met:
                lines = [[kind, name] for kind, names in self.met.items() for name in names]
                Path(met).write_text("".join(msgspec.json.encode(line).decode() + "\n" for line in lines))
            yield index, self.as_verdict(kind)


def inquiry_of(
    answer: Answer,
    *,
    repro: Repro | None = None,
    met: Mapping[str, Sequence[str]] | None = None,
    verdict: Verdict | None = None,
    as_verdict: Callable[[Kind], Verdict] = Verdict,
) -> Inquiry:
    """An inquiry into a small repro that fails; `answer` says how each variation of it comes out."""
    compiler = SyntheticCompiler(answer, met or {}, as_verdict)
    repro = repro or small_repro()
    original = verdict or Verdict(answer(Asked(repro, {})))
    return Inquiry(repro, original, compiler)  # type: ignore[arg-type]


def small_repro(**changes: Any) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: torch.relu(x)), (torch.ones(2),), **changes)
