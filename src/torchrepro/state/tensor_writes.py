"""A safety net under plain Python runs: a write to a tensor that nobody knew of is put back afterwards."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from torchrepro.judge.higher_order import run_plainly
from torchrepro.judge.shadow import below_dispatch_modes, is_plain, window
from torchrepro.state.snapshot import storages_of
from torchrepro.torch_api.modes import TorchDispatchMode
from torchrepro.torch_api.ops import HigherOrderOperator
from torchrepro.torch_api.pytree import tree_leaves
from torchrepro.torch_api.tensors import set_version


class UndoWrites(TorchDispatchMode):
    """Around a run on clones: other tensors that were there before are copied before they are written to.

    `known` are the storages of the clones. Storages that the run itself makes are its own; an address that is
    used again after a free belongs to the run as well.
    """

    supports_higher_order_operators = True

    def __init__(self, known: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = set(known)
        self._kept: dict[int, tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]] = {}

    @property
    def out_of_sight(self) -> bool:
        """Whether the run wrote to tensors that it was not known to reach."""
        return bool(self._kept)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            with self:
                return run_plainly(func, args, kwargs)
        if func._schema.is_mutable:
            self._keep_targets(func, args, kwargs)
        result = func(*args, **kwargs)
        given = {key for tensor in _tensors((args, kwargs)) for key in storages_of(tensor)}
        for tensor in _tensors(result):
            self._own.update(key for key in storages_of(tensor) if key not in given)
        return result

    def undo(self) -> None:
        """Put back values and versions. Checked on torch 2.11 to 2.15 (`_unsafe_set_version_counter`)."""
        for tensor, version, row, before in self._kept.values():
            row.copy_(before)
            if not tensor.is_inference():
                set_version(tensor, version)

    def _keep_targets(self, func: Any, args: Any, kwargs: Any) -> None:
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in _tensors(value):
                self._keep(tensor)

    def _keep(self, tensor: torch.Tensor) -> None:
        if not is_plain(tensor):
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._own or storage._cdata in self._kept:
            return
        with torch.no_grad(), below_dispatch_modes():
            row = window(storage, torch.uint8)
            version = 0 if tensor.is_inference() else tensor._version
            self._kept[storage._cdata] = (tensor, version, row, row.clone())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in tree_leaves(value) if isinstance(item, torch.Tensor)]
