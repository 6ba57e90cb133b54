"""`explain`: vary a minimal repro part by part, and say which parts matter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from torchrepro.engine.queries import Queries
from torchrepro.explain.experiment import Budget, Experiment
from torchrepro.explain.graph_parts import arguments, ops
from torchrepro.explain.input_parts import Names, dtypes, layouts, sizes, values
from torchrepro.explain.nearest_pass import ScriptText, nearest_neighbour
from torchrepro.explain.settings import backends, switches
from torchrepro.explain.subject import Subject, Trial, Variation
from torchrepro.nouns.repro import Place
from torchrepro.nouns.results import Explanation, Fact
from torchrepro.nouns.verdict import Kind, Verdict

_ROUNDS = 2
"""Goes at a limit: after two it is exact for sizes up to some hundreds, and within a per cent for values."""
_FEW = 3
"""Variations of one subject where each costs a compilation."""
_FOR_NEIGHBOUR = 2
_FOR_SETTINGS = 3
"""Queries that are kept back, so that what comes first does not take all."""


def explain(
    queries: Queries,
    *,
    names: Names = None,
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
    lab.reserve(_FOR_NEIGHBOUR + _FOR_SETTINGS)
    stages = backends(repro)
    tried = lab.try_each(stages.variations)
    facts = [*_about_values(lab, names), *_about_parts(lab, verdict, names), *_facts([stages], tried)]
    lab.reserve(_FOR_NEIGHBOUR)
    settings = switches(repro, names)
    facts += _facts(settings, lab.try_each(_all(settings)))
    lab.reserve(0)
    neighbour = nearest_neighbour(lab, verdict, script_text)
    notes = [] if neighbour else ["no passing neighbour: none of the edits that were tried makes it pass"]
    return Explanation(tuple(facts), neighbour, tuple(notes), queries.asked, queries.seconds)


def _about_values(lab: Experiment, names: Names) -> list[Fact]:
    subjects = values(lab.repro, names)
    if not lab.is_compiled_once:
        return _facts(subjects, lab.try_values(_in_turn([subject.variations[:_FEW] for subject in subjects])))
    trials = lab.try_values(_all(subjects))
    for _ in range(_ROUNDS):
        trials += lab.try_values(_refined(subjects, trials))
    return _facts(subjects, trials)


def _about_parts(lab: Experiment, verdict: Verdict, names: Names) -> list[Fact]:
    """Sizes, dtypes, layouts, arguments and ops: in one compilation where wrong values tell them apart."""
    repro = lab.repro
    if repro.place is Place.BEFORE_CAPTURE:
        return []  # its graph is a single call of the user's code
    extents, types, memory = sizes(repro, verdict, names), dtypes(repro, names), layouts(repro, names)
    graph = [*arguments(repro), *ops(repro)]
    trials: list[Trial] | None = None
    if lab.tells_values_apart:
        trials = lab.try_together(_in_turn([subject.variations for subject in extents]))
    if trials is not None:
        for _ in range(_ROUNDS):
            trials += lab.try_together(_refined(extents, trials)) or []
        trials += lab.try_together(_all([*memory, *types, *graph])) or []
    else:
        few = [subject.variations[:_FEW] for subject in (*extents, *memory, *types, *graph)]
        trials = lab.try_each(_in_turn(few))
    return _facts([*extents, *types, *memory, *graph], trials)


def _all(subjects: Sequence[Subject]) -> list[Variation]:
    return [variation for subject in subjects for variation in subject.variations]


def _refined(subjects: Sequence[Subject], trials: Sequence[Trial]) -> list[Variation]:
    """Variations between one that fails and one that passes, where there is a limit to be found."""
    return [
        variation
        for subject in subjects
        if subject.refine is not None
        for variation in subject.refine(subject.trials_of(trials))
    ]


def _facts(subjects: Sequence[Subject], trials: Sequence[Trial]) -> list[Fact]:
    found = (subject.fact(trials) for subject in subjects)
    return [fact for fact in found if fact is not None]


def _in_turn(groups: Sequence[Sequence[Variation]]) -> list[Variation]:
    """The first of each group, then the second of each: a budget that ends leaves none without an answer."""
    rounds = zip_longest(*groups)
    return [variation for turn in rounds for variation in turn if variation is not None]
