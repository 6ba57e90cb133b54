"""The report for a terminal of 80 columns. Only the script may be wider: it has to run as it stands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from torchrepro.nouns.comparison import LeafComparison
from torchrepro.nouns.located import Located
from torchrepro.nouns.sentences import counted, index_of
from torchrepro.report.contents import Contents, ErrorMap, Picture, Step
from torchrepro.report.environments import lines_of
from torchrepro.report.markup import visible

WIDTH = 80
_LEAVES, _NODES, _POINTS, _STEPS, _BARS = 5, 12, 12, 8, 24
_LOG_LINES = 12
_SCRIPT_LINES = 80
"""A longer one is not for reading."""


class Style(StrEnum):
    """What a line is, in the words of rich."""

    PLAIN = ""
    VERDICT = "bold red"
    FINE = "bold green"
    HEADING = "bold"
    GUILTY = "red"
    DIM = "dim"


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its style; without a terminal only the text counts."""

    text: str
    style: Style = Style.PLAIN


def as_text(contents: Contents) -> str:
    return "\n".join(line.text for line in text_lines(contents)) + "\n"


def text_lines(contents: Contents) -> Iterator[Line]:
    """The sections of the page, top to bottom, as far as a terminal can show them."""
    fails = contents.verdict is not None and contents.verdict.fails
    yield from _wrapped(contents.sentence, style=Style.VERDICT if fails else Style.FINE)
    yield from _wrapped(f"bundle {contents.bundle}", style=Style.DIM)
    if contents.script:
        minimal = "the minimal script" if contents.script_is_minimal else "the script, not minimal"
        seen = "seen to fail in a fresh process" if contents.script_verified else "not verified"
        lines = visible(contents.script).rstrip("\n").split("\n")
        yield from _heading(f"{minimal} ({seen})")
        if contents.script_is_minimal or len(lines) <= _SCRIPT_LINES:
            yield from map(Line, lines)
        else:
            yield Line(f"  {len(lines)} lines: see repro.py in the bundle")
    for explained in contents.explained_beside:
        yield from _wrapped(explained, indent="  ")
    if contents.located is not None:
        yield from _heading("who is guilty")
        yield from _wrapped(contents.guilt)
        yield from _guilt(contents.located)
    if contents.verdict is not None and contents.verdict.comparison is not None:
        yield from _values(contents.verdict.comparison.differing)
    for errors in contents.errors:
        yield from _errors(errors)
    for picture in (contents.minimal, contents.original):
        if picture is not None:
            yield from _graph(picture)
    yield from _steps(contents.steps)
    yield from _output(contents)
    if contents.environment is not None:
        yield from _heading("environment")
        yield from _facts({**lines_of(contents.environment), **dict(contents.settings or {})})
    if contents.against:
        yield from _heading(f"difference to {contents.against}")
        for one in contents.differences:
            yield from _wrapped(f"{one.name}: {one.here} | there: {one.there}", indent="  ")
        if not contents.differences:
            yield Line("  none")
    if contents.next_steps or contents.notes:
        yield Line("")
    for step in contents.next_steps:
        yield from _wrapped(f"next: {step}")
    for note in contents.notes:
        yield from _wrapped(f"note: {note}", style=Style.DIM)


def _heading(text: str) -> Iterator[Line]:
    yield Line("")
    yield from _wrapped(text, style=Style.HEADING)


def _wrapped(text: str, *, indent: str = "", style: Style = Style.PLAIN) -> Iterator[Line]:
    words = _one_line(text)
    following = " " * min(len(indent) + 2, WIDTH // 2)
    for line in textwrap.wrap(words, WIDTH, initial_indent=indent, subsequent_indent=following):
        yield Line(line, style)


def _facts(facts: Mapping[str, object]) -> Iterator[Line]:
    for name, value in facts.items():
        yield from _wrapped(str(value), indent=f"  {_one_line(name)[: WIDTH // 2]:<15} ")


def _guilt(located: Located) -> Iterator[Line]:
    for rung in located.rungs:
        summary = f": {rung.summary}" if rung.fails and rung.summary else ""
        yield from _wrapped(f"{rung.backend} ({rung.stage.value}) {rung.kind.value}{summary}", indent="  ")
    if located.workaround is not None and located.workaround.code:
        seen = "the failure goes away with it" if located.workaround.verified else "not verified"
        yield from _wrapped(f"work-around ({seen}): {located.workaround.code}", indent="  ")
    if located.birth is not None:
        eager, compiled = (side or "nowhere" for side in (located.birth.eager, located.birth.compiled))
        yield from _wrapped(f"first NaN or Inf: eager {eager}, compiled {compiled}", indent="  ")
    if located.kernel is not None:
        where = f" in {located.kernel.file}" if located.kernel.file else ""
        yield from _wrapped(
            f"generated code: {located.kernel.name} ({located.kernel.language}){where}", indent="  "
        )
    yield from _growth(located)


def _growth(located: Located) -> Iterator[Line]:
    if not located.growth:
        return
    guilty = located.op.node if located.op is not None else ""
    names = [point.node for point in located.growth]
    at = names.index(guilty) if guilty in names else len(names)
    yield from _heading("error against float64, op by op")
    yield Line(f"  {'eager':>9} {'compiled':>9}  node", Style.DIM)
    for point in located.growth[max(0, at - _POINTS // 2) : at + _POINTS // 2]:
        sides = " ".join(
            f"{'-' if side is None else f'{side:.2g}':>9}" for side in (point.eager, point.compiled)
        )
        yield _cut(
            f"  {sides}  {point.node} ({point.op})", Style.GUILTY if point.node == guilty else Style.PLAIN
        )


def _values(leaves: tuple[LeafComparison, ...]) -> Iterator[Line]:
    if leaves:
        yield from _heading("values that differ")
    for leaf in leaves[:_LEAVES]:
        wrong = (
            f"{leaf.mismatched:,} of {leaf.elements:,} wrong" if leaf.mismatched else leaf.difference.value
        )
        largest = f", max abs {leaf.max_abs:.3g}" if leaf.max_abs else ""
        yield from _wrapped(f"{leaf.path}{index_of(leaf)}: {wrong}{largest}", indent="  ")
        values = {"eager": leaf.ref_value, "compiled": leaf.res_value, "float64": leaf.truth_value}
        shown = ", ".join(f"{name} {value}" for name, value in values.items() if value)
        yield from _wrapped(shown or leaf.detail, indent="    ")
    if len(leaves) > _LEAVES:
        yield Line(f"  ... and {len(leaves) - _LEAVES} more")


def _errors(errors: ErrorMap) -> Iterator[Line]:
    """A histogram with a bar for each side."""
    yield from _heading(f"distance of the elements of {errors.path} to {errors.against}")
    if errors.non_finite:
        yield Line(f"  {errors.non_finite:,} elements are not finite, or should not be")
    largest = max((*errors.eager, *errors.compiled), default=0)
    sides = {"eager": errors.eager, "compiled": errors.compiled}
    for index in range(len(errors.compiled)):
        counts = {side: counts[index] for side, counts in sides.items() if counts}
        for side, count in counts.items():
            if count:
                bar = "#" * max(1, round(_BARS * count / largest))
                yield Line(f"  10^{errors.edges[index]:<7.2f} {side:<8} {bar:<{_BARS}} {count:,}")


def _graph(picture: Picture) -> Iterator[Line]:
    ops = [node for node in picture.nodes if node.kind == "op"]
    yield from _heading(f"the {picture.title}: {counted(len(ops), 'op')}")
    at = next((index for index, node in enumerate(ops) if node.guilty), 0)
    start = max(0, min(at - _NODES // 2, len(ops) - _NODES))
    for node in ops[start : start + _NODES]:
        mark = "> " if node.guilty else "  "
        read = ", ".join(node.inputs)
        yield _cut(
            f"{mark}{node.name} = {node.op}({read}) {node.shape}",
            Style.GUILTY if node.guilty else Style.PLAIN,
        )
    if len(ops) > _NODES:
        yield Line(f"  ({start + 1:,} to {start + _NODES:,} are shown)", Style.DIM)


def _steps(steps: tuple[Step, ...]) -> Iterator[Line]:
    if not steps:
        return
    yield from _heading("how it became smaller")
    yield Line(f"  {'query':>6} {'ops':>7} {'inputs':>7} {'elements':>12}  pass", Style.DIM)
    chosen = sorted({round(index * (len(steps) - 1) / (_STEPS - 1)) for index in range(_STEPS)})
    for step in (steps[index] for index in chosen):
        yield _cut(
            f"  {step.query:>6,} {step.ops:>7,} {step.inputs:>7,} {step.elements:>12,}  {step.pass_name}"
        )


def _output(contents: Contents) -> Iterator[Line]:
    """The end of the traceback, or of what the process printed before it died."""
    traceback, verdict = contents.traceback.strip(), contents.verdict
    printed = verdict.stderr_tail.strip() if verdict is not None else ""
    if not traceback and not printed:
        return
    yield from _heading("the end of the traceback" if traceback else "last output of the process")
    lines = visible(traceback or printed).splitlines()[-_LOG_LINES:]
    for line in lines:
        yield _cut(f"  {line}")


def _one_line(text: str) -> str:
    return " ".join(visible(text).split())


def _cut(text: str, style: Style = Style.PLAIN) -> Line:
    """A line that says enough with its beginning."""
    text = " ".join(visible(text).expandtabs(4).split("\n")).rstrip()
    return Line(text if len(text) <= WIDTH else text[: WIDTH - 3] + "...", style)
