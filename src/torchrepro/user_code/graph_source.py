"""The user's code behind a graph: what the graph's text cannot name is kept as a source text next to it."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchrepro.graph_text import resolver
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.judge.tensors import inner_values, is_wrapper_subclass
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.nouns.repro import SOURCE_TRUST, Compiler, Place, Repro
from torchrepro.torch_api.tensors import is_fake
from torchrepro.user_code.closure import fresh_source, is_installed_module, is_source_module, source_closure
from torchrepro.user_code.settings import (
    BACKEND,
    code_of,
    code_settings,
    describe_setting,
    why_no_source,
    without_settings,
)

SOURCE_PREFIX = "source."
"""Of the constants that belong to the source text, and of names in it as the graph's text writes them."""
_DATA = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.SymInt)


def write_with_source(repro: Repro) -> tuple[GraphText, Repro]:
    """Write a repro's graph with the source text that it needs; return the repro as a reader finds it.

    A call before capture includes all of the user's code. Other graphs name the functions of modules that
    can be imported, and include only what no import finds: what was defined in a script. A backend and
    settings that are code of the user are always included, under their names in the text.
    """
    wanted: dict[int, Any] = {}
    is_code = _everything if repro.place is Place.BEFORE_CAPTURE else _not_importable

    def collect(value: Any) -> str | None:
        if not is_code(value):
            return None
        wanted[id(value)] = value
        return f"pending_{len(wanted)}"

    written = write_graph(repro.graph, collect)
    backend, settings = _backend_of_the_user(repro.compiler), code_settings(repro)
    reasons = {place: why_no_source(code_of(value)) for place, value in settings.items()}
    around = [code_of(value) for place, value in settings.items() if not reasons[place]]
    no_backend = "" if backend is None else why_no_source(backend)
    around += [] if backend is None or no_backend else [backend]
    wanted |= {id(value): value for value in around}
    classes, code = _code_of_values((repro.inputs, repro.earlier, tuple(written.constants.values())))
    wanted |= classes
    # What is trusted is the module: `module.Class` for `module:Class.Inner`.
    trusted = (path.partition(":") for path in code.values())
    needs_trust = tuple(dict.fromkeys(f"{module}.{name.partition('.')[0]}" for module, _, name in trusted))
    names: dict[int, str] = {}
    if wanted:
        closure = source_closure(list(wanted.values()))
        names = dict(zip(wanted, closure.names, strict=True))
        written = write_graph(repro.graph, lambda value: names.get(id(value)))
        tensors = {SOURCE_PREFIX + name: tensor for name, tensor in closure.tensors.items()}
        written = replace(
            written,
            constants={**written.constants, **tensors},
            needs_trust=(*written.needs_trust, *(SOURCE_PREFIX + name for name in closure.names)),
            source=closure.text,
            notes=closure.notes,
        )
    entries = [
        describe_setting(place, value, names.get(id(code_of(value)), "")) for place, value in settings.items()
    ]
    compiler = replace(repro.compiler, function=None)
    if id(backend) in names:
        compiler = replace(compiler, name=f"{SOURCE_TRUST}:{names[id(backend)]}")
        entries.append(describe_setting((BACKEND, repro.compiler.name), backend, names[id(backend)]))
    missing = {str(entry): reasons[entry.table, entry.name] for entry in entries if not entry.source}
    notes = [f"the source of the setting {name} was not kept: {why}" for name, why in missing.items()]
    notes += [f"the source of the backend {compiler.name} was not kept: {no_backend}"] if no_backend else []
    lost = [str(entry) for entry in entries if not entry.source and not entry.reference]
    plain = without_settings(replace(repro, compiler=compiler), settings.keys())
    ambient = replace(plain.ambient, left_out=tuple(dict.fromkeys((*plain.ambient.left_out, *lost))))
    kept = tuple(entry for entry in entries if entry.source or entry.reference)
    written = replace(
        written,
        settings=kept,
        notes=(*written.notes, *notes),
        needs_trust=(*written.needs_trust, *needs_trust),
        code={**code, **{key: f"{SOURCE_TRUST}:{names[key]}" for key in classes}},
    )
    return written, replace(plain, ambient=ambient)


def _code_of_values(values: Any) -> tuple[dict[int, Any], dict[int, str]]:
    """Return the classes and objects of the user that tensors need: to be kept as source, and the importable.

    What has no source is left out here: the value is then described as one that could not be kept.
    """
    kept: dict[int, Any] = {}
    imported: dict[int, str] = {}
    for value in {id(value): value for value in _code_in(values)}.values():
        if isinstance(value, type) and not _not_importable(value):
            imported[id(value)] = resolver.trusted_path_of(value)
        elif not why_no_source(value):
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


def without_code(repro: Repro) -> Repro:
    """Return the repro without a backend and settings that are code; their names are in `left_out`."""
    settings = code_settings(repro)
    compiler = replace(repro.compiler, function=None)
    plain = without_settings(replace(repro, compiler=compiler), settings.keys())
    lost = (".".join(place) for place in settings)
    return replace(plain, ambient=replace(plain.ambient, left_out=(*plain.ambient.left_out, *lost)))


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


def _backend_of_the_user(compiler: Compiler) -> Any:
    """Return the compiler function that is code of the user; None for all others."""
    if compiler.function is not None:
        return compiler.function
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
    if is_source_module(value.__module__):
        return True
    try:
        return resolver.trusted_path_of(value).startswith("__main__:")
    except CannotSerialise:
        return True
