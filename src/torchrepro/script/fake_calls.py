"""Run graphs and calls on fake tensors: what they would compute, without computing anything.

Two calls are the same if they reach the dispatcher as the same operators on the same arguments. Where a
compiler takes an operator apart before it sees it, that is done here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.ambient import Ambient
from torchrepro.nouns.repro import Place, Repro
from torchrepro.torch_api import pytree as pytree
from torchrepro.torch_api.fake import FakeTensorMode
from torchrepro.torch_api.modes import TorchDispatchMode, modes_kept
from torchrepro.torch_api.ops import OpOverload
from torchrepro.torch_api.tensors import storage_identity

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(eq=False)
class Traced:
    """A graph that was run on fakes: the value of each node, and what the run shows of it."""

    mode: FakeTensorMode
    ambient: Ambient
    inputs: Sequence[Any]
    values: dict[Node, Any] = field(default_factory=dict)
    output: Any = None
    mutated: frozenset[int] = frozenset()
    """Inputs that are written to, by number."""
    random: bool = False
    complete: bool = False
    """Whether the run came to its end: sizes that depend on data cannot be foreseen."""


def traced(repro: Repro) -> Traced:
    """Run a repro's graph on fakes of its inputs, as far as it goes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    inputs = [_faked(mode, value) for value in repro.inputs]
    ambient = repro.ambient
    if repro.place is Place.AFTER_AOT:
        ambient = Ambient(grad_enabled=False)
    found = Traced(mode, ambient, inputs)
    versions = [_version(value) for value in inputs]
    log = _OperatorLog({})
    with _around(found), log:
        try:
            found.output = _Recording(repro.graph, found.values).run(*inputs)
            found.complete = True
        except Exception:
            # Whatever it is (data-dependent sizes, an operator without a fake): the rest is not known.
            found.complete = False
    found.mutated = frozenset(
        number
        for number, (value, before) in enumerate(zip(inputs, versions, strict=True))
        if _version(value) != before or log.written & {storage_identity(t) for _, t in tensors_in(value)}
    )
    found.random = any(torch.Tag.nondeterministic_seeded in op.tags for op, _ in log.calls)
    return found


class SameCall:
    """Tells whether two ways to write a call are the same one."""

    def __init__(self, around: Traced, decompositions: Decompositions | None = None) -> None:
        self._around = around
        self._tables: list[Decompositions] = [{}, *([decompositions] if decompositions else [])]

    def __call__(self, first: Callable[[], Any], second: Callable[[], Any], arguments: Sequence[Any]) -> bool:
        """Whether both reach the dispatcher alike, as they are or as the compiler takes them apart."""
        return any(self._alike(first, second, arguments, table) for table in self._tables)

    def _alike(
        self,
        first: Callable[[], Any],
        second: Callable[[], Any],
        arguments: Sequence[Any],
        table: Decompositions,
    ) -> bool:
        known = {_identity(tensor): f"argument {path}" for path, tensor in tensors_in(list(arguments))}
        seen = []
        for call in (first, second):
            log = _OperatorLog(table, dict(known))
            try:
                with _around(self._around), log:
                    seen.append((log.calls, log.described(pytree.tree_leaves(call()))))
            except Exception:
                return False  # this way to write it does not take these arguments
        return bool(seen[0] == seen[1])


def inductor_decompositions() -> Decompositions:
    """What inductor takes apart while tracing. Checked on torch 2.11 to 2.15 (`select_decomp_table`)."""
    from torchrepro.torch_api.inductor import select_decomp_table

    table: Decompositions = select_decomp_table()
    return table


class _OperatorLog(TorchDispatchMode):
    """Notes every operator that is reached, with its arguments; tensors by where they came from."""

    def __init__(self, table: Decompositions, known: dict[Any, str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self._known = known if known is not None else {}
        self._alive: list[Any] = []
        self.calls: list[tuple[OpOverload, str]] = []
        self.written: set[Any] = set()
        """Memory that is written to although the operator's schema does not say so."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SILENT:
            return func(*args, **kwargs)
        if func in self._table:
            with self:
                result = self._table[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        described = self.described((args, _telling(kwargs)))
        result = func(*args, **kwargs)
        self.calls.append((func, described))
        if func in _TRAINING:
            self.written |= {storage_identity(value) for value in args[3:5] if args[5] and value is not None}
        for number, tensor in enumerate(_tensors(result)):
            self._alive.append(tensor)  # or another could get its place
            about = f"{tensor.dtype} {tuple(tensor.shape)} {tuple(tensor.stride())}"
            self._known[_identity(tensor)] = f"result {len(self.calls)}.{number} {about}"
        return result

    def described(self, value: Any) -> str:
        leaves, structure = pytree.tree_flatten(value)
        words = [
            self._known.get(_identity(leaf), "constant") if isinstance(leaf, torch.Tensor) else _word(leaf)
            for leaf in leaves
        ]
        return f"{structure} {words}"


# Asked by fakes themselves, or changing nothing that a compiler sees.
_SILENT = frozenset(
    {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.prim.device.default}
)


# (input, weight, bias, running mean, running variance, training, ...)
_TRAINING = frozenset({torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default})


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors that are the same view of the same memory: Python's object may be another one."""
    if tensor.layout is not torch.strided:
        return ("object", id(tensor))
    return (*storage_identity(tensor), tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())


def _telling(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Named arguments without those of a factory that its result shows as well."""
    usual = ("dtype", "layout", "device", "pin_memory")
    return {name: value for name, value in kwargs.items() if name not in usual}


def _word(leaf: Any) -> str:
    """A number in words; 2 and 2.0 are the same scalar to an operator that has floats."""
    if isinstance(leaf, float) and leaf.is_integer():
        return str(int(leaf))
    return str(leaf)


class _Recording(Interpreter):
    """Leaves the value of each node in a dictionary."""

    def __init__(self, module: GraphModule, values: dict[Node, Any]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._values = values

    def run_node(self, n: Node) -> Any:
        self._values[n] = result = super().run_node(n)
        return result


@contextmanager
def _around(found: Traced) -> Iterator[None]:
    """Fakes, and the modes of the repro. Inference mode would hide which inputs are written to."""
    ambient = found.ambient
    with modes_kept(), ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(ambient.grad_enabled and not ambient.inference_mode))
        for cast in ambient.autocast:
            dtype = getattr(torch, cast.dtype)
            stack.enter_context(torch.autocast(cast.device, dtype=dtype, enabled=cast.enabled))
        stack.enter_context(found.mode)
        yield


def _faked(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value, static_shapes=True)
    if type(value) in (list, tuple):
        return type(value)(_faked(mode, item) for item in value)
    return value


def _version(value: Any) -> int:
    """How often the tensors in a value were written to."""
    return sum(tensor._version for _, tensor in tensors_in(value) if not tensor.is_inference())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
