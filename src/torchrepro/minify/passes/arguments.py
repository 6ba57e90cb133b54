"""Plainer arguments: defaults left out, 0 and 1 for other numbers, None for optional tensors, shorter lists.

All arguments take their plainest form in one query. Those that the failure needs unchanged then try their
next form, again all at once. What is written as its default is omitted in each of these queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torchrepro.edit.arguments import DROPPED, Slot, slots_of, with_arguments
from torchrepro.edit.validity import why_invalid
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes

_MANY_OPS = 30
"""Above so many ops, an argument tries only its default: trying every form on fakes takes too long."""
_FORMS = 3
_GROUPS = 8
"""More arguments than these are tried in groups: a plainer argument is not worth a query of its own."""


_refused: WeakKeyDictionary[Problem, set[tuple[str, int | str, str]]] = WeakKeyDictionary()
"""Forms of arguments with which a problem does not fail: node, place, form."""


def plainer_arguments(problem: Problem) -> None:
    """Give every argument the plainest form with which it still fails.

    A form that was refused is not tried again when other parts of the repro have become smaller.
    """
    refused = _refused.setdefault(problem, set())

    def described(slot: Slot, form: int) -> tuple[str, int | str, str]:
        return slot.node, slot.place, repr(slot.choices[form])

    slots = _possible(problem.best, slots_of(problem.best))
    defaults = [slot for slot in slots if slot.is_default and slot.choices[0] is DROPPED]
    omitted = dict.fromkeys(_compatible(problem.best, defaults, 0, {}), DROPPED)
    slots = [slot for slot in slots if slot not in omitted]
    for form in range(_FORMS):
        slots = [slot for slot in slots if len(slot.choices) > form]
        untried = [slot for slot in slots if described(slot, form) not in refused]
        together = _compatible(problem.best, untried, form, omitted)
        needed = _needed(problem, together, form, omitted)
        if len(needed) > _GROUPS:
            break
        refused.update(described(slot, form) for slot in needed)
        slots = [slot for slot in slots if slot in needed or slot not in together]
    problem.accept(with_arguments(problem.best, omitted))


def with_plainest_arguments(repro: Repro) -> Repro | None:
    """Return the repro with the plainest form of every argument, as far as it runs; None if none changes."""
    slots = _compatible(repro, _possible(repro, slots_of(repro)), 0, {})
    return with_arguments(repro, {slot: slot.choices[0] for slot in slots}) if slots else None


def _needed(problem: Problem, slots: Sequence[Slot], form: int, omitted: Mapping[Slot, Any]) -> list[Slot]:
    """Return the slots that have to stay unchanged; give the others this form, and omit what is `omitted`."""
    if not slots:
        return []
    size = -(-len(slots) // _GROUPS)
    groups = [slots[start : start + size] for start in range(0, len(slots), size)]
    best = problem.best

    def build(kept: Sequence[Sequence[Slot]]) -> Repro:
        changed = [slot for group in groups if group not in kept for slot in group]
        return with_arguments(best, {**omitted, **{slot: slot.choices[form] for slot in changed}})

    left = [slot for group in problem.minimise(groups, build) for slot in group]
    return _needed(problem, left, form, omitted) if size > 1 and len(left) <= _GROUPS else left


def _possible(repro: Repro, slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots with the choices with which the graph still runs."""
    if repro.ops > _MANY_OPS:
        return [replace(slot, choices=(DROPPED,)) for slot in slots if slot.choices[0] is DROPPED]
    runs = _running(repro)

    def is_possible(slot: Slot, choice: Any) -> bool:
        if runs({slot: choice}):
            return True
        # `keepdim` requires `dim`: an argument that cannot be omitted alone may be omitted with the others.
        beside = {other: DROPPED for other in slots if other.node == slot.node and DROPPED in other.choices}
        return choice is DROPPED and len(beside) > 1 and runs(beside)

    found = [
        replace(slot, choices=tuple(choice for choice in slot.choices if is_possible(slot, choice)))
        for slot in slots
    ]
    return [slot for slot in found if slot.choices]


def _compatible(repro: Repro, slots: Sequence[Slot], form: int, omitted: Mapping[Slot, Any]) -> list[Slot]:
    """Return the slots that can all take this form at once: `clamp` requires a minimum or a maximum."""
    runs = _running(repro)
    if not slots or runs({**omitted, **{slot: slot.choices[form] for slot in slots}}):
        return list(slots)
    found: dict[Slot, Any] = {}
    for slot in slots:
        if runs({**omitted, **found, slot: slot.choices[form]}):
            found[slot] = slot.choices[form]
    return list(found)


def _running(repro: Repro) -> Callable[[dict[Slot, Any]], bool]:
    """Return a test whether the repro runs with other arguments, on fakes and without new warnings."""
    warned = run_on_fakes(repro).warned

    def runs(values: dict[Slot, Any]) -> bool:
        candidate = with_arguments(repro, values)
        return not why_invalid(candidate) and (warned or not run_on_fakes(candidate).warned)

    return runs
