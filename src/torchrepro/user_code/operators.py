"""The user's operators and Triton kernels that a graph calls: who registers them, and their source.

The source is one module of plain Python, kept as `operators.py` in a bundle and run only on `--trust source`:
the functions with all that they need, then a table of what registers each operator, and one of the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from torchrepro.graph_text.printer import GraphText
from torchrepro.graph_text.triton_kernels import autotuner_text
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.nouns.trust import CustomOpEntry
from torchrepro.torch_api.ops import OpOverload
from torchrepro.user_code.closure import SourceClosure, load_source, source_closure
from torchrepro.user_code.closure.origin import is_installed_module
from torchrepro.user_code.custom_ops import describe_op, functions_of, registration_name, registration_text

OPERATORS = "torchrepro_operators"
KERNELS = "torchrepro_kernels"


@dataclass(frozen=True)
class Operators:
    """What a bundle keeps of the user's operators and kernels."""

    entries: tuple[CustomOpEntry, ...] = ()
    text: str = ""
    """The content of `operators.py`; empty where there is none."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Written:
    """Functions on their way into the source: by operator and role, and kernels by name."""

    functions: Mapping[str, Mapping[str, Callable[..., Any]]] = field(default_factory=dict)
    kernels: Mapping[str, Any] = field(default_factory=dict)
    around: Mapping[str, str] = field(default_factory=dict)
    """For kernels that no name leads to: the call that makes them of what is in `kernels`."""

    @property
    def objects(self) -> list[Any]:
        return [
            *(item for roles in self.functions.values() for item in roles.values()),
            *self.kernels.values(),
        ]


def operators_in(written: GraphText) -> Operators:
    """Return who registers the operators and kernels that a graph's text calls, and their source."""
    return operators_of(written.custom_ops, written.kernels)


def operators_of(ops: Sequence[OpOverload], kernels: Mapping[str, Any]) -> Operators:
    """Describe the operators of a graph and keep the source of what no installed package registers."""
    entries = tuple(describe_op(op) for op in ops)
    users = [entry.op for entry in entries if not is_installed_module(entry.module or "__main__")]
    functions = {name: roles for name in users if (roles := functions_of(name))}
    if not functions and not kernels:
        return Operators(entries)
    try:
        written = _Written(functions, *_kernels(kernels))
        closure = source_closure(written.objects)
        if closure.tensors:
            raise CannotSerialise(f"it needs the tensors {', '.join(closure.tensors)}")
    except CannotSerialise as failure:
        named = ", ".join([*functions, *kernels])
        return Operators(entries, notes=(f"the source of {named} was not kept: {failure}",))
    entries = tuple(
        msgspec.structs.replace(entry, in_source=entry.op in written.functions) for entry in entries
    )
    return Operators(entries, _text(closure, entries, written), closure.notes)


def run_registrations(text: str) -> dict[str, Callable[[], Any]]:
    """What registers each operator of a bundle. Runs the user's code."""
    module = load_source(text)
    kept = module.__dict__.setdefault("_registered", {})

    def registering(name: str, register: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: kept.setdefault(name, register())

    return {name: registering(name, register) for name, register in getattr(module, OPERATORS).items()}


def run_kernels(text: str) -> dict[str, Any]:
    """The Triton kernels of a bundle by the names that its graph has for them. Runs the user's code."""
    return dict(getattr(load_source(text), KERNELS))


def _kernels(kernels: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Kernels that the user's code has a name for, and the calls around those that it has not."""
    named, around = dict(kernels), {}
    for name, kernel in kernels.items():
        tuning = autotuner_text(kernel)
        if tuning is not None and not _has_source(kernel):
            named[name], around[name] = kernel.fn, tuning
    return named, around


def _has_source(kernel: Any) -> bool:
    try:
        source_closure([kernel])
    except CannotSerialise:
        return False
    return True


def _text(closure: SourceClosure, entries: Sequence[CustomOpEntry], written: _Written) -> str:
    names = iter(closure.names)
    registering, blocks = [], []
    for entry in entries:
        if entry.in_source:
            roles = {role: next(names) for role in written.functions[entry.op]}
            blocks.append(registration_text(entry, roles))
            registering.append(f"    {entry.op!r}: {registration_name(entry)},")
    kernels = []
    for name in written.kernels:
        kernel = next(names)
        kernel = f"{written.around[name]}({kernel})" if name in written.around else kernel
        kernels.append(f"    {name!r}: {kernel},")
    tables = [
        "\n".join([f"{table} = {{", *lines, "}"])
        for table, lines in ((OPERATORS, registering), (KERNELS, kernels))
    ]
    own_import = "\n".join(["import torch"] * bool(registering) + ["import triton"] * bool(written.around))
    return (
        "\n\n\n".join(part for part in (closure.text.rstrip(), own_import, *blocks, *tables) if part) + "\n"
    )
