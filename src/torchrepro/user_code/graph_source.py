"""The user's code behind a graph: what the graph's text cannot name is kept as a source text next to it."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from torchrepro.graph_text import resolver
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.nouns.repro import SOURCE_TRUST, Compiler, Place, Repro
from torchrepro.user_code.closure import fresh_source, is_installed_module, is_source_module, source_closure

SOURCE_PREFIX = "source."
"""Of the constants that belong to the source text, and of names in it as the graph's text writes them."""


def write_with_source(repro: Repro) -> tuple[GraphText, Compiler]:
    """Write a repro's graph with the source text that it needs; return the compiler as a reader finds it.

    A call before capture includes all of the user's code. Other graphs name the functions of modules that
    can be imported, and include only what no import finds: what was defined in a script.
    """
    graph, compiler = repro.graph, repro.compiler
    wanted: dict[int, Any] = {}
    is_code = _everything if repro.place is Place.BEFORE_CAPTURE else _not_importable
    backend = _backend_in_a_script(compiler)

    def collect(value: Any) -> str | None:
        if not is_code(value):
            return None
        wanted[id(value)] = value
        return f"pending_{len(wanted)}"

    written = write_graph(graph, collect)
    if backend is not None:
        wanted[id(backend)] = backend
    if not wanted:
        return written, compiler
    closure = source_closure(list(wanted.values()))
    names = dict(zip(wanted, closure.names, strict=True))
    written = write_graph(graph, lambda value: names.get(id(value)))
    tensors = {SOURCE_PREFIX + name: tensor for name, tensor in closure.tensors.items()}
    if backend is not None:
        compiler = replace(compiler, name=f"{SOURCE_TRUST}:{names[id(backend)]}")
    written = replace(
        written,
        constants={**written.constants, **tensors},
        needs_trust=(*written.needs_trust, *(SOURCE_PREFIX + name for name in closure.names)),
        source=closure.text,
        notes=closure.notes,
    )
    return written, compiler


def compiler_in(compiler: Compiler, source: types.ModuleType) -> Compiler:
    """Return the compiler under the name by which it is imported here, if the source text defines it."""
    place, _, name = compiler.name.partition(":")
    return replace(compiler, name=f"{source.__name__}:{name}") if place == SOURCE_TRUST else compiler


def read_with_source(
    text: str, constants: Mapping[str, Any], source_text: str, trusted: tuple[str, ...] = ()
) -> tuple[torch.fx.GraphModule, types.ModuleType]:
    """Read a graph on a fresh copy of its source, and return both: no other run has touched them."""
    source = fresh_source(source_text, tensors_of_source(constants))
    return read_graph(text, constants, trusted=trusted, source=source), source


def tensors_of_source(constants: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors that the source text finds by name."""
    return {
        name.removeprefix(SOURCE_PREFIX): value
        for name, value in constants.items()
        if name.startswith(SOURCE_PREFIX)
    }


def _backend_in_a_script(compiler: Compiler) -> Any:
    """Return the compiler function that a script or a source text defines; None for all others."""
    place, _, name = compiler.name.partition(":")
    if place != "__main__" and not is_source_module(place):
        return None
    if "<locals>" in name:
        return None  # no name refers to it, so it cannot be kept
    return functools.reduce(getattr, name.split("."), sys.modules[place])


def _everything(value: Any) -> bool:
    """Return whether a value is a function, module or object: no graph, tensor or generator."""
    return not isinstance(value, torch.fx.GraphModule | torch.Tensor | torch.Generator)


def _not_importable(value: Any) -> bool:
    if not isinstance(value, types.FunctionType | type) or is_installed_module(value.__module__):
        return False
    try:
        return resolver.trusted_path_of(value).startswith("__main__:")
    except CannotSerialise:
        return True
