"""The nearest passing neighbour: the smallest edit of the script that makes it pass, as a diff."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from torch.fx import Node

from torchrepro.explain.experiment import Experiment
from torchrepro.explain.graph_parts import varied_ops, with_node
from torchrepro.explain.subject import Outcome, Trial, Variation
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area, Neighbour
from torchrepro.nouns.verdict import Verdict

ScriptText = Callable[[Repro, Verdict], str]
"""The script that a reader is shown for a repro."""

_CONFIRMED = 2
"""Neighbours that are asked about by themselves before the search for one is given up."""
_SHOWN = 3
"""Variations of one subject whose scripts are compared."""
_ODD = 5
"""Digits above which a number is an odd one to write."""
_WORD = re.compile(r"\w[\w.+-]*|\S")

# Of edits that are equally small, which one to show.
_ORDER = (
    Area.SIZES,
    Area.VALUES,
    Area.DTYPES,
    Area.ARGUMENTS,
    Area.GRADIENTS,
    Area.LAYOUTS,
    Area.OPS,
    Area.COMPILER,
    Area.AMBIENT,
)


def nearest_neighbour(lab: Experiment, verdict: Verdict, script_text: ScriptText) -> Neighbour | None:
    """Of everything that passes, what differs least from the failing script; None where nothing passes.

    What has passed only next to others is asked about alone first: the reader will run it alone.
    """
    if not any(_is_neighbour(trial) for trial in lab.trials):
        lab.try_each(list(_without_an_op(lab.repro)))
    before = script_text(lab.repro, verdict)
    asked = 0
    for trial, after in _by_distance(lab, verdict, before, script_text):
        confirmed = trial.alone
        if not confirmed and asked < _CONFIRMED:
            asked += 1
            again = lab.try_each([trial.variation])
            confirmed = any(found.outcome is Outcome.PASSES for found in again)
        if confirmed:
            return Neighbour(trial.variation.edit, trial.variation.repro, _diff(before, after))
    return None


def _is_neighbour(trial: Trial) -> bool:
    """Another backend passes nearly always, and says nothing about how to change the script."""
    return trial.outcome is Outcome.PASSES and trial.variation.area is not Area.BACKENDS


def _by_distance(
    lab: Experiment, verdict: Verdict, before: str, script_text: ScriptText
) -> list[tuple[Trial, str]]:
    """Passing variations with their scripts, the nearest first; edits of code before edits of settings."""
    passing = [trial for trial in lab.trials if _is_neighbour(trial)]
    found = []
    for number, trial in enumerate(_closest(passing)):
        after = script_text(trial.variation.repro, verdict)
        if after == before:
            continue  # the script does not show what was changed, so it would not pass
        settings = trial.variation.area in (Area.COMPILER, Area.AMBIENT)
        odd = len(trial.variation.label) > _ODD and trial.variation.amount is not None
        found.append(((settings, *_distance(before, after), odd, number), trial, after))
    return [(trial, after) for _, trial, after in sorted(found, key=lambda entry: entry[0])]


def _closest(passing: Sequence[Trial]) -> list[Trial]:
    """A few of each subject, those that go the least far."""
    chosen: dict[str, list[Trial]] = {}
    for trial in sorted(passing, key=lambda trial: trial.variation.step):
        chosen.setdefault(trial.variation.subject, []).append(trial)
    few = [trial for own in chosen.values() for trial in own[:_SHOWN]]
    return sorted(few, key=lambda trial: _ORDER.index(trial.variation.area))


def _distance(before: str, after: str) -> tuple[int, int]:
    """Lines and then words that have to be touched."""
    return _changed(before.splitlines(), after.splitlines()), _changed(
        _WORD.findall(before), _WORD.findall(after)
    )


def _changed(before: Sequence[str], after: Sequence[str]) -> int:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    edits = (code for code in matcher.get_opcodes() if code[0] != "equal")
    return sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in edits)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "fails.py", "passes.py", n=2, lineterm=""
    )
    return "\n".join(lines) + "\n"


def _without_an_op(repro: Repro) -> Iterator[Variation]:
    """The repro without one op or one keyword: what is left if no variation of the parts passes."""
    for node in varied_ops(repro):
        for keyword in node.kwargs:
            yield _edited(repro, node, f"{node.name} without {keyword}", _dropping(keyword))
    if len(varied_ops(repro)) > 1:
        for node in varied_ops(repro):
            if node.all_input_nodes:
                yield _edited(repro, node, f"without {node.name}", _passing_through)


def _dropping(keyword: str) -> Callable[[Node], None]:
    def drop(node: Node) -> None:
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != keyword}

    return drop


def _passing_through(node: Node) -> None:
    node.replace_all_uses_with(node.all_input_nodes[0])


def _edited(repro: Repro, node: Node, words: str, edit: Callable[[Node], None]) -> Variation:
    return Variation(Area.OPS, f"without {node.name}", words, with_node(repro, node, edit), words)
