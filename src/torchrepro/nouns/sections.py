"""Results as sections: a title and parts (facts, a table, code, lines), built once for every format.

A format only decides how a part looks: `report/text.py` for a terminal, `report/markdown.py`, and `html` here
for a notebook. The nouns import this when they are shown, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import TYPE_CHECKING, Any

from torchrepro.nouns.verdict import Kind, Stage

if TYPE_CHECKING:
    from torchrepro.nouns.contracts import OperatorChecks, Violation
    from torchrepro.nouns.results import Explanation, Located, Minified
    from torchrepro.nouns.verdict import Comparison, LeafComparison, Verdict

_LONGEST_CELL = 2000
"""Characters in a notebook: the message of a C++ compiler can have a million."""


class Tone(StrEnum):
    """What a title says, in the words of rich."""

    PLAIN = "bold"
    GOOD = "bold green"
    BAD = "bold red"
    WARNING = "bold yellow"


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values. A row without a name continues the one before."""

    rows: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, rows: Iterable[tuple[str, object]]) -> Facts:
        """Leave out the rows that have no value."""
        return cls(tuple((name, str(value)) for name, value in rows if str(value).strip()))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the culprit's are marked, and `more` says what is not shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: frozenset[int] = frozenset()
    more: str = ""
    needed: int = 0
    """Columns that are shown where not all fit; 0: each row becomes a sentence there."""

    @classmethod
    def of(
        cls,
        head: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        limit: int = 12,
        marked: Iterable[int] = (),
    ) -> Table:
        """Leave out columns that are empty, and rows beyond the limit."""
        cells = [tuple("" if cell is None else str(cell) for cell in row) for row in rows]
        kept = [column for column in range(len(head)) if any(row[column] for row in cells)]
        shown = tuple(tuple(row[column] for column in kept) for row in cells[:limit])
        more = f"and {len(cells) - limit:,} more" if len(cells) > limit else ""
        return cls(tuple(head[column] for column in kept), shown, frozenset(marked), more)


@dataclass(frozen=True, slots=True)
class Code:
    """A program, or a log (`text`), of which some formats show only the end."""

    text: str
    language: str = "text"
    title: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, a paragraph or a bullet each."""

    lines: tuple[str, ...]
    label: str = ""
    """Before each: `note`, `next`."""


Part = Facts | Table | Code | Lines


@dataclass(frozen=True, slots=True)
class Section:
    """A title and what is shown below it; parts that are empty are not shown."""

    title: str
    parts: tuple[Part, ...]
    tone: Tone = Tone.PLAIN


def notes(lines: Iterable[str]) -> Lines:
    return Lines(tuple(line for line in lines if line), "note")


def counted(number: int, word: str) -> str:
    """Write `1 op`, `1,204 ops`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def error(value: float | None, unknown: str = "–") -> str:
    """Write an error as `3.2e-05`; a dash where it is unknown."""
    if value is None:
        return unknown
    return "0" if value == 0 else f"{value:.2g}"


def index_of(leaf: LeafComparison) -> str:
    """Write ` at index (0, 5)`; empty if there is no worst element."""
    return f" at index ({', '.join(map(str, leaf.index))})" if leaf.index else ""


def of_verdict(verdict: Verdict, facts: Iterable[tuple[str, object]] = (), *, limit: int = 8) -> Section:
    """Show the kind and the sentence first, then the evidence."""
    known = {
        "stage": verdict.stage.value if verdict.stage is not Stage.NONE else "",
        "raised": verdict.raised or "",
        "signal": verdict.signal,
        **dict(facts),
        "seconds": f"{verdict.seconds:.1f}" if verdict.seconds else "",
    }
    died = verdict.kind in (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
    log = Code(verdict.stderr_tail.strip() if died else "", title="last output of the process")
    tone = Tone.BAD if verdict.fails else Tone.GOOD if verdict.kind is Kind.PASS else Tone.WARNING
    values = (values_table(verdict.comparison, limit=limit),) if verdict.comparison is not None else ()
    return Section(str(verdict), (Facts.of(known.items()), *values, log, notes(verdict.notes)), tone)


def of_comparison(comparison: Comparison) -> Section:
    return Section(str(comparison), (values_table(comparison, limit=12), notes(comparison.notes)))


def values_table(comparison: Comparison, *, limit: int) -> Table:
    """Show the values that differ, and those for which a side is blamed, worst first."""
    rows = [
        {
            "where": (leaf.path or "the value") + index_of(leaf),
            "wrong": f"{leaf.mismatched:,} of {leaf.elements:,}" if leaf.mismatched else "",
            "": _how(leaf),
            "eager": leaf.ref_value,
            "compiled": leaf.res_value,
            "float64": leaf.truth_value,
            "max abs": error(leaf.max_abs, ""),
            "max rel": error(leaf.max_rel, ""),
            "RMSE eager": error(leaf.rmse_ref, ""),
            "RMSE compiled": error(leaf.rmse_res, ""),
        }
        for leaf in comparison.telling
    ]
    return Table.of(tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows], limit=limit)


def _how(leaf: LeafComparison) -> str:
    if leaf.same:
        return f"blamed: {leaf.blamed.value}"
    return "" if leaf.mismatched else leaf.detail or leaf.difference.value


def of_minified(minified: Minified, *, stats: bool = False) -> Section:
    """Show what became smaller, what it cost and what matters."""
    if minified.minimal:
        title, tone = "minimal: fails in a fresh process, and nothing can be taken away", Tone.GOOD
    elif not minified.reproduces:
        title, tone = "not verified: the script does not fail in a fresh process", Tone.BAD
    else:
        reason = f"stopped early: {minified.stopped}"
        title, tone = f"{reason}; fails in a fresh process, may not be minimal", Tone.WARNING
    names = ("ops", "inputs", "elements")
    sizes = Table.of(
        ("size", "before", "after"),
        ((name, f"{getattr(minified, f'start_{name}'):,}", f"{getattr(minified, name):,}") for name in names),
    )
    facts = [
        ("signature", minified.signature),
        ("queries", f"{minified.queries} in {minified.seconds:.1f} s"),
        ("script", minified.script),
        *(("also seen", f"{other.signature}: {other.bundle}") for other in minified.also_seen),
    ]
    passes = Table.of(
        ("pass", "queries", "known", "rejected", "adopted", "seconds"),
        (
            (row.name, row.queries, row.known, row.rejected, row.adopted, f"{row.seconds:.1f}")
            for row in (minified.passes if stats else ())
        ),
        limit=100,
    )
    return Section(
        title, (sizes, Facts.of(facts), passes, Lines(minified.explained), notes(minified.notes)), tone
    )


def of_located(located: Located, *, sentence: bool = False) -> Section:
    """Show the culprit, the workaround, the evidence, and what it cost."""
    from torchrepro.nouns.sentences import STAGES, culprit_of

    if located.blamed:
        title, tone = f"blamed: {located.blamed}, not the compiler", Tone.GOOD
    elif located.found:
        title, tone = f"the failing stage is {STAGES[located.stage]}", Tone.GOOD
    elif located.kind is Kind.PASS:
        title, tone = "no culprit: it does not fail here", Tone.WARNING
    else:
        title, tone = "the culprit is unknown", Tone.WARNING
    said = Lines((culprit_of(located),) if sentence else ())
    return Section(
        title, (said, Facts.of(culprit_facts(located)), ladder_table(located), notes(located.notes)), tone
    )


def culprit_facts(located: Located) -> Iterator[tuple[str, object]]:
    """Yield what was found, a name and a value each."""
    from torchrepro.nouns.sentences import WAYS

    if located.stopped:
        yield "stopped", f"{located.stopped}; the search is incomplete, the same command searches again"
    yield from violation_facts(located.violations)
    if located.part is not None:
        yield located.part.kind, located.part.name
        yield "", located.part.detail
    if located.graph is not None:
        begins = f"; begins at {located.graph.source}" if located.graph.source else ""
        name = located.graph.name or f"{located.graph.number + 1} of {located.graph.count}"
        yield "graph", f"{name}{begins}"
    op = located.op
    if op is not None:
        yield "op", f"{op.op} (node {op.node})"
        yield "", WAYS[op.way]
        yield "module", op.module
        yield "source", op.source
        if op.compiled_error is not None:
            eager = "unknown" if op.eager_error is None else error(op.eager_error)
            yield "error", f"{error(op.compiled_error)} compiled, {eager} in eager, against float64"
    if located.sensitivity is not None:
        yield "sensitivity", located.sensitivity.words
    if located.birth is not None:
        eager, compiled = (side or "nowhere" for side in (located.birth.eager, located.birth.compiled))
        yield "first NaN", f"or Inf: {compiled} compiled, {eager} in eager"
    if located.workaround is not None and located.workaround.code:
        yield "workaround", located.workaround.code
        yield "", "verified: the failure goes away" if located.workaround.verified else "not verified"
    if located.kernel is not None:
        where = f", in {located.kernel.file}" if located.kernel.file else ""
        yield "kernel", f"{located.kernel.name} ({located.kernel.language}{where})"
    if located.found:
        yield "confidence", located.confidence.value
    if located.compiles:
        yield "cost", f"{located.compiles} compiles in {located.seconds:.1f} s"


def of_operators(checks: OperatorChecks) -> Section:
    """Show the custom operators that were called, and what they promise and do not do."""
    called = ", ".join(checks.operators)
    if not checks.operators:
        return Section("no custom operator is called", ())
    if not checks.violations:
        return Section(f"the custom operators do what they declare: {called}", (), Tone.GOOD)
    broken = dict.fromkeys(one.op for one in checks.violations)
    title = f"{counted(len(broken), 'custom operator')} of {len(checks.operators)} breaks its contract"
    return Section(title, (Facts.of(violation_facts(checks.violations)),), Tone.BAD)


def violation_facts(violations: Iterable[Violation]) -> Iterator[tuple[str, object]]:
    """Yield what custom operators declare and do not do, where they are registered, and what they should."""
    for one in violations:
        yield "operator", f"{one.op} breaks its contract ({one.contract.value})"
        yield "declared", f"{one.subject}: {one.declared}"
        yield "seen", one.seen
        yield "registered", one.registered
        yield "called", one.source
        yield "remedy", one.remedy


def ladder_table(located: Located) -> Table:
    """Show what each backend does, from eager to the compiler; the failing stage is marked."""
    rows = [(rung.backend, rung.stage.value, rung.kind.value, rung.summary) for rung in located.rungs]
    failing = (
        place for place, rung in enumerate(located.rungs) if rung.fails and rung.stage is located.stage
    )
    return Table.of(("backend", "stage", "verdict", "what was seen"), rows, marked=failing)


def of_explanation(explanation: Explanation) -> Section:
    """Show what was varied, whether the failure went away, and the nearest repro that passes."""
    rows = (
        (fact.sentence, "yes" if fact.matters else "no", ", ".join(fact.failing), ", ".join(fact.passing))
        for fact in explanation.facts
    )
    near = explanation.neighbour
    passes = (Code(near.diff, "diff", f"passes: {near.description}"),) if near is not None else ()
    title = f"{len(explanation.facts)} factors were varied in {explanation.queries} queries"
    table = Table.of(("factor", "matters", "fails with", "passes with"), rows)
    return Section(title, (table, *passes, notes(explanation.notes)))


def html(section: Section) -> str:
    """Show a section in a notebook: without style of our own, so that light and dark both read well."""
    parts = "".join(map(_html_part, section.parts))
    return f"<div><p><strong>{_text(section.title)}</strong></p>{parts}</div>"


def _html_part(part: Part) -> str:
    match part:
        case Facts(rows=rows) if rows:
            body = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
            return f"<table><tbody>{body}</tbody></table>"
        case Table(head=head, rows=rows, more=more) if rows:
            titles = "".join(f"<th>{_text(title)}</th>" for title in head)
            body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
            last = f'<tr><td colspan="{len(head)}">{_text(more)}</td></tr>' if more else ""
            return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}{last}</tbody></table>"
        case Code(text=text, title=title) if text:
            body = f"<pre>{_text(text, limit=20_000)}</pre>"
            return f"<details open><summary>{_text(title)}</summary>{body}</details>"
        case Lines(lines=lines) if lines:
            return f"<ul>{''.join(f'<li>{_text(line)}</li>' for line in lines)}</ul>"
    return ""


def _text(value: str, *, limit: int = _LONGEST_CELL) -> str:
    return escape(value if len(value) <= limit else f"{value[:limit]} ...")
