"""`explain`: vary a minimal repro part by part, and say which parts matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from torchrepro.engine.queries import Queries
from torchrepro.explain import (
    arguments,
    backends,
    dtypes,
    layouts,
    ops,
    settings,
    sizes,
    values,
)
from torchrepro.explain import (
    dynamic_shapes as dynamic,
)
from torchrepro.explain.experiment import Budget, Experiment
from torchrepro.explain.nearest_pass import ScriptText, nearest_neighbour, plain_text
from torchrepro.explain.variations import Trial, Variation
from torchrepro.nouns.explanation import Explanation, Fact
from torchrepro.nouns.repro import Place
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
    names: Mapping[int, str] | None = None,
    script_text: ScriptText = plain_text,
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
    stages = lab.try_each(backends.propose(repro))
    facts = [*_about_values(lab, names), *_about_parts(lab, verdict, names)]
    lab.reserve(_FOR_NEIGHBOUR)
    facts += [*backends.facts(repro, stages), *_about_settings(lab, names)]
    lab.reserve(0)
    neighbour = nearest_neighbour(lab, verdict, script_text)
    notes = [] if neighbour else ["no passing neighbour: none of the edits that were tried makes it pass"]
    return Explanation(tuple(facts), neighbour, tuple(notes), queries.asked, queries.seconds)


def _about_values(lab: Experiment, names: Mapping[int, str] | None) -> list[Fact]:
    inputs = values.varied_inputs(lab.repro, names)
    proposed = [values.propose(lab.repro, given) for given in inputs]
    if lab.is_compiled_once:
        trials = lab.try_values([variation for own in proposed for variation in own])
        for _ in range(_ROUNDS):
            finer = [v for given in inputs for v in values.refine(lab.repro, given, trials)]
            trials += lab.try_values(finer)
    else:
        trials = lab.try_values(_in_turn([own[:_FEW] for own in proposed]))
    return [fact for given in inputs for fact in values.facts(given, trials)]


def _about_parts(lab: Experiment, verdict: Verdict, names: Mapping[int, str] | None) -> list[Fact]:
    """Sizes, dtypes, layouts, arguments and ops: in one compilation where wrong values tell them apart."""
    repro = lab.repro
    if repro.place is Place.BEFORE_CAPTURE:
        return []  # its graph is a single call of the user's code
    extents = sizes.extents(repro, verdict, names)
    by_extent = [sizes.propose(extent) for extent in extents]
    found = layouts.layouts(repro, names)
    others = [
        *(layout.variation for layout in found),
        *dtypes.propose(repro, names),
        *arguments.propose(repro),
        *ops.propose(repro),
    ]
    trials: list[Trial] | None = None
    if lab.tells_values_apart:
        trials = lab.try_together(_in_turn(by_extent))
    if trials is not None:
        for _ in range(_ROUNDS):
            finer = [variation for extent in extents for variation in sizes.refine(extent, trials)]
            trials += lab.try_together(finer) or []
        trials += lab.try_together(others) or []
    else:
        subjects: dict[str, list[Variation]] = {}
        for variation in others:
            subjects.setdefault(variation.subject, []).append(variation)
        trials = lab.try_each(_in_turn([own[:_FEW] for own in (*by_extent, *subjects.values())]))
    about_layouts = [layout.fact(trials) for layout in found]
    return [
        *(fact for extent in extents for fact in sizes.facts(extent, trials)),
        *dtypes.facts(repro, trials, names),
        *(fact for fact in about_layouts if fact is not None),
        *arguments.facts(repro, trials),
        *ops.facts(repro, trials),
    ]


def _about_settings(lab: Experiment, names: Mapping[int, str] | None) -> list[Fact]:
    switches = [*settings.switches(lab.repro, names), *dynamic.switches(lab.repro)]
    trials = lab.try_each([switch.variation for switch in switches])
    about = [switch.fact(trials) for switch in switches]
    return [fact for fact in about if fact is not None]


def _in_turn(groups: Sequence[Sequence[Variation]]) -> list[Variation]:
    """The first of each group, then the second of each: a budget that ends leaves none without an answer."""
    rounds = zip_longest(*groups)
    return [variation for turn in rounds for variation in turn if variation is not None]
