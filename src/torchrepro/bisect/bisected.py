"""The answer of `bisect` as data, and as a section that every format can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torchrepro.nouns.sections import Code, Facts, Lines, Part, Section, Table, Tone, notes

_COMPARE = "https://github.com/pytorch/pytorch/compare"
_SHOWN_LINES = 40


class State(StrEnum):
    """What became of the failure under a setting."""

    PASSES = "passes"
    SAME = "same failure"
    OTHER = "another failure"
    FLAKY = "flaky"
    """Two runs differ."""
    CANNOT_RUN = "cannot run"
    NOT_RUN = "not run"
    """It lies between two settings of the same state, or the run was stopped before."""

    @property
    def is_bad(self) -> bool:
        return self in (State.SAME, State.OTHER, State.FLAKY)


@dataclass(frozen=True, slots=True)
class Row:
    """A setting and what was seen under it."""

    setting: str
    state: State
    runs: int = 0
    signature: str = ""
    seen: str = ""
    torch: str = ""
    commit: str = ""
    python: str = ""
    seconds: float = 0.0
    made_in: float = 0.0
    megabytes: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """Two neighbours of different states, each seen twice, and how the generated code differs."""

    before: Row
    after: Row
    between: tuple[str, ...] = ()
    """Settings between the two that cannot run: the change may be at any of them."""
    confirmed: bool = True
    """Both were run twice with the same result; false for an interrupted run."""
    code: str = ""
    """The unified difference of the normalised generated code; empty if it is the same, or unknown."""
    about_code: str = ""
    """What to say of the code where there is no difference to show."""

    @property
    def sentence(self) -> str:
        """`2.14.0 broke it`, `2.14.0 fixed it`, `2.14.0 fails in another way`."""
        if not self.before.state.is_bad:
            verb = "broke it"
        elif not self.after.state.is_bad:
            verb = "fixed it"
        elif State.FLAKY in (self.before.state, self.after.state):
            verb = "changed how often it fails"
        else:
            verb = "fails in another way"
        one_of = (
            f"one of {', '.join((*self.between, self.after.setting))}" if self.between else self.after.setting
        )
        return f"{one_of} {verb}; {self.before.setting} {_verb(self.before.state)}"

    @property
    def commits(self) -> str:
        """Where the commits between the two are listed; empty where they are of the same commit."""
        first, last = self.before.commit, self.after.commit
        return f"{_COMPARE}/{first}...{last}" if first and last and first != last else ""


def _verb(state: State) -> str:
    words = {State.PASSES: "passes", State.SAME: "fails", State.OTHER: "fails in another way"}
    return words.get(state, "fails sometimes")


@dataclass(frozen=True, slots=True)
class Bisected:
    """Which settings pass and fail, and every change between neighbours that was found."""

    target: str
    axis: str
    rows: tuple[Row, ...]
    changes: tuple[Changed, ...]
    reference: str = ""
    """The signature of the failure that counts as the same."""
    stopped: str = ""
    directory: str = ""
    notes: tuple[str, ...] = ()

    @property
    def first_bad(self) -> Changed | None:
        """The newest change from a pass to a failure, the one that counts today."""
        broke = [one for one in self.changes if not one.before.state.is_bad and one.after.state.is_bad]
        return broke[-1] if broke else None

    @property
    def exit_code(self) -> int:
        """0 a change was found, 1 none, 125 nothing could run, 130 interrupted."""
        if self.stopped:
            return 130
        if not any(row.runs for row in self.rows if row.state is not State.CANNOT_RUN):
            return 125
        return 0 if self.changes else 1

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        found = asdict(self)
        for data, change in zip(found["changes"], self.changes, strict=True):
            data.update(sentence=change.sentence, commits=change.commits)
        first = self.first_bad
        return {
            **found,
            "last_good": asdict(first.before) if first else None,
            "first_bad": asdict(first.after) if first else None,
        }


def of_bisected(bisected: Bisected) -> Section:
    """Show what changed where, then each setting, then how the generated code differs."""
    first = bisected.first_bad or (bisected.changes[-1] if bisected.changes else None)
    if first is not None:
        named = first.after.setting.startswith(bisected.axis)  # a variable: `NAME=VALUE`
        title = first.sentence if named else f"{bisected.axis} {first.sentence}"
        tone = Tone.BAD if first.after.state.is_bad else Tone.GOOD
    else:
        title, tone = _no_change(bisected), Tone.WARNING
    facts: list[tuple[str, object]] = [("stopped", bisected.stopped), ("failure", bisected.reference)]
    if len(bisected.changes) > 1:
        facts += [("change", one.sentence) for one in bisected.changes]
    if any(not one.confirmed for one in bisected.changes):
        facts.append(("unconfirmed", "a side of a change was run once"))
    if first is not None:
        good, bad = ("last good", "first bad") if first is bisected.first_bad else ("before", "after")
        facts += [(good, _named(first.before)), (bad, _named(first.after)), ("commits", first.commits)]
    rows = [
        (
            row.setting,
            row.state.value,
            str(row.runs) if row.runs else "",
            row.commit[:10],
            f"{row.seconds:.0f}" if row.seconds else "",
            row.seen if row.state not in (State.PASSES, State.SAME) else "",
        )
        for row in bisected.rows
    ]
    marked = [number for number, row in enumerate(bisected.rows) if first and row == first.after]
    head = (bisected.axis, "state", "runs", "commit", "seconds", "what was seen")
    table = Table.of(head, rows, limit=len(rows), marked=marked)
    code = [part for one in bisected.changes for part in _code(one)]
    return Section(title, (Facts.of(facts), table, *code, notes(bisected.notes)), tone)


def _no_change(bisected: Bisected) -> str:
    ran = [row for row in bisected.rows if row.state not in (State.CANNOT_RUN, State.NOT_RUN)]
    if not ran:
        return "nothing could run" if not bisected.stopped else "stopped before anything ran"
    if bisected.stopped:
        return f"no change found so far: {ran[0].state.value} in {len(ran)} of {len(bisected.rows)}"
    unable = len(bisected.rows) - len(ran)
    return f"no change: {ran[0].state.value} in all {len(ran)}" + (f"; {unable} cannot run" if unable else "")


def _named(row: Row) -> str:
    commit = f", commit {row.commit}" if row.commit else ""
    return f"{row.setting} (torch {row.torch}{commit})" if row.torch else row.setting


def _code(change: Changed) -> Sequence[Part]:
    title = f"generated code, {change.before.setting} to {change.after.setting}"
    if not change.code:
        return (Facts.of([("code", f"{title}: {change.about_code}")]),)
    lines = change.code.splitlines()
    more = f"\n... {len(lines) - _SHOWN_LINES} more lines" if len(lines) > _SHOWN_LINES else ""
    return Lines((title,)), Code("\n".join(lines[:_SHOWN_LINES]) + more, "diff", title)
