"""Verdicts for a person: one sentence first, then the evidence."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from torchrepro.nouns.comparison import Blame, Comparison
from torchrepro.nouns.verdict import Kind, Verdict

_COLOURS = {Kind.PASS: "green", Kind.INVALID: "yellow", Kind.NOT_COMPARABLE: "yellow"}
_LEAVES_SHOWN = 8


def headline(verdict: Verdict) -> str:
    """The verdict in one sentence, with markup."""
    colour = _COLOURS.get(verdict.kind, "red")
    return f"[bold {colour}]{verdict.kind.value}[/]: {escape(verdict.summary)}"


def print_verdict(console: Console, verdict: Verdict, facts: dict[str, str]) -> None:
    """The sentence, the facts as aligned lines, the leaves that differ, and what else there is to know."""
    console.print(headline(verdict), soft_wrap=True)
    for name, value in facts.items():
        console.print(f"  {name:<12} {escape(value)}", soft_wrap=True)
    if verdict.comparison is not None:
        _print_leaves(console, verdict.comparison)
    if verdict.stderr_tail.strip() and verdict.kind in (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY):
        console.print("  last output of the process:")
        for line in verdict.stderr_tail.strip().splitlines()[-5:]:
            console.print(f"    {escape(line)}", soft_wrap=True)
    for note in verdict.notes:
        console.print(f"  [dim]note: {escape(note)}[/]", soft_wrap=True)


def _print_leaves(console: Console, comparison: Comparison) -> None:
    telling = [leaf for leaf in comparison.leaves if not leaf.same or leaf.blamed is not Blame.NOBODY]
    for leaf in telling[:_LEAVES_SHOWN]:
        at = f" at {list(leaf.index)}" if leaf.index is not None else ""
        facts = [] if leaf.same else [leaf.difference.value]
        facts += [f"{leaf.mismatched} of {leaf.elements} wrong"] if leaf.mismatched else []
        facts += [f"max abs {leaf.max_abs:.3g}"] if leaf.max_abs else []
        facts += [f"blamed: {leaf.blamed.value}"] if leaf.same else []
        console.print(f"  [bold]{escape(leaf.path)}[/]{escape(at)}: {', '.join(facts)}", soft_wrap=True)
        values = {"eager": leaf.ref_value, "compiled": leaf.res_value, "float64": leaf.truth_value}
        shown = [f"{name} {value}" for name, value in values.items() if value]
        if shown:
            console.print(f"    {escape('   '.join(shown))}", soft_wrap=True)
    if len(telling) > _LEAVES_SHOWN:
        console.print(f"  ... and {len(telling) - _LEAVES_SHOWN} more (--json has all)")
