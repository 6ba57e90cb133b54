"""The probes, in the order in which they are asked: to add one, write a function and a row.

How to write a probe
--------------------
A probe is a function of a `ProbeContext` (`context.py`) that returns a `Finding`. It runs in a process of its
own, inside the settings of the repro, and may crash or hang it.

What it compares. Never by a comparison of its own: `context.judge(subject)` is the judge with its float64
truth, its rule and its explanation by rounding. `artefact.subject(inputs)` is a compiled repro on inputs,
next to eager on the same inputs. First judge the repro as it is (`context.judge_baseline`): what fails there
is an ordinary failure, and its verdict is returned as it is. Then hand the variations to `context.try_each`:
it takes the first that fails, keeps the evidence, and gives the verdict the probe's kind. What eager cannot
do either is skipped, so a variation may be a guess.

What may alarm. Only what no user would accept: a healthy model must pass, on every machine. Where eager shows
the same difference, the compiler is not to blame. Where the question does not apply, return
`context.not_asked(reason)`, and not a pass.

Names. A trial has a name that holds for smaller versions of the repro too, because the bundle of a failure
asks for that trial alone (`Probe.tries`), and `minify` judges every candidate by it.

Importing this table imports no probe and no torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind

if TYPE_CHECKING:
    from torchrepro.execute.probes.context import Finding, ProbeContext


@dataclass(frozen=True, slots=True)
class Row:
    """A probe: what it asks, and the function that does."""

    kind: Kind
    function: str
    """`module:function` in `torchrepro.execute.probes`."""
    description: str

    def run(self, context: ProbeContext) -> Finding:
        found: Finding = resolve_name(f"{__package__}.{self.function}")(context)
        return found


ROWS = (
    Row(Kind.SIZES, "sizes:probe_sizes", "one dynamic artefact on many sizes within its guards"),
    Row(Kind.REPEAT, "repeat:probe_repeat", "the same call of one artefact, again and again: the same bits"),
    Row(Kind.RECOMPILE, "recompile:probe_recompile", "compiled again, and with other choices"),
    Row(Kind.BATCH, "batch:probe_batch", "a row alone, where rows do not depend on one another"),
    Row(Kind.CACHE, "cache:probe_cache", "from a cold and from a warm compile cache"),
    Row(Kind.HOLD, "hold:probe_hold", "results that are kept while later calls run"),
    Row(Kind.THREADS, "threads:probe_threads", "one thread, and several"),
    Row(Kind.SLOW, "slow:probe_slow", "the time of a call, against eager or another compiler"),
    Row(Kind.FAT, "fat:probe_fat", "the most memory that a call takes, against eager or another compiler"),
    Row(Kind.SLOW_COMPILE, "slow_compile:probe_slow_compile", "the work of compiling, against tracing alone"),
)


def row_of(kind: Kind) -> Row:
    return next(row for row in ROWS if row.kind is kind)


def chosen_rows(names: Iterable[str] = ()) -> tuple[Row, ...]:
    """Return the probes of these names, all if none is named; an error suggests a name for a wrong one."""
    known = {row.kind.value: row for row in ROWS}
    wanted = set(names)
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise TorchReproError(f"no probe is called {name!r}", next_step=hint)
    return tuple(row for name, row in known.items() if not wanted or name in wanted)
