"""The verdict and the culprit in plain words, for readers who are not compiler engineers; and a title."""

from __future__ import annotations

import math
import re

from torchrepro.nouns.messages import telling_line
from torchrepro.nouns.probe import FINDINGS
from torchrepro.nouns.results import Confidence, Located, Way
from torchrepro.nouns.sections import index_of
from torchrepro.nouns.verdict import Blame, Difference, Kind, LeafComparison, Stage, Verdict

_TITLES = {
    Kind.COMPILE_ERROR: "fails to compile",
    Kind.RUN_ERROR: "compiled function raises an error that eager does not",
    Kind.MISMATCH: "wrong result",
    Kind.NON_FINITE: "NaN or inf, none in eager,",
    Kind.CRASH: "crash",
    Kind.HANG: "hang",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.FLAKY: "fails intermittently",
    Kind.MISSING_ERROR: "does not raise the error that eager raises",
    **FINDINGS,
}
_TITLES_OF_OPS = {
    Kind.MISMATCH: "wrong result of {}",
    Kind.NON_FINITE: "NaN or inf from {}, none in eager,",
}
KINDS = {
    **{kind: kind.value.replace("_", " ") for kind in Kind},
    Kind.PASS: "passes",
    Kind.RUN_ERROR: "error at run time",
    Kind.MISMATCH: "wrong result",
    Kind.NON_FINITE: "NaN or infinity",
    Kind.INVALID: "cannot be tested",
}
STAGES = {
    Stage.CAPTURE: "capture (turning Python into a graph)",
    Stage.AOT: "AOT autograd (tracing forward and backward)",
    Stage.DECOMPOSITION: "decomposition (rewriting ops into simpler ones)",
    Stage.BACKEND: "the backend (generating and running code)",
    Stage.NONE: "unknown",
}
WAYS = {
    Way.ERROR: "the exception names it",
    Way.OUTPUTS: "its value is wrong while all its operands are right",
    Way.WINDOW: "it fails alone, on its recorded operands",
    Way.CONTRACT: "it does not do what it declares, on its recorded operands",
    Way.PIECE: "the failure appears with it: the graph without it passes, and so does the op alone",
}
CONFIDENCES = {
    Confidence.VERIFIED: "This was verified",
    Confidence.LIKELY: "This is likely: all evidence points there, but nothing turned off proves it",
    Confidence.UNKNOWN: "The confidence is unknown: there is not enough evidence",
}
_MESSAGE = 100


def title_of(
    verdict: Verdict | None, *, compiler: str, op: str, devices: frozenset[str], blamed: str = ""
) -> str:
    """Write the title of an issue in plain characters: it is pasted where nothing is escaped."""
    if blamed:
        declares = " does not do what it declares, so" if blamed.startswith("operator") else ""
        return plain(f"{blamed}:{declares} compiled code fails")
    way = "torch.compile" if compiler == "inductor" else f"torch.compile(backend={compiler})"
    if verdict is None or not verdict.fails:
        return plain(f"{way}: no failure recorded")
    place = " and ".join(sorted(device.upper() for device in devices)) or "CPU"
    what = _TITLES.get(verdict.kind, verdict.kind.value)
    if op:
        what = _TITLES_OF_OPS.get(verdict.kind, f"{what} in {{}}").format(op)
    raised = verdict.raised
    said = ""
    if raised is not None and verdict.kind in (Kind.COMPILE_ERROR, Kind.RUN_ERROR):
        said = f": {raised.type.rpartition('.')[2]}: {telling_line(raised.message)}"
    elif verdict.kind is Kind.CRASH and verdict.signal:
        said = f" ({verdict.signal})"
    line = plain(f"{way}: {what} on {place}{said}")
    return line if len(line) <= _MESSAGE else line[: _MESSAGE - 3].rstrip() + "..."


def plain(text: str) -> str:
    """Keep words, numbers and harmless marks, on one line: no mention, no issue number, no markup."""
    return " ".join(re.sub(r"[^A-Za-z0-9_ .,:;()=+/'\[\]-]", " ", text).split())


def sentence_of(verdict: Verdict | None, *, compiler: str) -> str:
    """Say what happened in one sentence. It quotes the bundle: a format has to escape it."""
    if verdict is None:
        return "It has not been judged yet whether the compiled function is right."
    way = f"torch.compile ({compiler})"
    raised = str(verdict.raised) if verdict.raised is not None else ""
    if verdict.kind is Kind.PASS and verdict.blamed is Blame.EAGER:
        return f"Nothing fails with {way}: {verdict.summary}"
    died = f"of {verdict.signal}" if verdict.signal else "without output"
    if verdict.kind in FINDINGS:
        return f"{way} {FINDINGS[verdict.kind]}: {verdict.summary}"
    return {
        Kind.PASS: f"With {way} the result is as close to the truth as without it: nothing fails.",
        Kind.MISMATCH: f"With {way} {_wrong_values(verdict)}",
        Kind.NON_FINITE: f"With {way} {_wrong_values(verdict)}",
        Kind.COMPILE_ERROR: f"{way} cannot compile this, which runs without it: {raised}",
        Kind.RUN_ERROR: f"With {way} this raises an error, and runs without it: {raised}",
        Kind.MISSING_ERROR: f"Without torch.compile this raises {raised}; with {way} it does not.",
        Kind.CRASH: f"With {way} the process dies {died}; without it, it runs.",
        Kind.HANG: f"With {way} it does not finish ({verdict.summary}); without it, it does.",
        Kind.OUT_OF_MEMORY: f"With {way} the memory runs out; without it, it does not.",
        Kind.FLAKY: f"With {way} it fails intermittently: {verdict.summary}",
        Kind.INVALID: f"Nothing can be said about the compiler: {verdict.summary}",
        Kind.NOT_COMPARABLE: f"The two results cannot be compared: {verdict.summary}",
    }[verdict.kind]


def culprit_of(located: Located | None) -> str:
    """Say what fails and how sure that is; empty if nothing was located."""
    if located is None:
        return ""
    if not located.found:
        reason = f": {located.notes[0]}" if located.notes else ""
        return f"The culprit is unknown{reason}."
    if located.blamed:
        return _operator(located)
    said = [f"The failing stage is {STAGES[located.stage]}{_part(located)}."]
    graph, op = located.graph, located.op
    if graph is not None and graph.count > 1:
        begins = f", which begins at {graph.source}" if graph.source else ""
        name = graph.name or f"number {graph.number}"
        said.append(f"Of {graph.count} compiled graphs it is {name}{begins}.")
    if op is not None:
        where = [f"in module {op.module}"] if op.module else []
        where += [f"at {op.source}"] if op.source else []
        place = f" ({', '.join(where)})" if where else ""
        said.append(f"The op is {op.op}, node {op.node}{place}: {WAYS[op.way]}.")
    said.append(f"{CONFIDENCES[located.confidence]}{_proof(located)}.")
    if located.sensitivity is not None and located.sensitivity.words:
        said.append(f"{located.sensitivity.words[0].upper()}{located.sensitivity.words[1:]}.")
    if located.stopped:
        said.append(f"The search is incomplete: {located.stopped}.")
    return " ".join(said)


def _operator(located: Located) -> str:
    """Say that code of the user is the culprit; for an operator, what it promised and should have said."""
    said = [f"The culprit is the custom {located.blamed}, not the compiler."]
    for one in located.violations:
        where = f" (registered at {one.registered})" if one.registered else ""
        said.append(f"{one.op}{where}: {one}. To fix it: {one.remedy}.")
    on_results = ": without it, on its recorded results, the failure goes away"
    proof = f": {located.part.detail}" if located.part is not None else on_results
    verified = located.confidence is Confidence.VERIFIED
    return " ".join([*said, f"{CONFIDENCES[located.confidence]}{proof if verified else ''}."])


def _part(located: Located) -> str:
    part = located.part
    if part is None:
        return ""
    detail = f" ({part.detail})" if part.detail else ""
    if not part.verified:
        return f"; of the {part.kind} {part.name}, {part.detail}"
    return f", and in it the {part.kind} {part.name}{detail}"


def _proof(located: Located) -> str:
    if located.confidence is not Confidence.VERIFIED:
        return ""
    hidden = located.part is not None and not located.part.verified
    if not hidden and located.workaround is not None and located.workaround.verified:
        return ": with it turned off, the failure goes away"
    return ": the op fails alone" if located.op is not None and located.op.way is Way.WINDOW else ""


def _wrong_values(verdict: Verdict) -> str:
    comparison = verdict.comparison
    if comparison is None or comparison.worst is None or not comparison.differing:
        return f"the result is wrong: {verdict.summary}"
    others = len(comparison.differing) - 1
    return _wrong_leaf(comparison.worst) + (f" (and {others} more)." if others else ".")


def _wrong_leaf(leaf: LeafComparison) -> str:
    where = leaf.path or "the result"
    if leaf.difference not in (Difference.VALUE, Difference.NON_FINITE) or not leaf.res_value:
        return f"{where} is wrong: {leaf.detail or leaf.difference.value}"
    count = f"{leaf.mismatched:,} of {leaf.elements:,} elements of {where} are wrong"
    if leaf.mismatched <= 1:
        count = f"1 of {leaf.elements:,} elements of {where} is wrong"
    if leaf.mismatched <= 1 and leaf.elements <= 1:
        count = f"{where} is wrong"
    sides = (("eager", leaf.ref_value), ("float64", leaf.truth_value))
    told = " and ".join(f"{side} gives {value}" for side, value in sides if value)
    right = f" where {told}" if told else ""
    return f"{count}: it gives {leaf.res_value}{index_of(leaf)}{right}{_how_far(leaf)}"


def _how_far(leaf: LeafComparison) -> str:
    """Say how many times further from the truth than eager it is, if that is at least twice."""
    if not leaf.rmse_ref or not leaf.rmse_res or not math.isfinite(leaf.rmse_res / leaf.rmse_ref):
        return ""
    times = leaf.rmse_res / leaf.rmse_ref
    return f", {float(f'{times:.2g}'):,.0f} times as far from the truth as eager" if times >= 2 else ""
