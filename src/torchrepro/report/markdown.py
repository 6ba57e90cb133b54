"""The whole report as Markdown: for a wiki, a pull request, a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchrepro.nouns.located import Located
from torchrepro.nouns.sentences import counted, index_of
from torchrepro.report.contents import Contents, Picture, Step
from torchrepro.report.environments import lines_of
from torchrepro.report.markup import cell, code, fenced, folded, prose

_ROWS = 20
_NODES = 60


def markdown(contents: Contents) -> str:
    """The sections of the page, top to bottom, as far as text can show them."""
    return "\n\n".join(part for part in _parts(contents) if part) + "\n"


def _parts(contents: Contents) -> Iterator[str]:
    yield f"# {prose(contents.title)}"
    yield prose(contents.sentence)
    if contents.script:
        minimal = "Minimal script" if contents.script_is_minimal else "Script, not minimal"
        seen = "seen to fail in a fresh process" if contents.script_verified else "not verified"
        yield f"## {minimal} ({seen})"
        yield folded(contents.script)
    if contents.explained_beside:
        yield "\n".join(f"- {prose(line)}" for line in contents.explained_beside)
    if contents.located is not None:
        yield "## Who is guilty"
        yield prose(contents.guilt)
        yield from _guilt(contents.located)
    for picture in (contents.minimal, contents.original):
        if picture is not None:
            yield from _graph(picture)
    if contents.verdict is not None and contents.verdict.comparison is not None:
        yield from _values(contents)
    if contents.located is not None and contents.located.growth:
        yield "## Error growth"
        yield _growth(contents.located)
    if contents.steps:
        yield "## How it became smaller"
        yield _table(
            ("query", "seconds", "ops", "inputs", "elements", "pass"),
            (_step(step) for step in _thinned(contents.steps)),
        )
    if contents.traceback.strip():
        yield "## Traceback"
        yield fenced(contents.traceback, "text")
    elif contents.verdict is not None and contents.verdict.stderr_tail.strip():
        yield "## Last output of the process"
        yield fenced(contents.verdict.stderr_tail, "text")
    if contents.environment is not None:
        yield "## Environment"
        yield _facts({**lines_of(contents.environment), **dict(contents.settings or {})})
    if contents.against:
        yield f"## Difference to {prose(contents.against)}"
        rows = ((cell(one.name), cell(one.here), cell(one.there)) for one in contents.differences)
        yield _table(("", "where it failed", "there"), rows) if contents.differences else "None."
    remarks = [
        *(f"- {prose(step)}" for step in contents.next_steps),
        *(f"- {prose(n)}" for n in contents.notes),
    ]
    if remarks:
        yield "## Notes"
        yield "\n".join(remarks)


def _guilt(located: Located) -> Iterator[str]:
    if located.rungs:
        rows = ((cell(r.backend), r.stage.value, r.kind.value, cell(r.summary)) for r in located.rungs)
        yield _table(("backend", "stage", "verdict", ""), rows)
    if located.workaround is not None and located.workaround.code:
        seen = "seen to make the failure go away" if located.workaround.verified else "not verified"
        yield f"Work-around ({seen}):"
        yield fenced(located.workaround.code, "python")
    if located.kernel is not None and located.kernel.source:
        yield f"Generated code: {code(located.kernel.name)}"
        yield fenced(located.kernel.source, "cpp" if located.kernel.language == "cpp" else "python")


def _graph(picture: Picture) -> Iterator[str]:
    ops = [node for node in picture.nodes if node.kind == "op"]
    yield f"## The {picture.title}: {counted(len(ops), 'op')}"
    guilty = next((index for index, node in enumerate(ops) if node.guilty), 0)
    start = max(0, min(guilty - _NODES // 2, len(ops) - _NODES))
    rows = (
        (
            "**guilty**" if node.guilty else "",
            cell(node.name),
            cell(node.op),
            cell(node.shape),
            cell(node.module),
        )
        for node in ops[start : start + _NODES]
    )
    yield _table(("", "node", "op", "result", "module"), rows)
    if len(ops) > _NODES:
        yield f"Shown: {start + 1} to {start + _NODES} of {len(ops)} ops."


def _values(contents: Contents) -> Iterator[str]:
    assert contents.verdict is not None
    assert contents.verdict.comparison is not None
    differing = contents.verdict.comparison.differing
    if not differing:
        return
    yield "## Values that differ"
    rows = (
        (
            cell(leaf.path + index_of(leaf)),
            f"{leaf.mismatched} of {leaf.elements}",
            cell(leaf.ref_value),
            cell(leaf.res_value),
            cell(leaf.truth_value),
        )
        for leaf in differing[:_ROWS]
    )
    yield _table(("where", "wrong", "eager", "compiled", "float64"), rows)
    if len(differing) > _ROWS:
        yield f"And {len(differing) - _ROWS} more."


def _growth(located: Located) -> str:
    guilty = located.op.node if located.op is not None else ""
    names = [point.node for point in located.growth]
    at = names.index(guilty) if guilty in names else len(names)
    shown = located.growth[max(0, at - _ROWS // 2) : at + _ROWS // 2]
    rows = (
        (cell(point.node), cell(point.op), _error(point.eager), _error(point.compiled), cell(point.source))
        for point in shown
    )
    return _table(("node", "op", "eager", "compiled", "source"), rows)


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _step(step: Step) -> tuple[str, ...]:
    counts = (step.ops, step.inputs, step.elements)
    return (str(step.query), f"{step.seconds:.1f}", *(f"{count:,}" for count in counts), cell(step.pass_name))


def _thinned(steps: Sequence[Step]) -> Iterable[Step]:
    """The first, the last, and some in between."""
    if len(steps) <= _ROWS:
        return steps
    chosen = sorted({round(index * (len(steps) - 1) / (_ROWS - 1)) for index in range(_ROWS)})
    return [steps[index] for index in chosen]


def _facts(facts: Mapping[str, object]) -> str:
    return _table(("", ""), ((cell(name), cell(str(value))) for name, value in facts.items()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
