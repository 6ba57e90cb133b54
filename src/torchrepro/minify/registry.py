"""The passes, in the order in which they run, and the search: to add a pass, write a function and a row.

How to write a pass
-------------------
A pass is a function of a `Problem` (`minify/problem.py`) that returns nothing.

What it may assume. `problem.best` fails as the original does, and `problem.best_verdict` is its verdict. It
is a graph, not a whole call of the user's code, unless the row says `calls=True`. A pass may run at any
time and any number of times, after any other passes, so it starts from the current `problem.best`. It never
runs a model or a compiler: the values inside the best are in `problem.recording()`, shapes
come from fake tensors (`state/fake_run.py`). A repro is frozen: a candidate is a new one, built with the
functions in `edit/` and `cut/`.

How it queries. `problem.leave_out(items, without)` where parts can be removed independently: it finds the
fewest that must stay. `problem.minimise(items, build)` is the same for candidates built from what is kept.
`problem.accept_first(candidates)` for guesses, boldest first. `problem.fails(candidate)` does not adopt.
Candidates that are known or cannot run cost nothing; `None` stands for one that cannot be built. Make several
queries at a time (`problem.workers`), and as few as possible: a query is a compilation, of seconds.

How it adopts. `accept`, `accept_first`, `minimise` and `leave_out` make a candidate the best if it fails in
the same way and is smaller. Afterwards `problem.best` is another object: what was derived from the former
best (tables, names of nodes) is stale. Every query may raise `SearchStopped`; a pass needs no clean-up.

What "smaller" means. `size_of` in `minify/problem.py`: fewer ops, then inputs, elements, settings, then
shorter text, plainer arguments and values. A pass whose candidates are larger at first searches in a separate
problem (`problem.search_in`).

Importing this table imports no pass and no torch: `--list-passes` and the error for a wrong name are fast.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.nouns.errors import SearchStopped, TorchReproError

if TYPE_CHECKING:
    from torchrepro.minify.problem import Problem


@dataclass(frozen=True, slots=True)
class Pass:
    """A way to make a repro smaller: `run` queries candidates and adopts those that fail."""

    name: str
    function: str
    """`module:function` in `torchrepro.minify.passes`."""
    description: str
    once: bool = False
    """A guess that saves work at the start; the others are repeated until none of them finds anything."""
    calls: bool = False
    """Run also while the best is a whole call of the user's code, not yet a graph."""

    def run(self, problem: Problem) -> None:
        if problem.best_size.code and not self.calls:
            return
        job_named(f"torchrepro.minify.passes.{self.function}")(problem)


_PASSES = (
    Pass(
        "captured",
        "captured:take_captured",
        "a captured graph in the place of the user's code",
        once=True,
        calls=True,
    ),
    Pass(
        "windows", "windows:single_windows", "find the op that fails by itself on recorded values", once=True
    ),
    Pass("dynamic", "settings:make_static", "dynamic dimensions to numbers", calls=True),
    Pass("nested", "nested:open_nested", "do without higher-order ops, shrink the graphs of the others"),
    Pass("nodes", "nodes:cut_nodes", "cut ops out; what they computed becomes an input"),
    Pass("lists", "lists:shorten_lists", "lists of operands as short as they can be"),
    Pass("duplicates", "duplicates:merge_duplicates", "equal ops on equal operands become one"),
    Pass("bypass", "bypass:pass_ops_by", "leave ops out; what they read takes their place"),
    Pass("composites", "nested:open_composites", "look inside ops that are made of others"),
    Pass("outputs", "multi_output:drop_outputs", "return only what shows the failure"),
    Pass("results", "multi_output:single_results", "ops with several results of which one is used"),
    Pass("tensors", "values:ordinary_tensors", "ordinary tensors instead of subclasses and sparse ones"),
    Pass(
        "simplest",
        "simplest:guess_simplest",
        "sizes, values and settings, all as plain as can be",
        once=True,
        calls=True,
    ),
    Pass("sequence", "settings:shorten_sequence", "earlier calls that are not needed", calls=True),
    Pass(
        "ambient",
        "settings:reset_ambient",
        "modes, configs and environment back to default",
        calls=True,
    ),
    Pass("compiler", "settings:reset_compiler", "options of the compiler back to default", calls=True),
    Pass("shapes", "shapes:shrink_dimensions", "the smallest sizes that still fail", calls=True),
    Pass(
        "values",
        "values:plain_values",
        "zeros, ones, a constant where the values do not matter",
        calls=True,
    ),
    Pass("dtypes", "values:usual_dtypes", "float32 and int64 where the dtype does not matter", calls=True),
    Pass("arguments", "arguments:plainer_arguments", "arguments left out, or plainer"),
)


def passes() -> tuple[Pass, ...]:
    """Return every pass, in order."""
    return _PASSES


def chosen_passes(only: Iterable[str] = (), without: Iterable[str] = ()) -> tuple[Pass, ...]:
    """Return the passes to run, by name; raise an error that suggests a name for an unknown one."""
    known = {row.name: row for row in _PASSES}
    for name in (*only, *without):
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise TorchReproError(f"no pass is called {name!r}", next_step=hint)
    wanted = set(only) or set(known)
    return tuple(row for row in known.values() if row.name in wanted and row.name not in set(without))


def search(problem: Problem, passes: Sequence[Pass]) -> str:
    """Run all passes, then all but the guesses until none of them makes the repro smaller.

    Return why the search stopped before that; empty if it did not.
    """
    try:
        _run(problem, passes)
        problem.confirm()
        # Smaller inputs can make an op superfluous and the other way round. Known verdicts cost nothing.
        repeated = [row for row in passes if not row.once]
        before = None
        while problem.best is not before:
            before = problem.best
            _run(problem, repeated)
    except SearchStopped as stop:
        return str(stop)  # the best so far is kept
    return ""


def _run(problem: Problem, passes: Sequence[Pass]) -> None:
    for row in passes:
        before = problem.queries.asked
        with problem.running(row.name):
            row.run(problem)
        if not row.once and problem.queries.asked > before:
            problem.confirm()  # queries after the guesses have found nothing smaller either
