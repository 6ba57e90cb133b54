"""Which single op raises, crashes or hangs by itself.

Such a failure hides what else is in the graph. So all ops run in one compilation that prints each one before
it is computed: the last one printed, the stack or the error names the op. Else bisect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torchrepro.cut.hints import suspects
from torchrepro.cut.record_values import Recording
from torchrepro.cut.units import Unit
from torchrepro.cut.windows import Window, beside
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

FirstFailing = Callable[[Sequence[Repro | None]], int | None]
"""The index of the first that fails; None stands for one that could not be built."""
FailureAnnounced = Callable[[Repro], Verdict | None]
"""The verdict on a failing repro whose kernels announce their ops; None: it does not fail."""


def failing_ones(
    repro: Repro,
    recording: Recording,
    windows: Sequence[Window],
    first_failing: FirstFailing,
    failure_announced: FailureAnnounced,
    *,
    parts: int,
) -> Iterator[tuple[Unit, Window]]:
    """Yield the ops that may fail by themselves, the likeliest first; the last by bisection into `parts`."""
    pool = list(windows)
    if len(pool) > parts:
        whole = beside(repro, recording, pool)
        verdict = None if whole is None else failure_announced(whole)
        if verdict is None:
            return
        yield from ((each.instances[0], each) for each in suspects(pool, verdict, repro, recording))
    while len(pool) > 1:
        length = -(-len(pool) // parts)
        groups = [pool[start : start + length] for start in range(0, len(pool), length)]
        found = first_failing([beside(repro, recording, group) for group in groups[:-1]])
        pool = groups[found if found is not None else -1]
    yield from ((each.instances[0], each) for each in pool)
