"""The baseline file: what a team has accepted, as sorted text, a line a bundle, to be reviewed like code.

    # id state commit issue expires signature
    4f0c9a1e77aa01b2c3d4 still-fails 449b1768 https://example.org/1 2026-12-31 mismatch | backend

A field without a value is a dash. What is improved is written by `--update`; what became worse only by
`--update-all`, so that a regression is never accepted by accident.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchrepro.bundle.archive import written_in_one_step
from torchrepro.bundle.read import read_small_file
from torchrepro.corpus.findings import Finding, State
from torchrepro.nouns.errors import TorchReproError, on_one_line

_HEAD = "# torchrepro baseline 1: id state commit issue expires signature\n"
_NONE = "-"
_LARGEST = 64 << 20
_COMMIT = 12
_GOOD = (State.PASSES, State.FIXED, State.BASELINE_ONLY)
_UNKNOWN = (State.CANNOT_RUN, State.FLAKY)


@dataclass(frozen=True, slots=True)
class Accepted:
    """A line of the file."""

    id: str
    state: State
    commit: str = ""
    issue: str = ""
    expires: str = ""
    """`2026-12-31`, the last day on which it counts."""
    signature: str = ""

    def __str__(self) -> str:
        words = (self.id, self.state.value, self.commit, self.issue, self.expires, self.signature)
        return " ".join(on_one_line(word) or _NONE for word in words)


def read_baseline(path: Path) -> dict[str, Accepted]:
    """Return the lines of a baseline file by the id of the bundle; a missing file has none."""
    try:
        text = read_small_file(path, _LARGEST).decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise TorchReproError(
            f"cannot read the baseline {path}: {getattr(exc, 'strerror', exc)}",
            next_step="name another with --baseline FILE",
        ) from exc
    lines = enumerate(text.splitlines(), start=1)
    found = [_parsed(line, f"{path}:{number}") for number, line in lines if line.strip() and line[0] != "#"]
    return {accepted.id: accepted for accepted in found}


def _parsed(line: str, where: str) -> Accepted:
    words = line.split(maxsplit=5)
    words += [_NONE] * (6 - len(words))
    identity, state, *others = ("" if word == _NONE else word for word in words)
    try:
        commit, issue, expires, signature = others
        if expires:
            datetime.date.fromisoformat(expires)
        return Accepted(identity, State(state), commit, issue, expires, signature)
    except ValueError as exc:
        raise TorchReproError(
            f"{where} is no line of a baseline ({exc})",
            next_step="write: ID STATE COMMIT ISSUE EXPIRES SIGNATURE, with a dash for what is unknown",
        ) from exc


def compare(finding: Finding, accepted: Accepted | None, today: datetime.date) -> Finding:
    """Return a finding as the baseline sees it: regressed, accepted, or with an entry that has expired."""
    if accepted is None:
        return finding
    state = finding.state
    if accepted.state in _GOOD and state in (State.STILL_FAILS, State.FAILS_OTHERWISE):
        state = State.REGRESSED
    elif accepted.state is State.STILL_FAILS and state is State.STILL_FAILS:
        same = accepted.signature in ("", on_one_line(finding.signature))
        state = state if same else State.FAILS_OTHERWISE
    expired = bool(accepted.expires) and datetime.date.fromisoformat(accepted.expires) < today
    return replace(
        finding,
        state=state,
        issue=accepted.issue,
        accepted=not expired and state is accepted.state and state is not State.CANNOT_RUN,
        expired=accepted.expires if expired else "",
    )


def updated(
    baseline: Mapping[str, Accepted], findings: Iterable[Finding], commit: str, *, everything: bool
) -> Iterator[Accepted]:
    """Yield the lines of a new file, sorted: improvements alone, and with `everything` also what is worse.

    A bundle that has no line yet is new and gets one only with `everything`, unless it passes. What could not
    run, or is flaky, leaves its line as it is. Issues stay; an expiry stays until the state changes.
    """
    lines = dict(baseline)
    for finding in findings:
        former = baseline.get(finding.id)
        if finding.state in _UNKNOWN and not (everything and finding.state is State.FLAKY):
            continue
        state = (
            State.STILL_FAILS if finding.state.fails and finding.state is not State.FLAKY else finding.state
        )
        improved = state in _GOOD and (former is None or former.state not in _GOOD)
        if not improved and not everything:
            continue
        signature = on_one_line(finding.signature)
        if former is not None and (former.state, former.signature) == (state, signature):
            continue
        issue, expires = (former.issue, "") if former is not None else ("", "")
        lines[finding.id] = Accepted(finding.id, state, commit[:_COMMIT], issue, expires, signature)
    yield from sorted(lines.values(), key=lambda line: line.id)


def write_baseline(path: Path, lines: Iterable[Accepted]) -> None:
    """Write a baseline file in one step."""
    with written_in_one_step(path) as file:
        file.write(_HEAD)
        file.writelines(f"{line}\n" for line in lines)
