"""Find out whether a custom operator is the culprit, before a compiler is blamed.

An operator is accused if it breaks a promise on the values of the failing run (`execute/operator_contracts`),
and blamed if the failure goes away without it: the rest of the graph is compiled on its recorded results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.fx import Graph, Node

from torchrepro.cut.subgraph import piece
from torchrepro.cut.units import CALLS, parts_of
from torchrepro.engine.subsets import narrow
from torchrepro.graph_text.resolver import comes_with_torch
from torchrepro.graph_text.triton_kernels import calls_kernel, kernel_name, kernel_of
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import Watching, whereabouts
from torchrepro.nouns.contracts import OperatorChecks, blame, read_checks
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Confidence, GuiltyOp, Rung, Way
from torchrepro.nouns.verdict import Kind, Stage
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket, qualified_name

_CHECK = "torchrepro.execute.operator_contracts:check_repro"
FAKES = "fake tensors"
"""The rung of the ladder below all compilers: fake results against real ones, op by op."""


def check_operators(inquiry: Inquiry) -> OperatorChecks:
    """Run the computation eagerly in a child process and check the operators that it calls."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-operators-") as directory:
        log = Path(directory) / "checks.jsonl"
        outcome = inquiry.ran(_CHECK, inquiry.repro, compiles=0, log=str(log))
        checks = read_checks(log)
    unknown = outcome.result is None and not checks.operators and _may_call_custom(inquiry.repro)
    if unknown and inquiry.verdict.kind is not Kind.MISSING_ERROR:
        inquiry.notes.append("operators were not checked: an eager run that watches them does not end")
    return checks


def _may_call_custom(repro: Repro) -> bool:
    """Return whether a graph calls operators that do not come with torch; a whole call may."""
    if repro.place is Place.BEFORE_CAPTURE:
        return True
    nodes = [node for node in repro.graph.graph.nodes if node.op in CALLS]
    operators = (node.target for node in nodes if isinstance(node.target, OpOverload | OpOverloadPacket))
    return any(map(calls_kernel, nodes)) or not all(map(comes_with_torch, operators))


def rung_of(checks: OperatorChecks) -> Rung | None:
    """Return what comparing fake with real results has shown; None if nothing differs and nothing is custom.

    Operators of torch whose fake strides alone differ are named, and do not make the rung fail.
    """
    custom = [f"{one.op}: {one}" for one in checks.violations if one.contract.is_of_fakes]
    own = [f"{one.op}: {one.detail}" for one in checks.differences if one.counts]
    lenient = [f"{one.op}: {one.detail} (torch's own, not counted)" for one in checks.differences]
    told = custom or own or lenient
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    if told:
        kind = Kind.MISMATCH if custom or own else Kind.PASS
        return Rung(FAKES, Stage.NONE, kind, f"{told[0]}{more}")
    if not checks.operators:
        return None
    return Rung(FAKES, Stage.NONE, Kind.PASS, "fake and real results agree")


class Accused(NamedTuple):
    """The operators that are blamed, the first call of one, and how sure that is."""

    blamed: str
    op: GuiltyOp | None
    confidence: Confidence


def find_operator(inquiry: Inquiry, watching: Watching | None, checks: OperatorChecks) -> Accused | None:
    """Return the operators to blame; None if none broke a promise, or the failure stays without them."""
    accused = checks.accused(only_gradients=inquiry.failure.places == {"grad"})
    if not accused:
        return None
    calls = {name: nodes_calling(inquiry.repro.graph.graph, name) for name in accused}

    def is_gone(names: Sequence[str]) -> bool | None:
        if watching is None or not all(calls[name] for name in names):
            return None
        return _is_gone_without(inquiry, watching, [node for name in names for node in calls[name]])

    gone = is_gone(accused)
    if gone is False:
        said = "; ".join(f"{one.op}: {one}" for one in checks.violations if one.op in accused)
        inquiry.notes.append(f"the failure stays without the operators that break their contract ({said})")
        return None
    chosen = accused
    if gone is None:
        inquiry.notes.append(f"not verified: the graph could not be run without {' and '.join(accused)}")
    elif len(accused) > 1:
        needed = narrow(accused, lambda some: is_gone(some) is True)
        chosen = tuple(name for name in accused if name in needed) or accused
    node = next((node for name in chosen for node in calls[name]), None)
    op = None if node is None else GuiltyOp(**whereabouts(node), way=Way.CONTRACT)
    return Accused(blame(chosen), op, Confidence.VERIFIED if gone else Confidence.LIKELY)


def nodes_calling(graph: Graph, name: str) -> list[Node]:
    """Return the nodes of a graph that call an operator, also as an argument of a higher-order op."""
    return [node for node in graph.nodes if node.op in CALLS and name in _called_by(node)]


def _called_by(node: Node) -> Collection[str]:
    if calls_kernel(node):
        return {f"Triton kernel {kernel_name(kernel_of(node.kwargs))}"}
    targets: tuple[Any, ...] = (node.target, *node.args, *node.kwargs.values())
    names = {one.name() for one in targets if isinstance(one, OpOverload)}
    names |= {qualified_name(one) for one in targets if isinstance(one, OpOverloadPacket)}
    return {name.removesuffix(".default") for name in names}


def _is_gone_without(inquiry: Inquiry, watching: Watching, calls: Collection[Node]) -> bool | None:
    """Return whether the rest of the graph passes on the recorded results of these calls; None: unknown."""
    inquiry.on_step("whether it fails without the operator, on its recorded results")
    static, recording = watching.static, watching.recording
    names = [node.name for node in static.graph.graph.nodes if node.op in CALLS]
    left_out = {part.name for node in calls for part in (node, *parts_of(node, recording.several))}
    kept = [name for name in names if name not in left_out]
    rest = piece(static, recording, kept)
    if rest is None:
        return None if kept else True
    verdict = inquiry.verdict_on(rest)
    if not inquiry.is_gone(verdict):
        return False if verdict.fails else None
    if not (watching.repro.symbols or watching.repro.earlier):
        return True
    # On fixed sizes and without the calls before, it may pass with the operator as well.
    whole = piece(static, recording, names)
    return True if whole is not None and inquiry.fails(whole) else None
