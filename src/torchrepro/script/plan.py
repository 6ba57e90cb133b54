"""Plan: what is known about a graph before it is written as a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.graph_text.printer import GraphText, overloads_of
from torchrepro.graph_text.resolver import needs_trust
from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.comparison import LeafPath
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.assertions import worst_leaf
from torchrepro.script.body import Body, BodyWriter
from torchrepro.script.fake_calls import SameCall
from torchrepro.script.inputs import Inputs, sizes_of_inputs
from torchrepro.script.literals import Unwritable
from torchrepro.script.preamble import setting_lines
from torchrepro.script.spelling import Speller, Style
from torchrepro.script.tensors import Surroundings
from torchrepro.script.user_source import operator_lines, source_lines
from torchrepro.state.fake_run import FakeRun, OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.user_code.closure.origin import is_installed_module
from torchrepro.user_code.graph_source import write_with_source
from torchrepro.user_code.operators import Operators, operators_of

RAISING = (Kind.COMPILE_ERROR, Kind.RUN_ERROR, Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
"""Failures that the call itself shows: nothing is compared."""


class Manner(StrEnum):
    """How much of the way in which the failure was seen a script keeps."""

    PLAIN = "plain"
    """What a person would write: a sum as the loss, a small seed."""
    EXACT = "exact"
    """As it was judged: the judge's loss, the recorded random state."""
    OPERATORS = "operators"
    """As it was judged, and every operator by its own name."""
    INTERNAL = "internal"
    """Handed to the compiler directly."""


@dataclass(eq=False)
class Plan:
    """A graph, its failure and a manner to write it; what is to be imported and set grows on the way."""

    repro: Repro
    verdict: Verdict
    manner: Manner
    modules: set[str] = field(default_factory=set)

    @cached_property
    def inputs(self) -> Inputs:
        return Inputs(Surroundings(default_dtype=getattr(torch, self.repro.ambient.default_dtype)))

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler as the script finds it: one of a script of the user is taken along."""
        return self._written[1] if self._written else self.repro.compiler

    @cached_property
    def source(self) -> list[str]:
        """The user's code that the compiler consists of, and his operators."""
        lines: list[str] = []
        if self._written and self._written[0].source:
            lines, modules = source_lines(self._written[0], self.inputs)
            self.modules |= modules
        if self.operators.entries:
            registering, modules = operator_lines(self.operators)
            self.modules |= modules
            lines += [*(["", ""] if lines and registering else []), *registering]
        return lines

    @cached_property
    def operators(self) -> Operators:
        """The operators of the user that the graph calls."""
        targets = [
            node.target
            for module in self.repro.graph.modules()
            if isinstance(module, GraphModule)
            for node in module.graph.nodes
            if isinstance(node.target, OpOverload | OpOverloadPacket) and needs_trust(node.target)
        ]
        return operators_of(overloads_of(targets), {})

    @cached_property
    def _written(self) -> tuple[GraphText, Compiler] | None:
        return write_with_source(self.repro) if ":" in self.repro.compiler.name else None

    @cached_property
    def settings(self) -> list[str]:
        return setting_lines(self.repro.ambient)

    @cached_property
    def traced(self) -> FakeRun:
        """The graph run on fakes: the value of each node, and which inputs it writes to."""
        return run_on_fakes(self.repro, log=OperatorLog(), user_code=True, symbols=False)

    @cached_property
    def body(self) -> Body:
        repro = self.repro
        lowered = repro.place is Place.AFTER_AOT and repro.compiler.name == "inductor"
        speller = Speller(
            self.traced,
            SameCall(self.traced, inductor_decompositions() if lowered else None),
            Style.PUBLIC if self.manner in (Manner.PLAIN, Manner.EXACT) else Style.OPERATORS,
            self.modules,
            frozenset(
                entry.op.partition(".")[0]
                for entry in self.operators.entries
                if entry.in_source or entry.library or is_installed_module(entry.module or "__main__")
            ),
        )
        owner = "self" if self.is_module else ""
        return BodyWriter(repro.graph, speller, sizes=sizes_of_inputs(repro.graph), owner=owner).write()

    @cached_property
    def placeholders(self) -> list[Node]:
        return [node for node in self.repro.graph.graph.nodes if node.op == "placeholder"]

    def value_of(self, node: Node) -> Any:
        """An input as the script makes it. Below AOT autograd has done its work."""
        value = self.repro.inputs[self.placeholders.index(node)]
        if self.repro.place is Place.AFTER_AOT and isinstance(value, torch.Tensor) and value.requires_grad:
            return value.detach()
        return value

    @cached_property
    def is_module(self) -> bool:
        """Whether there is state, which belongs to a module; export takes nothing else."""
        reads = any(
            node.op == "get_attr" and isinstance(self.attribute(str(node.target)), torch.Tensor)
            for node in self.repro.graph.graph.nodes
        )
        return reads or self.repro.compiler.name == AOT_INDUCTOR

    def attribute(self, path: str) -> Any:
        value: Any = self.repro.graph
        for part in path.split("."):
            value = getattr(value, part, None)
        return value

    @property
    def callee(self) -> str:
        return "model" if self.is_module else "f"

    @cached_property
    def leaf_path(self) -> LeafPath:
        """Where the results differ; the empty path where nothing was compared."""
        leaf = worst_leaf(self.verdict)
        where = LeafPath() if leaf is None else leaf.where
        if where.part == "python":
            raise Unwritable("a side effect on Python objects")
        return where

    @cached_property
    def runs_backward(self) -> bool:
        if self.repro.place is Place.AFTER_AOT or self.repro.backward is False:
            return False
        if self.verdict.kind not in RAISING and self.leaf_path.part != "grad":
            return False
        if not self.traced.complete and self.leaf_path.text:
            raise Unwritable("gradients of a graph whose sizes depend on data")
        return any(tensor.requires_grad for _, tensor in tensors_in(self.traced.output))

    @cached_property
    def is_plain_call(self) -> bool:
        """Whether one call leaves nothing behind that the next would see."""
        if self.verdict.kind is Kind.COMPILE_ERROR and self.manner is Manner.PLAIN:
            return not self.repro.earlier  # what a call leaves behind hardly changes how the next compiles
        gradients = self.runs_backward and self.verdict.kind not in RAISING
        changes = bool(self.traced.mutated) or self.traced.random or bool(self.repro.earlier)
        return not (gradients or changes or self.leaf_path.part in ("inputs", "state", "grad"))
