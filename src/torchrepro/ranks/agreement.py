"""Agreement: what the ranks of a job told one another at an event, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchrepro.nouns.errors import RankFailed

_BUNDLES_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Failure:
    """What happened on a rank, and where its bundle is."""

    summary: str
    bundle: str = ""
    """Empty if none could be written."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How everyone fared. Nothing in it: everyone came and nobody failed, or nobody could be asked."""

    failed: Mapping[int, Failure] = field(default_factory=dict)
    missing: tuple[int, ...] = ()
    """Ranks that did not answer in time."""
    dead: tuple[int, ...] = ()
    """Ranks whose process is gone, without a word of its own."""
    left_behind: Mapping[int, str] = field(default_factory=dict)
    """Bundles that the dead had announced."""

    @property
    def failing(self) -> bool:
        """True if every rank has to stop. A rank that is only missing may be busy elsewhere."""
        return bool(self.failed or self.dead)

    def describe(self) -> str:
        """Who failed, with what, and where their bundles are: one fact a line."""
        return "\n".join(self._lines())

    def error(self) -> RankFailed:
        """What a rank that has not failed itself raises."""
        return RankFailed(
            f"{self.describe()}\nthis rank stops here: in its next collective it would wait for them",
            failed=tuple(self.failed),
            dead=self.dead,
        )

    def _lines(self) -> Iterator[str]:
        alike: dict[str, list[int]] = {}
        for rank, failure in self.failed.items():
            alike.setdefault(failure.summary, []).append(rank)
        for summary, ranks in alike.items():
            yield f"{name_ranks(ranks)} failed: {summary}"
            yield from _bundles({rank: self.failed[rank].bundle for rank in ranks})
        if self.dead:
            yield f"{name_ranks(self.dead)} died"
            yield from _bundles(self.left_behind)
        if self.failing and self.missing:
            yield f"{name_ranks(self.missing)} did not answer"


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`; `ranks 0, 2 and 5`; `ranks 0 to 7 and 12`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [
        word
        for run in runs
        for word in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run])
    ]
    listed = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _bundles(bundles: Mapping[int, str]) -> Iterator[str]:
    written = {rank: path for rank, path in bundles.items() if path}
    for rank, path in list(written.items())[:_BUNDLES_SHOWN]:
        yield f"  bundle of rank {rank}: {path}"
    if len(written) > _BUNDLES_SHOWN:
        yield f"  and {len(written) - _BUNDLES_SHOWN} more"
