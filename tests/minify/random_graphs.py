"""Random failing graphs, an oracle that only looks at the repro, and a check by brute force: what could go?

The oracle fails for a conjunction of conditions: an op that leads to another, two ops anywhere, so many of an
op, a size, a value, a setting. The check knows nothing of any pass: it takes out each single op, input, step
of a dimension and setting by itself, and asks the same oracle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from observing import ObserveHere
from torch.fx import Graph, GraphModule, Interpreter, Node

from torchrepro.nouns.repro import Ambient, Autocast, Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.state.ambient import applied_modes

CALLS = ("call_function", "call_method")

UNARY = (torch.relu, torch.sin, torch.cos, torch.tanh, torch.abs, torch.neg, torch.sigmoid)
BINARY = (torch.add, torch.mul, torch.sub, torch.maximum, torch.atan2)
SHAPES = ((3, 5), (4, 4), (2, 9))


@dataclass(frozen=True, eq=False)
class Condition:
    """A part of what makes a repro fail."""

    text: str
    holds: Callable[[Repro], bool]
    items: int
    """How many ops, sizes, values or settings it needs: what the bound on the queries counts."""


def named(repro: Repro, name: str) -> list[Node]:
    return [node for node in repro.graph.graph.nodes if node.op in CALLS and _name(node) == name]


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else node.target.__name__  # type: ignore[union-attr]


def leads_to(first: str, second: str) -> Condition:
    def holds(repro: Repro) -> bool:
        reached: set[Node] = set()
        for node in repro.graph.graph.nodes:
            inputs = node.all_input_nodes
            if any(each in reached for each in inputs):
                if node.op in CALLS and _name(node) == second:
                    return True
                reached.add(node)
            if node.op in CALLS and _name(node) == first:
                reached.add(node)
        return False

    return Condition(f"{first} leads to {second}", holds, 2)


def has(name: str, times: int = 1) -> Condition:
    return Condition(f"{times} x {name}", lambda repro: len(named(repro, name)) >= times, times)


def size_of_last(at_least: int) -> Condition:
    def holds(repro: Repro) -> bool:
        return any(
            t.dim() > 0 and t.shape[-1] >= at_least for t in repro.inputs if isinstance(t, torch.Tensor)
        )

    return Condition(f"a last dimension of {at_least}", holds, 1)


def below_zero() -> Condition:
    def holds(repro: Repro) -> bool:
        return any(bool((t < 0).any()) for t in repro.inputs if isinstance(t, torch.Tensor))

    return Condition("a negative value", holds, 1)


SETTINGS: dict[str, Callable[[Repro], bool]] = {
    "mode": lambda repro: repro.compiler.mode == "max-autotune",
    "option": lambda repro: "epilogue_fusion" in repro.compiler.options,
    "config": lambda repro: "size_asserts" in repro.ambient.configs.get("inductor", {}),
    "autocast": lambda repro: bool(repro.ambient.autocast),
    "grad_enabled": lambda repro: not repro.ambient.grad_enabled,
    "deterministic": lambda repro: repro.ambient.deterministic == "warn",
}


def setting(name: str) -> Condition:
    return Condition(f"the setting {name}", SETTINGS[name], 1)


def with_all_settings(repro: Repro) -> Repro:
    return replace(
        repro,
        compiler=Compiler(mode="max-autotune", options={"epilogue_fusion": True, "max_autotune": True}),
        ambient=Ambient(
            grad_enabled=False,
            deterministic="warn",
            autocast=(Autocast("cpu", "bfloat16"),),
            configs={"inductor": {"size_asserts": False, "nan_asserts": True}},
        ),
    )


@dataclass(frozen=True, eq=False)
class Case:
    """A repro that fails, and why."""

    repro: Repro
    conditions: tuple[Condition, ...]
    kind: Kind = Kind.COMPILE_ERROR

    def fails(self, repro: Repro) -> bool:
        return all(condition.holds(repro) for condition in self.conditions)

    def __repr__(self) -> str:
        why = ", ".join(condition.text for condition in self.conditions)
        return f"Case({why}; {self.repro.graph.code})"


@st.composite
def cases(draw: st.DrawFn, max_ops: int = 60) -> Case:
    """A random graph with a reason to fail that it really has."""
    repro = draw(random_repros(max_ops))
    present = sorted({_name(node) for node in repro.graph.graph.nodes if node.op in CALLS} - {"getitem"})
    names = st.sampled_from(present)
    ops = [has(name) for name in present]
    ops += [has(draw(names), draw(st.integers(2, 4))) for _ in range(2)]
    ops += [leads_to(draw(names), draw(names)) for _ in range(4)]
    others = [size_of_last(draw(st.integers(2, 9))), below_zero(), *map(setting, SETTINGS)]
    possible = [condition for condition in ops if condition.holds(repro)]
    chosen = draw(st.lists(st.sampled_from(possible), min_size=1, max_size=2, unique_by=lambda c: c.text))
    beside = [condition for condition in others if condition.holds(repro)]
    if beside:
        chosen += draw(st.lists(st.sampled_from(beside), max_size=2, unique_by=lambda c: c.text))
    return Case(repro, tuple(chosen), draw(st.sampled_from([Kind.COMPILE_ERROR, Kind.MISMATCH])))


@st.composite
def random_repros(draw: st.DrawFn, max_ops: int) -> Repro:
    count = draw(st.integers(5, max_ops))
    shape = draw(st.sampled_from(SHAPES))
    graph = Graph()
    values = [graph.placeholder(f"x{index}") for index in range(draw(st.integers(1, 4)))]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    inputs = [torch.randn(shape, generator=generator) for _ in values]
    picks = draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count))
    for pick in picks:
        values.append(_op(graph, values, pick))
    ends = [value for value in values if not value.users and value.op != "placeholder"]
    graph.output(tuple(ends) if len(ends) > 1 or pick_one(picks) else ends[0])
    repro = Repro(GraphModule(torch.nn.Module(), graph), tuple(inputs))
    return with_all_settings(repro) if draw(st.booleans()) else repro


def pick_one(picks: Sequence[int]) -> bool:
    return bool(picks and picks[0] % 2)


def _op(graph: Graph, values: list[Node], pick: int) -> Node:
    """An op on values made before; the later ones are likelier, so that graphs are deep as well as wide."""
    kind, pick = pick % 8, pick // 8
    recent = values[-(1 + pick % 7) :][0]
    anywhere = values[pick % len(values)]
    if kind < 4:
        return graph.call_function(UNARY[pick % len(UNARY)], (recent,))
    if kind < 7:
        return graph.call_function(BINARY[pick % len(BINARY)], (recent, anywhere))
    whole = graph.call_function(torch.max, (recent,), {"dim": 1, "keepdim": True})
    part = graph.call_function(operator.getitem, (whole, 0))
    return graph.call_function(torch.add, (recent, part))


class CaseOracle(ObserveHere):
    """Fails where the case does and eager runs; counts what it is asked."""

    def __init__(self, case: Case, workers: int = 1) -> None:
        self.case = case
        self.workers = workers
        self.queries = 0

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.queries += 1
            yield index, self.verdict(candidate)

    def verdict(self, candidate: Repro) -> Verdict:
        if not runs(candidate):
            return Verdict(Kind.INVALID)
        return Verdict(self.case.kind if self.case.fails(candidate) else Kind.PASS)


def runs(repro: Repro) -> bool:
    """Not by calling the module: FX prints what a graph raises."""
    try:
        _eager_values(repro)
    except Exception:
        return False
    return True


# What could go? Each is one step away from a repro.


def single_steps(repro: Repro) -> Iterator[tuple[str, Repro]]:
    """Every repro with one op, one input, one step of a dimension or one setting less."""
    yield from _without_each_op(repro)
    yield from _without_unused_inputs(repro)
    yield from _one_step_smaller(repro)
    yield from _without_each_setting(repro)


def _without_each_op(repro: Repro) -> Iterator[tuple[str, Repro]]:
    values = _eager_values(repro)
    for node in repro.graph.graph.nodes:
        if node.op in CALLS and isinstance(values[node.name], torch.Tensor):
            yield f"cut {node.name}", _with_input_for(repro, node.name, values[node.name])
            on_the_way = any(user.op in CALLS for user in node.users)
            for operand in node.all_input_nodes if on_the_way else ():
                if _alike(values.get(operand.name), values[node.name]):
                    yield f"pass {node.name} by", _with_other(repro, node.name, operand.name)


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and one.shape == other.shape and one.dtype == other.dtype


def _eager_values(repro: Repro) -> dict[str, Any]:
    found: dict[str, Any] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            found[n.name] = super().run_node(n)
            return found[n.name]

    with applied_modes(repro.ambient):
        Recorder(repro.graph).run(*repro.inputs)
    return found


def _copied(repro: Repro) -> tuple[Graph, dict[str, Node]]:
    graph = Graph()
    returned = graph.graph_copy(repro.graph.graph, copies := {})
    graph.output(returned)
    return graph, {old.name: new for old, new in copies.items()}


def _with_input_for(repro: Repro, name: str, value: torch.Tensor) -> Repro:
    graph, nodes = _copied(repro)
    with graph.inserting_before(next(iter(graph.nodes))):
        placeholder = graph.placeholder("cut")
    nodes[name].replace_all_uses_with(placeholder)
    return _finished(repro, graph, {"cut": value.detach()})


def _with_other(repro: Repro, name: str, other: str) -> Repro:
    graph, nodes = _copied(repro)
    nodes[name].replace_all_uses_with(nodes[other])
    return _finished(repro, graph, {})


def _finished(repro: Repro, graph: Graph, more: dict[str, Any]) -> Repro:
    """Without what nothing leads to any more."""
    given = {
        node.name: value for node, value in zip(_placeholders(repro.graph.graph), repro.inputs, strict=True)
    }
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op != "output":
            graph.erase_node(node)
    inputs = tuple({**given, **more}[node.name] for node in _placeholders(graph))
    return replace(repro, graph=GraphModule(torch.nn.Module(), graph), inputs=inputs)


def _placeholders(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _without_unused_inputs(repro: Repro) -> Iterator[tuple[str, Repro]]:
    for node in _placeholders(repro.graph.graph):
        if not node.users:
            graph, _ = _copied(repro)
            yield f"drop the input {node.name}", _finished(repro, graph, {})


def _one_step_smaller(repro: Repro) -> Iterator[tuple[str, Repro]]:
    """One input alone, or all inputs that have this size there: what belongs together is not known here."""
    for index, tensor in enumerate(repro.inputs):
        for dim, size in enumerate(tensor.shape if isinstance(tensor, torch.Tensor) else ()):
            if size > 1:
                alone = {index}
                alike = {
                    other
                    for other, each in enumerate(repro.inputs)
                    if isinstance(each, torch.Tensor) and each.dim() > dim and each.shape[dim] == size
                }
                for chosen in {frozenset(alone), frozenset(alike)}:
                    for start in (0, 1):
                        inputs = tuple(
                            each.narrow(dim, start, size - 1).clone() if number in chosen else each
                            for number, each in enumerate(repro.inputs)
                        )
                        yield f"dim {dim} of {sorted(chosen)}", replace(repro, inputs=inputs)


def _without_each_setting(repro: Repro) -> Iterator[tuple[str, Repro]]:
    plain, compiler, ambient = Ambient(), repro.compiler, repro.ambient
    if compiler.mode is not None:
        yield "mode", replace(repro, compiler=replace(compiler, mode=None))
    for name in compiler.options:
        left = {key: value for key, value in compiler.options.items() if key != name}
        yield f"option {name}", replace(repro, compiler=replace(compiler, options=left))
    for name in ("grad_enabled", "deterministic", "autocast"):
        if getattr(ambient, name) != getattr(plain, name):
            reset = {name: getattr(plain, name)}
            yield name, replace(repro, ambient=replace(ambient, **reset))
    for module, values in ambient.configs.items():
        for name in values:
            left = {key: value for key, value in values.items() if key != name}
            yield f"config {name}", replace(repro, ambient=replace(ambient, configs={module: left}))
