"""Find the tensors inside whatever a model returns or takes, each with the path that leads to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import torch


def tensors_in(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in sequences, mappings, dataclasses, `ModelOutput`-like objects and distributions.

    Each tensor object is found once, at the first path that leads to it: objects may refer to one another.
    """
    yield from _walk(value, path, set())


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for suffix, child in _children(value):
            yield from _walk(child, path + suffix, seen)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield f"[{key!r}]", child
    elif isinstance(value, Sequence):
        for index, child in enumerate(value):
            yield f"[{index}]", child
    elif isinstance(value, Set):
        for child in value:
            yield "{}", child
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name, None)
    elif not isinstance(value, (type, torch.nn.Module)) and hasattr(value, "__dict__"):
        # Distributions, caches, namespaces: plain objects that carry tensors as attributes.
        for name, child in vars(value).items():
            yield f".{name}", child
