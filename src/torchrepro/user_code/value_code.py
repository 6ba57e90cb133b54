"""The user's code behind the values of a graph: classes of tensors, and the objects that tensors hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchrepro.graph_text import resolver
from torchrepro.judge.tensors import inner_values, is_wrapper_subclass
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.torch_api.tensors import is_fake
from torchrepro.user_code.closure import source_closure

_DATA = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


def code_of_values(values: Any, needs_source: Callable[[Any], bool]) -> tuple[dict[int, Any], dict[int, str]]:
    """Return the classes and objects of the user that tensors need: to be kept as source, and the importable.

    What has no source is left out here: the value is then described as one that could not be kept.
    """
    kept: dict[int, Any] = {}
    imported: dict[int, str] = {}
    for value in _code_in(values):
        if id(value) in kept or id(value) in imported:
            continue
        if isinstance(value, type) and not needs_source(value):
            imported[id(value)] = resolver.trusted_path_of(value)
            continue
        try:
            source_closure([value])
        except CannotSerialise:
            continue
        kept[id(value)] = value
    return kept, imported


def _code_in(value: Any) -> Iterator[Any]:
    """Yield the user's classes of tensors, and the objects that they hold and that are no data."""
    if isinstance(value, torch.Tensor):
        kind = type(value)
        if is_fake(value) or kind.__module__.partition(".")[0] == "torch":
            return
        yield kind
        held = inner_values(value) if is_wrapper_subclass(value) else tuple(vars(value).values())
        yield from _code_in(held)
    elif type(value) in (tuple, list, set, frozenset):
        for item in value:
            yield from _code_in(item)
    elif type(value) is dict:
        yield from _code_in((*value.keys(), *value.values()))
    elif not isinstance(value, _DATA) and type(value).__module__ not in ("builtins", "torch"):
        yield value


def trusted_name(path: str) -> str:
    """Return `module.Class` for `module:Class.Inner`: what is trusted is the module."""
    module, _, name = path.partition(":")
    return f"{module}.{name.partition('.')[0]}"
