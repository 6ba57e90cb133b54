"""The sections of a report in their order, for text and Markdown, and the tables of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchrepro.nouns.results import Adoption, Located
from torchrepro.nouns.sections import (
    Code,
    Facts,
    Lines,
    Section,
    Table,
    Tone,
    counted,
    culprit_facts,
    error,
    ladder_table,
    notes,
    values_table,
)
from torchrepro.report.contents import Contents, ErrorMap, Picture
from torchrepro.report.environments import lines_of, settings_lines
from torchrepro.report.evidence import section_of

_BARS = 24
_READABLE = 80
"""Maximum lines of a script that is not minimal: a longer one is only named in short formats."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a format shows."""

    rows: int
    nodes: int
    wide: bool
    """Show long scripts that are not minimal and generated kernels, but no bars of characters."""


def sections_of(contents: Contents, limits: Limits) -> Iterator[Section]:
    """Yield the sections of a report, the most important first."""
    verdict, located = contents.verdict, contents.located
    tone = Tone.BAD if verdict is not None and verdict.fails else Tone.GOOD
    yield Section(contents.sentence, (Facts((("bundle", contents.bundle),)),), tone)
    if contents.script:
        minimal = "the minimal script" if contents.script_is_minimal else "the script, not minimal"
        seen = "it fails in a fresh process" if contents.script_verified else "not verified"
        yield Section(f"{minimal} ({seen})", (_script(contents, limits), Lines(contents.explained_elsewhere)))
    if contents.trace:
        yield Section("generated code of the repro", (Facts((("attached", contents.trace),)),))
    if contents.evidence is not None:
        yield section_of(contents.evidence)
    if located is not None:
        facts = Facts.of(culprit_facts(located))
        yield Section("the culprit", (Lines((contents.guilt,)), facts, ladder_table(located)))
        if limits.wide and located.kernel is not None and located.kernel.source:
            language = "cpp" if located.kernel.language == "cpp" else "python"
            yield Section("generated code", (Code(located.kernel.source, language, located.kernel.name),))
    if verdict is not None and verdict.comparison is not None and verdict.comparison.differing:
        yield Section("values that differ", (values_table(verdict.comparison, limit=limits.rows),))
    if not limits.wide:
        yield from map(_histogram, contents.errors)
    if located is not None and located.growth:
        yield Section("error against float64, op by op", (growth_table(located, limits.rows),))
    for picture in (contents.minimal, contents.original):
        if picture is not None:
            yield _graph(picture, limits.nodes)
    if contents.steps:
        yield Section("how it became smaller", (steps_table(contents.steps, limits.rows),))
    printed = verdict.stderr_tail if verdict is not None else ""
    if contents.traceback.strip() or printed.strip():
        title = "traceback" if contents.traceback.strip() else "last output of the process"
        yield Section(title, (Code(contents.traceback.strip() or printed),))
    if contents.environment is not None:
        known = {**lines_of(contents.environment), **settings_lines(contents.settings)}
        yield Section("environment", (Facts.of(known.items()),))
    if contents.against:
        none = () if contents.differences else (Lines(("no difference",)),)
        yield Section(f"difference to {contents.against}", (differences_table(contents), *none))
    if contents.next_steps or contents.notes:
        yield Section("notes", (Lines(contents.next_steps, "next"), notes(contents.notes)))


def differences_table(contents: Contents) -> Table:
    rows = ((one.name, one.here, one.there) for one in contents.differences)
    return Table.of(("name", "where it failed", "there"), rows, limit=1000)


def growth_table(located: Located, limit: int) -> Table:
    """Return the errors around the culprit, or the last ones if there is none."""
    node = located.op.node if located.op is not None else ""
    rows = [
        (point.node, point.op, error(point.eager), error(point.compiled), point.module, point.source)
        for point in located.growth
    ]
    culprit = next((place for place, row in enumerate(rows) if row[0] == node), None)
    head = ("node", "op", "eager", "compiled", "module", "source")
    return _table_around(head, rows, culprit, limit, otherwise=len(rows))


def _script(contents: Contents, limits: Limits) -> Code | Lines:
    lines = contents.script.count("\n")
    if contents.script_is_minimal or limits.wide or lines <= _READABLE:
        return Code(contents.script, "python")
    return Lines((f"{lines} lines: see repro.py in the bundle",))


def _histogram(errors: ErrorMap) -> Section:
    """Return a section with a bar for each side and each power of ten."""
    largest = max((*errors.eager, *errors.compiled), default=0)
    rows = [
        (f"10^{edge:.2f}", side, "#" * max(1, round(_BARS * counts[index] / largest)), f"{counts[index]:,}")
        for index, edge in enumerate(errors.edges[:-1])
        for side, counts in (("eager", errors.eager), ("compiled", errors.compiled))
        if counts and counts[index]
    ]
    not_finite = f"{errors.non_finite:,} elements are not finite, or should not be"
    parts = (
        Lines((not_finite,) if errors.non_finite else ()),
        Table.of(("error from", "", "", "elements"), rows, limit=1000),
    )
    return Section(f"distance of the elements of {errors.path} to {errors.against}", parts)


def _graph(picture: Picture, limit: int) -> Section:
    """Return the ops around the culprit, or the first ones if there is none."""
    ops = [node for node in picture.nodes if node.kind == "op"]
    rows = [(node.name, node.op, ", ".join(node.inputs), node.shape, node.module) for node in ops]
    culprit = next((place for place, node in enumerate(ops) if node.guilty), None)
    head = ("node", "op", "reads", "result", "module")
    title = f"the {picture.title}: {counted(len(ops), 'op')}"
    return Section(title, (_table_around(head, rows, culprit, limit),))


def _table_around(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    culprit: int | None,
    limit: int,
    otherwise: int = 0,
) -> Table:
    """Return the rows around the culprit, which is marked; without one, those around another row."""
    place = otherwise if culprit is None else culprit
    first = max(0, min(place - limit // 2, len(rows) - limit))
    shown = rows[first : first + limit]
    marked = () if culprit is None else (culprit - first,)
    last = f"{first + 1:,} to {first + len(shown):,} of {len(rows):,} are shown"
    table = Table.of(head, shown, limit=limit, marked=marked)
    return replace(table, more=last if len(shown) < len(rows) else "", needed=4)


def steps_table(steps: Sequence[Adoption], limit: int) -> Table:
    """Return a table of the first step, the last, and some in between."""
    chosen = sorted({round(index * (len(steps) - 1) / (limit - 1)) for index in range(limit if steps else 0)})
    rows = (
        (
            f"{step.query:,}",
            f"{step.seconds:.1f}",
            f"{step.ops:,}",
            f"{step.inputs:,}",
            f"{step.elements:,}",
            step.pass_name,
        )
        for step in (steps[index] for index in chosen)
    )
    return Table.of(("query", "seconds", "ops", "inputs", "elements", "pass"), rows, limit=limit)
