"""Reject candidates that cannot run, before compiling them: run them on fake tensors.

Only what eager certainly rejects may be rejected. Anything uncertain (results that depend on data, operators
without a fake kernel, higher-order operators, the user's own functions) counts as valid: a query on an
invalid candidate costs 0.1 s, a valid candidate that is rejected is lost.
"""

from __future__ import annotations

import warnings

import torch
from torch.fx import Node

from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.fake_run import FakeRun, run_on_fakes
from torchrepro.torch_api import pytree
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload

_SURE = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)
"""What torch raises for operands that do not fit. AssertionError and KeyError are about a fake kernel."""
_UNSURE = (NotImplementedError, RecursionError)
_ABOUT_FAKES = (
    *("fake", "meta", "symbolic", "symint", "not implement"),
    *("data_ptr", "data pointer", "storage", "not allocated"),
)
"""Words of an exception that is about fake tensors, and not about the operands."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_TORCH_NAMESPACES = frozenset({"aten", "prims", "prim", "torchvision"})


def why_invalid(repro: Repro) -> str:
    """Return what eager would raise, as far as shapes and dtypes tell; empty if nothing is known."""
    ill_formed = _why_ill_formed(repro)
    if ill_formed or repro.place is Place.BEFORE_CAPTURE:
        return ill_formed
    run = run_on_fakes(repro)
    return "" if run.raised is None or _depends_on_data(run) else _blame(run.raised, run.node)


def _why_ill_formed(repro: Repro) -> str:
    """Return why it is not a valid graph, or does not take these inputs; empty if it is and does."""
    nodes = repro.graph.graph.nodes
    wanted = [node for node in nodes if node.op == "placeholder"]
    required = sum(not node.args for node in wanted)
    if not required <= len(repro.inputs) <= len(wanted):
        return f"the graph takes {len(wanted)} inputs, the candidate has {len(repro.inputs)}"
    if not any(node.op == "output" for node in nodes):
        return "the graph returns nothing"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            repro.graph.graph.lint()
    except Exception as exc:
        return f"the graph is ill-formed: {exc}"
    return ""


def _depends_on_data(run: FakeRun) -> bool:
    """Return whether the sizes of the operands of the node that raised are known only at run time."""
    operands = run.node.all_input_nodes if run.node is not None else ()
    values = [run.values.get(operand) for operand in operands]
    sizes = [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in values]
    return any(isinstance(size, _SYMBOLIC) for size in pytree.tree_leaves(sizes))


def _blame(exc: Exception, node: Node | None) -> str:
    """Return an exception that eager would raise as well, as text; empty if that is not certain."""
    target = node.target if node is not None else None
    custom = isinstance(target, OpOverload) and target.namespace not in _TORCH_NAMESPACES
    if custom or isinstance(target, HigherOrderOperator):
        return ""
    said = str(exc).lower()
    if not isinstance(exc, _SURE) or isinstance(exc, _UNSURE) or type(exc).__module__ != "builtins":
        return ""
    if any(word in said for word in _ABOUT_FAKES):
        return ""
    return f"{type(exc).__name__}: {exc}"
