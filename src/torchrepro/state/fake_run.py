"""Run a graph on fake tensors: what its nodes would compute, without computing anything.

A run leaves nothing behind: modes, generators and the tensors of the graph stay as they were.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import Node

from torchrepro.graph_text import resolver
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Ambient, Place, Repro
from torchrepro.state.ambient import applied_modes
from torchrepro.torch_api.fake import FakeInterpreter, FakeTensorMode, ShapeEnv
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.modes import TorchDispatchMode, default_dtype, modes_kept
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torchrepro.torch_api.pytree import tree_flatten, tree_leaves, tree_map_only
from torchrepro.torch_api.tensors import storage_identity, version_of

Decompositions = Mapping[Any, Callable[..., Any]]
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class OperatorLog(TorchDispatchMode):
    """Record every operator that is reached, with its arguments; tensors by where they came from.

    Operators in `decompositions` are replaced by what they are made of, as a compiler does. `known` names the
    tensors that exist before. `aliases`: record `detach` and `alias` as well.
    """

    def __init__(
        self,
        decompositions: Decompositions | None = None,
        known: Mapping[Any, str] | None = None,
        *,
        aliases: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._silent = _QUESTIONS if aliases else _QUESTIONS | _ALIASES
        self._table = decompositions or {}
        self._known = dict(known or {})
        self._alive: list[Any] = []
        self.calls: list[tuple[OpOverload, str]] = []
        self.written: set[Any] = set()
        """Memory that is written to although the operator's schema does not say so."""

    @property
    def ops(self) -> list[OpOverload]:
        return [op for op, _ in self.calls]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._silent:
            return func(*args, **kwargs)
        if func in self._table:
            with self:
                result = self._table[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        # Without the arguments of a factory that its result shows as well.
        telling = {name: value for name, value in kwargs.items() if name not in _SHOWN}
        described = self.described((args, telling))
        result = func(*args, **kwargs)
        self.calls.append((func, described))
        if func in _TRAINING:
            self.written |= {storage_identity(value) for value in args[3:5] if args[5] and value is not None}
        results = (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        for number, tensor in enumerate(results):
            self._alive.append(tensor)  # else its memory or id could be reused
            about = f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
            self._known[identity(tensor)] = f"result {len(self.calls)}.{number} {about}"
        return result

    def described(self, value: Any) -> str:
        """Return a value as text that is equal for values that an operator cannot tell apart."""
        leaves, structure = tree_flatten(value)
        words = [
            self._known.get(identity(leaf), "constant") if isinstance(leaf, torch.Tensor) else _word(leaf)
            for leaf in leaves
        ]
        return f"{structure} {words}"


_SHOWN = ("dtype", "layout", "device", "pin_memory")
_QUESTIONS = frozenset({torch.ops.prim.device.default})
"""Asked by fakes themselves."""
_ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
"""They change nothing that a compiler sees."""
# (input, weight, bias, running mean, running variance, training, ...)
_TRAINING = frozenset({torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default})


def inductor_decompositions() -> Decompositions:
    """Return the decompositions that Inductor uses while tracing."""
    from torchrepro.torch_api.inductor import lowering, select_decomp_table  # noqa: F401

    table: Decompositions = select_decomp_table()
    return table


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for the same view of the same memory, even where Python's objects differ."""
    if tensor.layout is not torch.strided:
        return ("object", id(tensor))
    return (*storage_identity(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())


def _word(leaf: Any) -> str:
    """Return a number as text; 2 and 2.0 are the same scalar to an operator on floats."""
    return str(int(leaf)) if isinstance(leaf, float) and leaf.is_integer() else str(leaf)


@dataclass(eq=False)
class FakeRun:
    """How a graph ran on fakes."""

    mode: FakeTensorMode
    ambient: Ambient
    inputs: Sequence[Any] = ()
    values: dict[Node, Any] = field(default_factory=dict)
    """Of each node that ran; up to the first op that raised or of which nothing is known."""
    output: Any = None
    complete: bool = False
    """Whether the run reached the end: sizes that depend on data cannot be foreseen."""
    raised: Exception | None = None
    node: Node | None = None
    """The last node that was run: the one that raised, if one did."""
    warned: bool = False
    """Whether torch warned about the way it is called."""
    mutated: frozenset[int] = frozenset()
    """Inputs that are written to, by number; only known with a log."""
    random: bool = False
    """Whether an op draws random numbers; only known with a log."""

    @property
    def by_name(self) -> dict[str, Any]:
        """The values by the names of their nodes, for copies of the graph."""
        return {node.name: value for node, value in self.values.items()}

    @contextmanager
    def around(self, *, see_writes: bool = True) -> Iterator[None]:
        """Apply fakes and the modes of the repro; inference mode would hide which inputs are written to."""
        ambient = self.ambient
        if see_writes:
            enabled = ambient.grad_enabled and not ambient.inference_mode
            ambient = replace(ambient, grad_enabled=enabled, inference_mode=False)
        dtype = getattr(torch, self.ambient.default_dtype)
        with default_dtype(dtype), modes_kept(), applied_modes(ambient), self.mode:
            yield


def run_on_fakes(
    repro: Repro, *, log: OperatorLog | None = None, user_code: bool = False, symbols: bool = True
) -> FakeRun:
    """Run a repro's graph on fakes of its inputs, as far as it goes.

    `user_code`: run functions of the user as well; else the run ends where one is called. `symbols`: sizes
    that depend on data become symbols; loops need this even where no size is one. `log` records the operators
    that are reached.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv() if symbols else None, allow_non_fake_inputs=True)
    below_autograd = repro.place is Place.AFTER_AOT
    run = FakeRun(mode, replace(repro.ambient, grad_enabled=False) if below_autograd else repro.ambient)
    interpreter = _Interpreter(repro.graph, run, user_code)
    try:
        run.inputs = tree_map_only(torch.Tensor, interpreter.fake, list(repro.inputs))
    except Exception:
        return run  # a kind of tensor without a fake
    versions = [_version(value) for value in run.inputs]
    # Generators are restored, and kernels that only compute shapes are silenced.
    held = (repro.inputs, list(vars(repro.graph).values()))
    generators = [value for value in tree_leaves(held) if isinstance(value, torch.Generator)]
    start = capture_rng_state(*generators)
    around = run.around(see_writes=log is not None)
    with silent_torch() as warned, same_randomness(start), around, interpreter.closing():
        try:
            with log or ExitStack():
                run.output = interpreter.run(*run.inputs)
            run.complete = True
        except _Unknown:
            pass  # what was found so far is valid
        except Exception as exc:
            run.raised = exc
    run.warned = bool(warned)
    if log is not None:
        run.mutated = frozenset(
            number
            for number, (value, before) in enumerate(zip(run.inputs, versions, strict=True))
            if _version(value) != before or log.written & {storage_identity(t) for _, t in tensors_in(value)}
        )
        run.random = any(torch.Tag.nondeterministic_seeded in op.tags for op in log.ops)
    return run


def inputs_written(repro: Repro) -> frozenset[int] | None:
    """Return the positions of the inputs that a graph writes to; None if only running it would show them.

    That is so for operators that do not come with torch, whose schemas are the user's word.
    """
    log = OperatorLog()
    run = run_on_fakes(repro, log=log)
    known = run.complete and all(op.namespace in ("aten", "prims") for op in log.ops)
    return run.mutated if known else None


class _Unknown(Exception):
    """From here on nothing is known without running the user's code, or without data."""


class _Interpreter(FakeInterpreter):
    """Records the value of each node in a run, and which regions are open."""

    def __init__(self, module: torch.fx.GraphModule, run: FakeRun, user_code: bool) -> None:
        super().__init__(module, run.mode)
        self.extra_traceback = False
        self._run = run
        self._user_code = user_code
        self._entered: list[Any] = []
        """What nodes of the graph have entered and not yet left: autocast, inference mode."""

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Leave the regions that a graph which ended early has left open."""
        try:
            yield
        finally:
            for region in reversed(self._entered):
                region.__exit__(None, None, None)

    def run_node(self, n: Node) -> Any:
        self._run.node = n
        # A symbolic number of the graph's capture has no meaning here.
        symbolic = any(isinstance(leaf, _SYMBOLIC) for leaf in tree_leaves((n.args, n.kwargs)))
        if not self._user_code and (symbolic or _calls_user_code(n)):
            raise _Unknown
        left = [self.env.get(operand) for operand in n.all_input_nodes] if self._entered else []
        result = super().run_node(n)
        self._entered = [region for region in self._entered if not any(region is each for each in left)]
        if n.op == "call_function" and hasattr(result, "__exit__"):
            self._entered.append(result)
        self._run.values[n] = result
        return result

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(target)
        if not type(module).__module__.startswith("torch."):
            if self._user_code:
                return super().call_module(target, args, kwargs)
            raise _Unknown
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes = {name: self.fake(tensor) for name, tensor in state.items()}
        return torch.func.functional_call(module, fakes, args, kwargs)


def _calls_user_code(node: Node) -> bool:
    """Return whether it calls neither an operator nor a function of torch or Python."""
    target: Any = node.target
    if node.op != "call_function" or isinstance(target, OpOverload | OpOverloadPacket | HigherOrderOperator):
        return False
    return resolver.path_of(target) is None


@contextmanager
def silent_torch() -> Iterator[list[warnings.WarningMessage]]:
    """Turn logging off in the body and collect warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        logging.disable(before)


def _version(value: Any) -> int:
    """Return how often the tensors in a value were written to."""
    return sum(version_of(tensor) for _, tensor in tensors_in(value))
