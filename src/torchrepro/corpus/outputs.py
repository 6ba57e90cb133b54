"""The findings of a run for a terminal, for machines and for CI; one set of data for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TextIO
from xml.sax.saxutils import escape, quoteattr

from torchrepro.corpus.findings import Counted, Finding, State, Summary
from torchrepro.nouns import __version__
from torchrepro.nouns.errors import on_one_line, visible
from torchrepro.nouns.sections import Facts, Section, Table, Tone, counted, notes
from torchrepro.report.markdown import code, table_of

Findings = Callable[[], Iterator[Finding]]
"""Yields the findings from the start, each time that it is called: they are not held in memory."""
ISOLATION = "each replay in a fresh process with fresh compile caches"
_ROWS = 30
_ANNOTATIONS = 10
"""GitHub shows so many of a step."""


def worst_first(findings: Findings) -> Iterator[Finding]:
    """Yield each finding, state by state: so not all of them are in memory."""
    return (finding for state in State for finding in findings() if finding.state is state)


def section_of(summary: Summary, buckets: Iterable[Counted]) -> Section:
    """Return a run as a section: the counts, then a row for each bucket and state, worst first."""
    shown = [f"{summary.states[state]} {summary.words[state]}" for state in State if state in summary.states]
    facts: list[tuple[str, object]] = [
        (name, str(each))
        for name, each in zip(
            ("torch",) if len(summary.interpreters) == 1 else ("baseline", "candidate"),
            summary.interpreters,
            strict=True,
        )
    ]
    not_run = f"; {counted(summary.not_run, 'outcome')} kept, because the generated code is the same"
    facts.append(("shard", summary.shard))
    facts.append(("replays", f"{summary.replays}, {ISOLATION}{not_run if summary.not_run else ''}"))
    facts.append(("seconds", f"{summary.seconds:.1f}" if summary.seconds >= 0.1 else ""))
    rows = [
        (summary.words[row.state], str(row.count), row.bucket, row.example, row.signature) for row in buckets
    ]
    table = Table.of(("state", "bundles", "bucket", "for example", "signature"), rows, limit=_ROWS)
    bad = any(summary.states.get(state) for state in (State.REGRESSED, State.FAILS_OTHERWISE))
    unclear = any(summary.states.get(state) for state in (State.CANNOT_RUN, State.FLAKY))
    tone = Tone.BAD if bad else Tone.WARNING if unclear else Tone.GOOD
    title = f"{counted(summary.total, 'bundle')}: {', '.join(shown) or 'nothing was replayed'}"
    return Section(title, (Facts.of(facts), table, notes(summary.notes)), tone)


def write_json(file: TextIO, summary: Summary, buckets: Iterable[Counted], findings: Findings) -> None:
    """Write all as one JSON object, finding by finding."""
    head = {
        "format": 1,
        "torchrepro": __version__,
        "corpus": summary.corpus,
        "interpreters": [{**asdict(each), "python": str(each.python)} for each in summary.interpreters],
        "isolation": ISOLATION,
        "states": {state.value: count for state, count in summary.states.items()},
        "replays": summary.replays,
        "not_run": summary.not_run,
        "seconds": round(summary.seconds, 3),
        "shard": summary.shard,
        "notes": list(summary.notes),
        "buckets": [asdict(row) for row in buckets],
    }
    file.write(json.dumps(head)[:-1] + ', "findings": [')
    for number, finding in enumerate(findings()):
        data = {**asdict(finding), "detail": finding.detail}
        file.write((", " if number else "") + json.dumps(data))
    file.write("]}\n")


def write_junit(file: TextIO, summary: Summary, findings: Findings) -> None:
    """Write XML of JUnit: the bucket of a bundle is a property, its signature the type of the failure."""
    failures = sum(finding.state.fails and not finding.accepted for finding in findings())
    errors = summary.states.get(State.CANNOT_RUN, 0)
    file.write('<?xml version="1.0" encoding="utf-8"?>\n')
    counts = f'tests="{summary.total}" failures="{failures}" errors="{errors}" time="{summary.seconds:.3f}"'
    file.write(f'<testsuites>\n<testsuite name="torchrepro corpus" {counts}>\n')
    for finding in findings():
        seconds = sum(outcome.seconds for outcome in finding.outcomes)
        file.write(
            f"<testcase classname={_attribute(finding.bucket)} "
            f"name={_attribute(f'{finding.name} [{finding.id}]')} "
            f'time="{seconds:.3f}">\n<properties><property name="bucket" '
            f"value={_attribute(finding.bucket)}/></properties>\n"
        )
        message = f"{summary.words[finding.state]}{': ' if finding.detail else ''}{finding.detail}"
        body = escape(_text(f"{message}\nrecorded: {finding.recorded}\nnow: {finding.signature}"))
        if finding.state is State.CANNOT_RUN:
            file.write(f'<error type="cannot run" message={_attribute(message)}>{body}</error>\n')
        elif finding.state.fails and finding.accepted:
            file.write(f"<skipped message={_attribute(f'accepted by the baseline: {message}')}/>\n")
        elif finding.state.fails:
            kind = _attribute(finding.signature)
            file.write(f"<failure type={kind} message={_attribute(message)}>{body}</failure>\n")
        file.write("</testcase>\n")
    file.write("</testsuite>\n</testsuites>\n")


def _text(text: str) -> str:
    """Return text with the characters alone that XML allows."""
    return "".join(
        "\ufffd" if "\ud800" <= each <= "\udfff" or each in "\ufffe\uffff" else each for each in visible(text)
    )


def _attribute(text: str) -> str:
    return quoteattr(" ".join(_text(text).split()))


def write_github(
    summary: Summary, buckets: list[Counted], findings: Findings, file: TextIO, environ: Mapping[str, str]
) -> None:
    """Append to the summary of the step, and print an annotation for each of the worst buckets."""
    section = section_of(summary, buckets)
    lines = [f"### torchrepro corpus: {section.title}", ""]
    lines += [f"- {each}" for each in map(str, summary.interpreters)]
    lines += [f"- {summary.replays} replays, {ISOLATION}", ""]
    lines += [table_of(part) for part in section.parts if isinstance(part, Table) and part.rows]
    lines += ["", *(f"- {code(note)}" for note in summary.notes)]
    target = environ.get("GITHUB_STEP_SUMMARY", "")
    if target:
        with open(target, "a", encoding="utf-8", errors="replace") as summary_file:
            summary_file.write("\n".join(lines) + "\n")
    news: dict[tuple[State, str], tuple[Finding, int]] = {}
    for finding in worst_first(findings):
        told = finding.state in (State.REGRESSED, State.FAILS_OTHERWISE, State.CANNOT_RUN)
        if not finding.accepted and (told or finding.expired):
            first, count = news.get((finding.state, finding.bucket), (finding, 0))
            news[finding.state, finding.bucket] = first, count + 1
    order = list(State)
    rows = sorted(news.values(), key=lambda row: (order.index(row[0].state), -row[1]))
    for finding, count in rows[:_ANNOTATIONS]:
        level = "warning" if finding.state is State.CANNOT_RUN else "error"
        more = f" and {count - 1} more" if count > 1 else ""
        title = f"{summary.words[finding.state]}: {finding.name}{more}"
        expired = f", its entry in the baseline expired on {finding.expired}" if finding.expired else ""
        seen = " ".join(filter(None, (finding.signature, finding.detail)))
        message = f"{seen}{expired} (bucket {finding.bucket}, bundle {finding.id})"
        file.write(f"::{level} title={_command(title, ',:')}::{_command(message)}\n")


def _command(text: str, more: str = "") -> str:
    """Return text for a workflow command, which it cannot end."""
    text = on_one_line(text).replace("%", "%25")
    for character in more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
