"""Choose what to run next, and find where the state changes.

A history need not be monotone: a failure may come, go and come back. So a run starts with both ends of the
series and the setting in which the failure was recorded, and divides every interval between two different
states until they are adjacent. While all known states are the same, everything else is run too: "no change"
is said only of a series that was run completely. A setting that cannot run tells nothing; its neighbours are
tried in its place, as `git bisect skip` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

States = Mapping[int, str | None]
"""What is known, by place in the series: a word for the state, None where it cannot run."""


@dataclass(frozen=True, slots=True)
class Change:
    """Two neighbours that ran, with different states; those between them could not run."""

    before: int
    after: int


def next_places(
    states: States,
    length: int,
    *,
    running: Collection[int] = (),
    first: Collection[int] = (),
    every: bool = False,
) -> Iterator[int]:
    """Yield the places to run next, the most telling first; none: the search is over.

    `first` are run in any case, as both ends are; with `every` so are all.
    """
    open_places = [place for place in range(length) if place not in states and place not in running]
    taken = {*states, *running}
    yielded: set[int] = set()

    def pick(candidates: list[int]) -> Iterator[int]:
        """Yield candidates, each as far as possible from all that are known, running or yielded."""
        left = [place for place in candidates if place not in yielded]
        while left:
            chosen = max(
                left, key=lambda place: (min((abs(place - one) for one in taken), default=0), -place)
            )
            left.remove(chosen)
            taken.add(chosen)
            yielded.add(chosen)
            yield chosen

    wanted = [place for place in (0, length - 1, *first) if place in open_places]
    yield from pick(list(dict.fromkeys(wanted)))
    if not every and any(place in running for place in (0, length - 1, *first)):
        return  # their states decide what is worth an environment
    ran = sorted(place for place, state in states.items() if state is not None)
    if every:
        yield from pick(open_places)
    elif ran:
        # An end that cannot run: the outermost that can takes its place.
        left_open = [place for place in open_places if place < ran[0]]
        right_open = [place for place in open_places if place > ran[-1]]
        yield from pick([*left_open[:1], *right_open[-1:]])
        inside = [
            place
            for change in changes_in(states)
            for place in open_places
            if change.before < place < change.after
        ]
        yield from pick(inside)
        if not changes_in(states):
            yield from pick(open_places)
    else:
        yield from pick(open_places)


def changes_in(states: States) -> list[Change]:
    """Return the neighbours among those that ran whose states differ."""
    ran = sorted(place for place, state in states.items() if state is not None)
    pairs = pairwise(ran)
    return [Change(before, after) for before, after in pairs if states[before] != states[after]]
