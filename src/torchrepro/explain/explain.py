"""Vary a minimal repro part by part, and report which parts matter.

The nearest passing neighbour is the smallest edit of the script that makes it pass, as a diff.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest

from torchrepro.edit.arguments import DROPPED, Slot, with_arguments
from torchrepro.edit.surgery import bypassed
from torchrepro.engine.queries import Queries
from torchrepro.explain.experiment import Budget, Experiment
from torchrepro.explain.graph_parts import arguments, ops, varied_ops
from torchrepro.explain.input_parts import Names, dtypes, input_names, layouts, sizes, values
from torchrepro.explain.settings import backends, switches
from torchrepro.explain.subject import Outcome, Subject, Trial, Variation
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Area, Explanation, Fact, Neighbour
from torchrepro.nouns.verdict import Kind, Verdict

_ROUNDS = 2
"""Refinements of a limit: after two it is exact for sizes up to some hundreds, and within 1 % for values."""
_FEW = 3
"""How many variations of one subject are tried where each costs a compilation."""
_FOR_NEIGHBOUR = 2
_FOR_SETTINGS = 3
"""Queries that are reserved, so that earlier subjects do not use up the budget."""


ScriptText = Callable[[Repro, Verdict], str]
"""Returns the script that a reader sees for a repro."""

_CONFIRMED = 2
"""How many neighbours are tried alone before the search stops."""
_SHOWN = 3
"""How many variations of one subject have their scripts compared."""
_ODD = 5
"""A number of more characters is an odd one to show."""
_WORD = re.compile(r"\w[\w.+-]*|\S")

# Which of several equally small edits to show.
_ORDER = (
    *(Area.SIZES, Area.VALUES, Area.DTYPES, Area.ARGUMENTS, Area.GRADIENTS),
    *(Area.LAYOUTS, Area.OPS, Area.COMPILER, Area.AMBIENT),
)


def explain(
    queries: Queries,
    *,
    names: Mapping[int, str] | None = None,
    script_text: ScriptText,
    budget: Budget | None = None,
) -> Explanation:
    """Return which parts of the failing repro of `queries` matter, and its nearest passing neighbour.

    `names` are the inputs' names in the script, by number, which the sentences use; `script_text` writes it.
    """
    repro, verdict = queries.original, queries.verdict
    lab = Experiment(queries, budget or Budget.for_kind(verdict.kind))
    if not verdict.fails or verdict.kind is Kind.FLAKY:
        return Explanation(notes=(f"nothing was varied: {verdict.kind.value} is no failure that repeats",))
    called = input_names(repro, names)
    lab.reserve(_FOR_NEIGHBOUR + _FOR_SETTINGS)
    stages = backends(repro)
    tried = lab.try_each(stages.variations)
    facts = [*_about_values(lab, called), *_about_parts(lab, verdict, called), *_facts([stages], tried)]
    lab.reserve(_FOR_NEIGHBOUR)
    settings = list(switches(repro, called))
    facts += _facts(settings, lab.try_each(_all(settings)))
    lab.reserve(0)
    neighbour = nearest_neighbour(lab, verdict, script_text)
    notes = [] if neighbour else ["no passing neighbour: none of the edits that were tried makes it pass"]
    return Explanation(tuple(facts), neighbour, tuple(notes), queries.asked, queries.seconds)


def _about_values(lab: Experiment, names: Names) -> list[Fact]:
    subjects = values(lab.repro, names)
    if not lab.is_compiled_once:
        return _facts(subjects, lab.try_values(_in_turn(subjects, _FEW)))
    trials = lab.try_values(_all(subjects))
    for _ in range(_ROUNDS):
        trials += lab.try_values(_refined(subjects, trials))
    return _facts(subjects, trials)


def _about_parts(lab: Experiment, verdict: Verdict, names: Names) -> list[Fact]:
    """Return facts on sizes, dtypes, layouts, arguments and ops, for wrong values in one compilation."""
    repro = lab.repro
    if repro.place is Place.BEFORE_CAPTURE:
        return []  # its graph is a single call of the user's code
    extents, types, memory = sizes(repro, verdict, names), dtypes(repro, names), [*layouts(repro, names)]
    graph = [*arguments(repro), *ops(repro)]
    trials = lab.try_together(_in_turn(extents)) if lab.tells_values_apart else None
    if trials is not None:
        for _ in range(_ROUNDS):
            trials += lab.try_together(_refined(extents, trials)) or []
        trials += lab.try_together(_all([*memory, *types, *graph])) or []
    else:
        trials = lab.try_each(_in_turn([*extents, *memory, *types, *graph], _FEW))
    return _facts([*extents, *types, *memory, *graph], trials)


def _all(subjects: Sequence[Subject]) -> list[Variation]:
    return [variation for subject in subjects for variation in subject.variations]


def _refined(subjects: Sequence[Subject], trials: Sequence[Trial]) -> list[Variation]:
    """Return variations between one that fails and one that passes, where a limit lies between them."""
    return [variation for subject in subjects for variation in subject.refined(trials)]


def _facts(subjects: Sequence[Subject], trials: Sequence[Trial]) -> list[Fact]:
    found = (subject.fact(trials) for subject in subjects)
    return [fact for fact in found if fact is not None]


def _in_turn(subjects: Sequence[Subject], count: int | None = None) -> list[Variation]:
    """Return the first variation of each subject, then the second, so that the budget covers all subjects."""
    rounds = zip_longest(*(subject.variations[:count] for subject in subjects))
    return [variation for turn in rounds for variation in turn if variation is not None]


def nearest_neighbour(lab: Experiment, verdict: Verdict, script_text: ScriptText) -> Neighbour | None:
    """Return the passing variation that differs least from the failing script; None if nothing passes.

    A variation that has passed only next to others is first tried alone, as the reader will run it.
    """
    if not any(map(_is_neighbour, lab.trials)):
        lab.try_each(list(_without_an_op(lab.repro)))
    before = script_text(lab.repro, verdict)
    found = []
    for number, trial in enumerate(_closest(lab.trials)):
        variation = trial.variation
        after = script_text(variation.repro, verdict)
        if after == before:
            continue  # the script does not contain the change, so it would not pass
        settings = variation.area in (Area.COMPILER, Area.AMBIENT)  # edits of code come before these
        lines = _changed(before.splitlines(), after.splitlines())
        words = _changed(_WORD.findall(before), _WORD.findall(after))
        odd = len(variation.label) > _ODD and variation.amount is not None
        found.append(((settings, lines, words, odd, number), trial, after))
    asked = 0
    for _, trial, after in sorted(found, key=lambda entry: entry[0]):
        confirmed = trial.alone
        if not confirmed and asked < _CONFIRMED:
            asked += 1
            again = lab.try_each([trial.variation])
            confirmed = any(one.outcome is Outcome.PASSES for one in again)
        if confirmed:
            lines_of = (before.splitlines(), after.splitlines())
            diff = difflib.unified_diff(*lines_of, "fails.py", "passes.py", n=2, lineterm="")
            return Neighbour(trial.variation.edit, trial.variation.repro, "\n".join(diff) + "\n")
    return None


def _is_neighbour(trial: Trial) -> bool:
    """Return whether a trial passes, not by another backend: those nearly always pass, and tell little."""
    return trial.outcome is Outcome.PASSES and trial.variation.area is not Area.BACKENDS


def _closest(trials: Sequence[Trial]) -> list[Trial]:
    """Return a few passing trials of each subject, those with the smallest change."""
    chosen: dict[str, list[Trial]] = {}
    for trial in sorted(filter(_is_neighbour, trials), key=lambda trial: trial.variation.step):
        chosen.setdefault(trial.variation.subject, []).append(trial)
    few = [trial for own in chosen.values() for trial in own[:_SHOWN]]
    return sorted(few, key=lambda trial: _ORDER.index(trial.variation.area))


def _changed(before: Sequence[str], after: Sequence[str]) -> int:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    edits = (code for code in matcher.get_opcodes() if code[0] != "equal")
    return sum(max(i2 - i1, j2 - j1) for _, i1, i2, j1, j2 in edits)


def _without_an_op(repro: Repro) -> Iterator[Variation]:
    """Yield the repro without one op or one keyword, to try if no variation of the parts passes."""
    nodes = varied_ops(repro)
    edits: list[tuple[str, Repro | None]] = [
        (f"{node.name} without {name}", with_arguments(repro, {Slot(node.name, name): DROPPED}))
        for node in nodes
        for name in node.kwargs
    ]
    edits += [
        (f"without {node.name}", bypassed(repro, {("", node.name): operand.name}, ()))
        for node in nodes
        for operand in node.all_input_nodes[:1]
        if len(nodes) > 1
    ]
    for words, changed in edits:
        if changed is not None:
            yield Variation(Area.OPS, words, words, changed, words)
