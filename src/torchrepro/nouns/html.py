"""Results as a notebook shows them: what `_repr_html_` of the nouns gives, small tables, all of it escaped.

No style beyond the notebook's own, so that light and dark both read well. The nouns import this when they are
shown, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchrepro.nouns.comparison import Comparison
    from torchrepro.nouns.explanation import Explanation
    from torchrepro.nouns.located import Located
    from torchrepro.nouns.minified import Minified
    from torchrepro.nouns.verdict import Verdict

_ROWS = 12
_TEXT = 2000
"""Characters of one cell: the message of a C++ compiler can have a million."""


def html_of_comparison(comparison: Comparison) -> str:
    """The leaves that differ, worst first."""
    if comparison:
        return section(f"same ({len(comparison.leaves)} values)", notes(comparison.notes))
    ranked = sorted(comparison.differing, key=lambda leaf: leaf.mismatched, reverse=True)
    rows = (
        (
            leaf.path + (str(list(leaf.index)) if leaf.index else ""),
            f"{leaf.mismatched:,} of {leaf.elements:,}" if leaf.mismatched else leaf.difference.value,
            leaf.ref_value or leaf.detail,
            leaf.res_value,
            leaf.truth_value,
        )
        for leaf in ranked
    )
    table = _table(("where", "wrong", "eager", "compiled", "float64"), rows)
    return section(str(comparison), table, notes(comparison.notes))


def html_of_verdict(verdict: Verdict) -> str:
    """The kind and the sentence, then the evidence."""
    facts = {
        "stage": verdict.stage.value if verdict.fails else "",
        "raised": str(verdict.raised) if verdict.raised is not None else "",
        "signal": verdict.signal,
        "seconds": f"{verdict.seconds:.1f}" if verdict.seconds else "",
    }
    leaves = ""
    if verdict.comparison is not None and not verdict.comparison:
        leaves = html_of_comparison(verdict.comparison)
    return section(str(verdict), _facts(facts), leaves, notes(verdict.notes))


def html_of_minified(minified: Minified) -> str:
    """What became smaller, what matters, and the script if it is there to be read."""
    sizes = _table(
        ("", "before", "after"),
        (
            (name, f"{before:,}", f"{after:,}")
            for name, before, after in (
                ("ops", minified.start_ops, minified.ops),
                ("inputs", minified.start_inputs, minified.inputs),
                ("elements", minified.start_elements, minified.elements),
            )
        ),
    )
    title = (
        "minimal, seen to fail in a fresh process" if minified.minimal else f"not minimal: {minified.stopped}"
    )
    if not minified.reproduces:
        title = "not verified: the script does not fail in a fresh process"
    facts = {
        "failure": minified.signature,
        "queries": f"{minified.queries} in {minified.seconds:.1f} s",
        "script": minified.script,
    }
    return section(title, sizes, _facts(facts), notes(minified.explained), notes(minified.notes))


def html_of_located(located: Located) -> str:
    """Who is guilty, how sure that is, what to do about it."""
    from torchrepro.nouns.sentences import guilt_of

    part, op, way_out = located.part, located.op, located.workaround
    facts = {
        "stage": located.stage.value,
        part.kind if part else "pass": f"{part.name} {part.detail}" if part else "",
        "op": f"{op.op} (node {op.node})" if op else "",
        "module": op.module if op else "",
        "source": op.source if op else "",
        "graph": f"{located.graph.name or located.graph.number} of {located.graph.count}"
        if located.graph
        else "",
        "work-around": way_out.code + ("" if way_out.verified else " (not verified)") if way_out else "",
        "kernel": located.kernel.name if located.kernel else "",
        "confidence": located.confidence.value,
        "compiles": f"{located.compiles} in {located.seconds:.1f} s",
    }
    rungs = ((rung.backend, rung.stage.value, rung.kind.value) for rung in located.rungs)
    table = _table(("backend", "stage", "verdict"), rungs) if located.rungs else ""
    return section(guilt_of(located), _facts(facts), table, notes(located.notes))


def html_of_explanation(explanation: Explanation) -> str:
    """What was varied, and whether the failure went away."""
    rows = (
        (fact.sentence, "yes" if fact.matters else "no", ", ".join(fact.failing), ", ".join(fact.passing))
        for fact in explanation.facts
    )
    near = explanation.neighbour
    passes = block(f"passes: {near.description}", near.diff) if near is not None else ""
    title = f"{len(explanation.facts)} parts were varied in {explanation.queries} questions"
    table = _table(("", "matters", "fails with", "passes with"), rows)
    return section(title, table, passes, notes(explanation.notes))


def section(title: str, *parts: str) -> str:
    return f"<div><p><strong>{_text(title)}</strong></p>{''.join(parts)}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = [f"<tr>{''.join(f'<td>{_text(item)}</td>' for item in row)}</tr>" for row in rows]
    left_out = len(body) - _ROWS
    if left_out > 0:
        body = [*body[:_ROWS], f'<tr><td colspan="{len(head)}">and {left_out:,} more</td></tr>']
    titles = "".join(f"<th>{_text(title)}</th>" for title in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _facts(facts: Mapping[str, str]) -> str:
    shown = [
        f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
        for name, value in facts.items()
        if value.strip()
    ]
    return f"<table><tbody>{''.join(shown)}</tbody></table>" if shown else ""


def notes(notes: Iterable[str]) -> str:
    shown = "".join(f"<li>{_text(note)}</li>" for note in notes if note)
    return f"<ul>{shown}</ul>" if shown else ""


def block(title: str, text: str) -> str:
    return f"<details open><summary>{_text(title)}</summary><pre>{_text(text, limit=20_000)}</pre></details>"


def _text(value: object, *, limit: int = _TEXT) -> str:
    text = str(value)
    return escape(text if len(text) <= limit else f"{text[:limit]} ...")
