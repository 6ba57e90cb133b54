"""The user's code that a bundle needs, as one text: `source_closure` writes it, `load_source` runs it.

The text defines the given functions and classes with everything that their code refers to and nothing else:
installed packages are imported, the user's own modules are copied statement by statement, variables of
enclosing functions become parameters of a factory, and data has the value it has now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.user_code.closure.loading import forget_source, fresh_source, is_source_module, load_source
from torchrepro.user_code.closure.writer import ClosureWriter

__all__ = [
    "SourceClosure",
    "forget_source",
    "fresh_source",
    "is_source_module",
    "load_source",
    "source_closure",
]


@dataclass(frozen=True)
class SourceClosure:
    """One self-contained module as text."""

    text: str
    names: tuple[str, ...]
    """What the given objects are called in it, in their order."""
    packages: tuple[str, ...]
    """What must be installed to run it, beside Python itself."""
    notes: tuple[str, ...]
    """What a reader must know: code that could not be followed, attributes that are not data."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Tensors that the text finds by these names when it is run: those of modules, and large ones."""


def source_closure(objects: Sequence[Any]) -> SourceClosure:
    """The text that defines functions, classes, decorated functions (Triton kernels) and objects of the user.

    CannotSerialise, naming it, where something has no source or is neither data nor code.
    """
    writer = ClosureWriter()
    names = writer.write(list(objects))
    text, packages = writer.text.finished()
    return SourceClosure(text, names, packages, tuple(writer.notes), writer.tensors)
