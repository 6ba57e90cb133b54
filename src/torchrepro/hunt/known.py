"""Make the rule of a minimal repro, and match a failing program against rules, before anything is compiled.

These are jobs for processes of their own: they load a bundle and run it eagerly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from torchrepro.cut.units import CALLS
from torchrepro.execute.judge_repro import load_for_job
from torchrepro.hunt.op_calls import Calls, Operand, calls_of, dependencies
from torchrepro.hunt.rule import KnownOp, KnownOperand, Rule, is_known
from torchrepro.judge.models import Phase
from torchrepro.nouns.limits import Limits
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area, Fact
from torchrepro.nouns.verdict import Signature
from torchrepro.state.fake_run import inductor_decompositions
from torchrepro.torch_api.ops import op_name

_MOST_OPS = 8
"""A repro with more ops than these is not minimal, and makes no rule."""


def rule_of(payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the rule of a minimal bundle as plain data and in words; None and no word if it makes none."""
    repro = load_for_job(dict(payload), phase)
    facts = msgspec.convert(payload["facts"], tuple[Fact, ...])
    signature = msgspec.convert(payload["signature"], Signature)
    phase("eager")
    calls = calls_of(repro)
    ops = _ops_of(calls, payload["paths"], facts) if calls is not None else ()
    if not ops:
        return {"rule": None, "words": ""}
    settings = any(fact.matters and fact.area in (Area.COMPILER, Area.AMBIENT) for fact in facts)
    rule = Rule(replace(signature, op=""), ops, tuple(_named(repro)), _settings_of(repro) if settings else "")
    return {"rule": msgspec.to_builtins(rule), "words": str(rule)}


def _settings_of(repro: Repro) -> str:
    return str((str(repro.compiler), dict(repro.ambient.configs)))


def _ops_of(calls: Calls, paths: Sequence[str], facts: Sequence[Fact]) -> tuple[KnownOp, ...]:
    """Return the ops on which all wrong results depend, in order; none if that is unknown."""
    depends = dependencies(calls, paths)
    if depends is None:
        return ()
    numbers = sorted(frozenset().union(*depends) if depends else range(len(calls.calls)))
    numbers = [number for number in numbers if calls.calls[number].computes]
    if len(numbers) > _MOST_OPS:
        return ()
    exact = any(fact.matters and fact.area is Area.ARGUMENTS for fact in facts)
    places = {number: place for place, number in enumerate(numbers)}
    return tuple(
        KnownOp(
            call.op,
            tuple(_known(operand, facts) for operand in call.operands),
            call.arguments if exact else None,
            tuple(sorted(places[each] for each in call.depends if each in places)),
        )
        for call in (calls.calls[number] for number in numbers)
    )


def _known(operand: Operand, facts: Sequence[Fact]) -> KnownOperand:
    """Return what the facts admit in place of an operand; if it was computed, its dtype and constant."""
    if operand.input is None:
        limits = None if operand.uniform is None else Limits(((operand.uniform, operand.uniform),))
        return KnownOperand((operand.dtype,), values=limits)
    about = {area: [f for f in facts if f.area is area and operand.input in f.inputs] for area in Area}
    dtypes = {operand.dtype, *(label for fact in about[Area.DTYPES] for label in fact.failing)}
    values = [fact.limits for fact in about[Area.VALUES] if fact.limits is not None]
    layout = any(fact.matters for fact in about[Area.LAYOUTS])
    return KnownOperand(
        tuple(sorted(dtypes)),
        tuple(fact.limits for fact in about[Area.SIZES] if fact.limits is not None),
        values[0] if values else None,
        operand.contiguous if layout else None,
    )


def match(payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the number of the first rule that a failing bundle satisfies, or None, as `number`."""
    repro = load_for_job(dict(payload), phase)
    rules = msgspec.convert(payload["rules"], tuple[Rule, ...])
    settings = _settings_of(repro)
    phase("eager")
    named = set(_named(repro))
    # A minimal repro often consists of what an op was decomposed into.
    for decompositions in (lambda: None, inductor_decompositions):
        calls = calls_of(repro, decompositions())
        depends = None if calls is None else dependencies(calls, payload["paths"])
        if calls is None or depends is None:
            continue
        named |= {call.op for call in calls.calls}
        for number, rule in enumerate(rules):
            alike = rule.settings in ("", settings) and named.issuperset(rule.named)
            if alike and is_known(rule, calls.calls, depends):
                return {"number": number}
    return {"number": None}


def _named(repro: Repro) -> list[str]:
    """Return what a graph calls, by names that do not tell how it is spelled."""
    calls = (node for node in repro.graph.graph.nodes if node.op in CALLS)
    return sorted({op_name(node.target).removesuffix("_") for node in calls} - {"getitem"})
