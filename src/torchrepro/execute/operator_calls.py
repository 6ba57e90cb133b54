"""The operator calls of an eager run: those of custom operators with their values, the others as metadata.

A dispatch mode sees every call, whatever stands in the graph: an operator, a user's function that calls it, a
higher-order op around it, a formula of backward. The arguments are kept as they were before the call.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchrepro.execute.fake_results import Arguments
from torchrepro.graph_text.resolver import comes_with_torch
from torchrepro.graph_text.source_lines import source_of
from torchrepro.graph_text.triton_kernels import KERNEL_WRAPPERS, kernel_name, kernel_of
from torchrepro.judge.clone import clone_inputs, is_plain
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.op_forms import has_plain_form, run_plainly
from torchrepro.torch_api.modes import TorchDispatchMode
from torchrepro.torch_api.ops import HigherOrderOperator
from torchrepro.torch_api.pytree import tree_leaves, tree_map_only
from torchrepro.user_code.closure import is_installed_file

_FORMS = 4
"""Calls that are kept of each custom operator: those whose arguments differ in more than their values."""
_BYTES = 1 << 30
_OWN_FORMS = 2000

OnOwnCall = Callable[[Any, Arguments], Callable[[Any], None]]
"""Called before an operator of torch runs; what it returns is called with the result."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a custom operator or Triton kernel, with copies of its arguments, detached."""

    name: str
    """`mylib::foo`, or the name of the kernel."""
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    with_gradients: frozenset[int]
    """Places, among the leaves of the arguments, of the tensors that needed gradients."""
    node: str = ""
    source: str = ""

    def fresh(self, dtype: torch.dtype | None = None) -> Arguments:
        """Return new copies of the arguments, which alias one another as the originals do."""
        return clone_inputs((self.args, self.kwargs), dtype=dtype)


class Calls(TorchDispatchMode):
    """Records the calls of custom operators around an eager run."""

    supports_higher_order_operators = True

    def __init__(self, on_own_call: OnOwnCall | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Call] = []
        self.operators: dict[str, None] = {}
        self.skipped: dict[str, None] = {}
        self.node: Node | None = None
        """The node of the graph that is running."""
        self._on_own_call = on_own_call
        self._forms: set[str] = set()
        self._count: dict[str, int] = {}
        self._left = _BYTES

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            if func.name() in KERNEL_WRAPPERS:
                self._keep(func, args, kwargs)
                return func(*args, **kwargs)
            if not has_plain_form(func):
                return func(*args, **kwargs)
            with self:
                return run_plainly(func, args, kwargs)
        if not comes_with_torch(func):
            self._keep(func, args, kwargs)
            return func(*args, **kwargs)
        if self._on_own_call is None or len(self._forms) > _OWN_FORMS or not self._is_new(func, args, kwargs):
            return func(*args, **kwargs)
        look = self._on_own_call(func, (args, kwargs))
        result = func(*args, **kwargs)
        look(result)
        return result

    def _is_new(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Return whether no call with arguments of this form was seen before."""
        form = f"{func.name()} {_form((args, kwargs))}"
        if form in self._forms:
            return False
        self._forms.add(form)
        return True

    def _keep(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = _name_of(func, kwargs)
        self.operators[name] = None
        if self._count.get(name, 0) >= _FORMS or not self._is_new(func, args, kwargs):
            return
        tensors = [tensor for _, tensor in tensors_in((args, kwargs))]
        if not all(is_plain(tensor) for tensor in tensors):
            self.skipped[f"{name}: a call with tensors of another class was not checked"] = None
            return
        size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        if size > self._left:
            self.skipped[f"{name}: a call was not checked, because its arguments are too large"] = None
            return
        self._left -= size
        self._count[name] = self._count.get(name, 0) + 1
        leaves = tree_leaves((args, kwargs))
        wanting = {
            place
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        }
        detached = tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        copies, named = clone_inputs(detached)
        node = self.node.name if self.node is not None else ""
        source = (source_of(self.node) or "") if self.node is not None else _caller()
        self.found.append(Call(name, func, copies, named, frozenset(wanting), node, source))


class RunWithNodes(Interpreter):
    """Run a graph and tell the recorder which node is running; after the graph, in backward, none is."""

    def __init__(self, graph: GraphModule, calls: Calls) -> None:
        super().__init__(graph)
        self._calls = calls

    def run_node(self, n: Node) -> Any:
        self._calls.node = n
        try:
            return super().run_node(n)
        finally:
            self._calls.node = None


def _name_of(func: Any, kwargs: dict[str, Any]) -> str:
    """Return `mylib::foo`; for the operator around a Triton kernel, the kernel's name."""
    if isinstance(func, HigherOrderOperator):
        return f"Triton kernel {kernel_name(kernel_of(kwargs))}"
    return str(func.name()).removesuffix(".default")


def _caller() -> str:
    """Return the line of the user that is running: `model.py:19 in forward`."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        code = frame.f_code
        if not code.co_filename.startswith("<") and not is_installed_file(code.co_filename):
            return f"{Path(code.co_filename).name}:{line} in {code.co_name}"
    return ""


def _form(arguments: Any) -> str:
    """Describe arguments without the values of tensors."""

    def described(tensor: torch.Tensor) -> str:
        strided = tensor.layout is torch.strided
        stride = tensor.stride() if strided else tensor.layout
        return f"{tensor.dtype}{tuple(tensor.shape)}{stride}{tensor.device}{tensor.requires_grad}"

    return repr(tree_map_only(torch.Tensor, described, arguments))
