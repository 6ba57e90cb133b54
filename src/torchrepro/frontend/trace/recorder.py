"""Recorder: records what real Python code does to fake tensors, as a graph of torch functions."""

from __future__ import annotations

import linecache
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.overrides import TorchFunctionMode

from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported, Where
from torchrepro.frontend.source import Source
from torchrepro.frontend.trace import fakes, nodes
from torchrepro.frontend.trace.classes import MISSING, static_lookup
from torchrepro.torch_api import captured_graphs
from torchrepro.torch_api.captured_graphs import Modes, restored, write_modes
from torchrepro.torch_api.facts import storage_places
from torchrepro.torch_api.fake import FakeTensor, FakeTensorMode
from torchrepro.torch_api.modes import no_mode_left

ModuleStack = Mapping[str, tuple[str, Any]]
"""As torch's `nn_module_stack`: a key, and the path (`L['self'].encoder`) with the class; innermost last."""


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A finished graph and what its caller needs to run it."""

    graph_module: GraphModule
    inputs: tuple[tuple[Source, torch.Tensor], ...]
    """For each placeholder, in order: its source, and the real tensor of this call."""
    outputs: tuple[torch.Tensor, ...]
    """The fakes that the graph returns, in order."""
    op_count: int
    mutated_inputs: tuple[Source, ...]
    """Inputs whose memory the graph writes."""
    end_state: Modes | None
    """The modes that the user's code left behind, to be applied after the graph; None if as at the start."""
    start_state: Modes
    hidden_sharing: bool
    """Whether it writes, and inputs in different storages share memory (`torch.from_numpy` twice)."""
    effects: bool
    """Whether running the graph leaves anything behind: in memory, in a generator, or unknown."""

    def without_data(self) -> Captured:
        """Return a copy with fakes as inputs: the region outlives the call and must not keep its tensors."""
        nodes = self.graph_module.graph.find_nodes(op="placeholder")
        pairs = zip(self.inputs, nodes, strict=True)
        return replace(
            self, inputs=tuple((source, node.meta["example_value"]) for (source, _), node in pairs)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """A real tensor, its fake, and where the tensor is found."""

    source: Source
    real: torch.Tensor
    fake: torch.Tensor
    node: Node


class Recorder(TorchFunctionMode):
    """Fakes look like the tensors they stand for; what happens to them under `active()` becomes a graph."""

    def __init__(
        self,
        where: Callable[[], tuple[Where, ...]],
        module_stack: Callable[[], ModuleStack] | None = None,
    ) -> None:
        super().__init__()
        self.fake_mode = FakeTensorMode()  # without a `ShapeEnv` every size is an `int`
        self._where = where
        self._module_stack = module_stack
        self._watcher = fakes.Watcher()
        self._graph = Graph()
        self._inputs: dict[int, Origin] = {}
        """By `id` of the real tensor."""
        self._by_fake: dict[int, Origin] = {}
        self._nodes: dict[int, tuple[torch.Tensor, Node]] = {}
        """By `id` of the fake, which is kept alive."""
        self._storages: set[int] = set()
        """Memory that existed before the operation that runs now."""
        self._written: set[int] = set()
        self._under: dict[Node, Modes] = {}
        self._effects: set[Node] = set()
        self._choices: list[tuple[int, set[int]]] = []
        """Memory of a tensor that the graph chose (`max`), and of those that it chose from."""
        self._errors: list[Exception] = []
        self._start = Modes.now()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Record what the body does, and restore torch's state after it."""
        self._start = Modes.now()
        with restored(), fakes.quiet(), self.fake_mode, self._watcher, self, no_mode_left():
            yield

    def input(self, real: torch.Tensor, source: Source, name: str) -> torch.Tensor:
        """Return the fake of a real tensor, the same each time. Placeholders are in order of first calls."""
        if id(real) not in self._inputs:
            with fakes.unseen(), self._watcher.expecting():
                why = captured_graphs.why_not_in_graph(real)
                if why is not None:
                    raise Unsupported(f"{source} is {why}")
                fake = fakes.fake_of(self.fake_mode, real)
            node = self._placeholder(name)
            node.meta["example_value"] = fake
            found = Origin(source, real, fake, node)
            self._inputs[id(real)] = self._by_fake[id(fake)] = found
            self._own(fake, node)
        return self._inputs[id(real)].fake

    def forget(self) -> None:
        """Release references to the tensors."""
        for held in (self._inputs, self._by_fake, self._nodes, self._errors):
            held.clear()

    def raised(self, value: Any) -> bool:
        """Return whether it is an error that torch raised on fakes; on real tensors its text may differ."""
        return any(error is value for error in self._errors)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether it is a fake of this recorder: an input or a result."""
        return id(tensor) in self._nodes

    def origin_of(self, fake: torch.Tensor) -> Origin | None:
        """Return where an input comes from; None for a result."""
        return self._by_fake.get(id(fake))

    def inputs_in_memory_of(self, fake: torch.Tensor) -> list[Origin]:
        """Return the inputs that it shares memory with, those it is a view of included."""
        memory = fakes.storage_key(fake)
        return [found for found in self._inputs.values() if fakes.storage_key(found.fake) == memory]

    def real_type_of(self, fake: torch.Tensor) -> type:
        """Return the type of the real tensor; its own type for a tensor that is not a fake."""
        found = self._by_fake.get(id(fake))
        if found is not None:
            return type(found.real)
        return torch.Tensor if fakes.is_fake(fake) else type(fake)

    def attribute(self, fake: torch.Tensor, name: str) -> Any:
        """Return `fake.name` as the real tensor has it: recorded if it is a tensor, a constant otherwise."""
        kind = self.real_type_of(fake)
        if name == "__dict__":
            raise Unsupported("the attributes of a tensor as a dict")
        found = static_lookup(kind, name)
        if found is MISSING:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=fake)
        if not hasattr(type(found), "__get__"):
            return found  # a plain value of the class (`__doc__`), where the class of fakes has another
        if found is not static_lookup(torch.Tensor, name):
            return found.__get__(fake, kind)  # the class's own: `nn.Parameter.__deepcopy__`
        if isinstance(vars(FakeTensor).get(name), FunctionType):
            return getattr(super(FakeTensor, fake), name)  # the real one's method, not that of fakes
        return getattr(fake, name)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__iter__:
            if args[0].dim() == 0:
                raise TypeError("iteration over a 0-d tensor")
            return iter(self.__torch_function__(torch.unbind, types, (args[0], 0)))
        name = captured_graphs.name_of(func)
        for tensor in fakes.tensors_in((args, dict(kwargs))):
            self._node_of(tensor)
        nodes.check_operation(func, name, args, kwargs)
        outs = [(tensor, tensor.shape) for tensor in fakes.tensors_in(kwargs.get("out"))]
        try:
            with self._watcher.expecting():
                result = func(*args, **kwargs)
        except Exception as error:
            reason = fakes.reason_of(error, name)
            if reason is None:
                self._errors.append(error)
                raise
            raise Break.of(reason) from error
        if any(tensor.shape != shape for tensor, shape in outs):
            raise Unsupported(f"{name} changes the shape of out=", "give it a tensor that fits")
        # Not every operator writes `out=` through one whose schema declares it (`linalg.matrix_rank`).
        self._watcher.written.update(fakes.storage_key(tensor) for tensor, _ in outs)
        self._record(func, name, args, kwargs, result)
        return result

    def choose(self, tensors: Sequence[Any], better: Callable[..., Any]) -> torch.Tensor | None:
        """Return the best of numbers of one kind, chosen in the graph; None where Python has to choose.

        With gradients it has to: those that are not chosen get none.
        """
        kinds = [self.owns(t) and t.numel() == 1 and (t.shape, t.dtype, t.device) for t in tensors]
        if not all(kinds) or len(set(kinds)) > 1 or any(t.requires_grad for t in tensors):
            return None
        chosen: torch.Tensor = reduce(lambda best, each: torch.where(better(each, best), each, best), tensors)
        self._choices.append((fakes.storage_key(chosen), set(map(fakes.storage_key, tensors))))
        return chosen

    def shows_choice(self, outputs: Sequence[torch.Tensor]) -> bool:
        """Return whether a program can see that what `choose` gave is a copy: by a write, or by identity."""
        kept = set(map(fakes.storage_key, outputs))
        known = kept.union(fakes.storage_key(found.fake) for found in self._inputs.values())
        return any(
            not self._written.isdisjoint({chosen, *given}) or (chosen in kept and not given.isdisjoint(known))
            for chosen, given in self._choices
        )

    def finish(self, outputs: Sequence[torch.Tensor]) -> Captured:
        """Return the graph that computes `outputs` and has all effects. The recorder cannot be used again."""
        end = Modes.now()
        self._graph.output(tuple(self._node_of(tensor) for tensor in outputs))
        for node in reversed(self._graph.nodes):
            if not node.users and node.op != "output" and node not in self._effects:
                self._graph.erase_node(node)
        write_modes(self._graph, self._start, self._under)
        self._graph.lint()
        left = set(self._graph.nodes)
        inputs = [found for found in self._inputs.values() if found.node in left]
        memory = [fakes.storage_key(found.fake) for found in inputs]
        places, _ = storage_places([found.real for found in inputs])
        return Captured(
            graph_module=captured_graphs.bind_functions(GraphModule(torch.nn.Module(), self._graph)),
            inputs=tuple((found.source, found.real) for found in inputs),
            outputs=tuple(outputs),
            op_count=sum(node.op.startswith("call") for node in left),
            mutated_inputs=tuple(
                found.source for found, key in zip(inputs, memory, strict=True) if key in self._written
            ),
            hidden_sharing=len(set(places)) < len(set(memory)) and not self._written.isdisjoint(memory),
            end_state=None if end == self._start else end,
            start_state=self._start,
            effects=not left.isdisjoint(self._effects),
        )

    # Recording

    def _record(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Add a node, if there is a new tensor or an effect; sizes, dtypes and the like are constants."""
        written = self._watcher.written & self._storages
        effect = bool(written) or self._watcher.random or self._watcher.foreign
        fresh = [tensor for tensor in fakes.tensors_in(result) if not self.owns(tensor)]
        if not fresh and not effect:
            if not nodes.is_plain(result):
                kind = type(result)
                raise Unsupported(f"{name} gives a value of {kind.__module__}.{kind.__qualname__}")
            return
        modes = Modes.now()
        if modes.inference != self._start.inference:
            raise Unsupported("torch.inference_mode inside of a graph", "use torch.no_grad")
        for tensor in fresh:
            nodes.check_result(tensor, name)
        op, target, given = captured_graphs.form_of(func, args, kwargs)
        given, named = (nodes.as_argument(each, self._node_of, name) for each in (given, dict(kwargs)))
        node = self._graph.create_node(op, target, given, named)
        if effect:
            self._effects.add(node)
        self._written |= written
        self._annotate(node, result, modes)
        self._assign(result, node, modes)

    def _assign(self, result: Any, node: Node, modes: Modes) -> None:
        """Store the node of every new tensor in a result; an existing one (`x.add_(1)`) keeps its node."""
        if isinstance(result, torch.Tensor):
            if not self.owns(result):
                self._own(result, node)
            return
        items = result.items() if isinstance(result, dict) else enumerate(result or ())
        for key, item in items:
            if any(not self.owns(tensor) for tensor in fakes.tensors_in(item)):
                member = self._graph.call_function(operator.getitem, (node, key))
                self._annotate(member, item, modes)
                self._assign(item, member, modes)

    def _own(self, fake: torch.Tensor, node: Node) -> None:
        self._nodes[id(fake)] = (fake, node)
        self._storages.add(fakes.storage_key(fake))

    def _node_of(self, tensor: torch.Tensor) -> Node:
        found = self._nodes.get(id(tensor))
        if found is None:
            raise Break(
                BreakKind.OPAQUE,
                "a tensor that was made or found outside of what is traced",
                "torch.tensor and the other factory functions can be traced",
            )
        return found[1]

    def _placeholder(self, name: str) -> Node:
        """Add a placeholder after the others, before all other nodes."""
        last = next((found.node for found in reversed(self._inputs.values())), None)
        first = next(iter(self._graph.nodes), None)
        with self._graph.inserting_after(last) if last else self._graph.inserting_before(first):
            node = self._graph.placeholder(f"{name}_" if name == "self" else name)
        # The node's name is legal and unique; the target becomes a parameter and must be so as well.
        node.target = node.name
        return node

    def _annotate(self, node: Node, value: Any, modes: Modes) -> None:
        self._under[node] = modes
        node.meta["example_value"] = value
        node.meta["stack_trace"] = "".join(
            f'  File "{place.file}", line {place.line}, in {place.function}\n'
            f"    {linecache.getline(place.file, place.line).strip() or '<no source>'}\n"
            for place in self._where()
        )
        if self._module_stack is not None:
            node.meta["nn_module_stack"] = dict(self._module_stack())
