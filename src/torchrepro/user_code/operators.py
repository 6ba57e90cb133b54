"""The user's operators and Triton kernels that a graph calls: what registers them, and their source.

Registering an operator runs code of the user. So a bundle says which module, library or source of its own
does it, and on replay that happens only if the operator is not registered yet and the code is trusted.

The source is one module of plain Python, kept as `operators.py` in a bundle and run only on `--trust source`:
the functions with all that they need, then a table of what registers each operator, and one of the kernels.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.graph_text.resolver import covers
from torchrepro.graph_text.triton_kernels import autotuner_text
from torchrepro.nouns.errors import BundleError, CannotSerialise
from torchrepro.nouns.repro import SOURCE_TRUST, CustomOpEntry
from torchrepro.torch_api.names import EFFECT_TYPE
from torchrepro.torch_api.ops import (
    OpOverload,
    custom_op_definition,
    parse_schema,
    registered_schema,
    registry_entry,
    schema_of,
)
from torchrepro.user_code.closure import is_installed_module, load_source, source_closure
from torchrepro.user_code.registrations import (
    Role,
    functions_of,
    native_origin,
    origin_of,
    registered_at,
    remember_lines,
)

Registrations = Callable[[], dict[str, Callable[[], Any]]]
"""Runs the bundle's own source and returns what registers an operator, by the operator's name."""

OPERATORS = "torchrepro_operators"
KERNELS = "torchrepro_kernels"


@dataclass(frozen=True)
class Operators:
    """What a bundle keeps of the user's operators and kernels."""

    entries: tuple[CustomOpEntry, ...] = ()
    text: str = ""
    """The content of `operators.py`; empty where there is none."""
    notes: tuple[str, ...] = ()


def operators_of(ops: Sequence[OpOverload], kernels: Mapping[str, Any]) -> Operators:
    """Describe the operators of a graph and keep the source of what no installed package registers."""
    entries = tuple(describe_op(op) for op in ops)
    users = [entry.op for entry in entries if not is_installed_module(entry.module or "__main__")]
    functions = {name: roles for name in users if (roles := functions_of(name))}
    if not functions and not kernels:
        return Operators(entries)
    try:
        found, around = _kernels(kernels)
        given = [function for roles in functions.values() for function in roles.values()]
        closure = source_closure([*given, *found])
        if closure.tensors:
            raise CannotSerialise(f"it needs the tensors {', '.join(closure.tensors)}")
    except CannotSerialise as failure:
        named = ", ".join([*functions, *kernels])
        return Operators(entries, notes=(f"the source of {named} was not kept: {failure}",))
    entries = tuple(msgspec.structs.replace(entry, in_source=entry.op in functions) for entry in entries)
    names = iter(closure.names)
    blocks, registering = [], []
    for entry in entries:
        if entry.in_source:
            blocks.append(registration_text(entry, {role: next(names) for role in functions[entry.op]}))
            registering.append(f"    {entry.op!r}: {registration_name(entry)},")
    called = [
        f"    {name!r}: {call.format(next(names))}," for name, call in zip(kernels, around, strict=True)
    ]
    imports = ["import torch"] * bool(registering) + ["import triton"] * any(call != "{}" for call in around)
    blocks += [
        "\n".join([f"{OPERATORS} = {{", *registering, "}"]),
        "\n".join([f"{KERNELS} = {{", *called, "}"]),
    ]
    text = "\n\n\n".join(part for part in (closure.text.rstrip(), "\n".join(imports), *blocks) if part)
    return Operators(entries, f"{text}\n", closure.notes)


def run_registrations(text: str) -> dict[str, Callable[[], Any]]:
    """Return what registers each operator of a bundle. Runs the user's code."""
    module = load_source(text)
    kept = module.__dict__.setdefault("_registered", {})

    def registering(name: str, register: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: kept.setdefault(name, register())

    return {name: registering(name, register) for name, register in getattr(module, OPERATORS).items()}


def run_kernels(text: str) -> dict[str, Any]:
    """Return the Triton kernels of a bundle by the names in its graph. Runs the user's code."""
    return dict(getattr(load_source(text), KERNELS))


def _kernels(kernels: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Return what the user's code has a name for of each kernel, and how the kernel is made of that."""
    found, around = [], []
    for kernel in kernels.values():
        tuning, call = autotuner_text(kernel), "{}"
        if tuning is not None:
            try:
                source_closure([kernel])
            except CannotSerialise:
                kernel, call = kernel.fn, tuning.replace("{", "{{").replace("}", "}}") + "({})"
        found.append(kernel)
        around.append(call)
    return found, around


def describe_op(op: OpOverload) -> CustomOpEntry:
    """Describe where an operator comes from. Checked on torch 2.11 to 2.15 (`_schema`)."""
    name = op.name()
    module, file = origin_of(name)
    library = ""
    if not module and custom_op_definition(name) is None:
        module, library = native_origin(name)
    roles: tuple[Role, ...] = ("kernel", "fake", "backward")
    lines: dict[str, str] = {role: line for role in roles if (line := registered_at(name, role))}
    schema = str(schema_of(op))
    return CustomOpEntry(op=name, schema=schema, module=module, file=file, library=library, lines=lines)


def registration_text(entry: CustomOpEntry, names: dict[str, str]) -> str:
    """Write a function that registers the operator; `names` are those of its functions, by role."""
    schema = entry.schema[entry.schema.index("(") :]
    mutated = tuple(
        argument.name
        for argument in parse_schema(entry.schema).arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    arguments = [f"mutates_args={mutated!r}", f"schema={schema!r}"]
    kernels = {
        role.partition(" ")[2]: name for role, name in names.items() if role.startswith(("kernel", "triton"))
    }
    (device, first), *others = kernels.items()
    arguments += [f"device_types={device!r}"] if device else []
    constructor = "triton_op" if "triton" in names else "custom_op"
    lines = [
        f"def {registration_name(entry)}():",
        f"    op = torch.library.{constructor}({entry.op!r}, {first}, {', '.join(arguments)})",
    ]
    lines += [f"    op.register_kernel({other or None!r}, {kernel})" for other, kernel in others]
    lines += [f"    op.register_fake({names['fake']})"] if "fake" in names else []
    if "backward" in names:
        setup = f", setup_context={names['setup_context']}" if "setup_context" in names else ""
        lines.append(f"    op.register_autograd({names['backward']}{setup})")
    effect = registry_entry(entry.op).effect.effect  # the kind of side effect; checked on torch 2.11 to 2.15
    lines += [] if effect is None else [f"    op.register_effect({EFFECT_TYPE}.{effect.name})"]
    return "\n".join([*lines, "    return op"])


def registration_name(entry: CustomOpEntry) -> str:
    return "torchrepro_register_" + re.sub(r"\W", "_", entry.op)


def require_registered(
    entries: Iterable[CustomOpEntry], trusted: Collection[str], registrations: Registrations, bundle: Path
) -> None:
    """Register every missing operator of a bundle; BundleError if that fails or a schema differs."""
    for entry in entries:
        remember_lines(entry)
        qualified, _, overload = entry.op.partition(".")
        module = f"the module {entry.module}" + (f" ({entry.file})" if entry.file else "")
        registrar = module if entry.module else "an unknown module"
        if entry.library or entry.module == "__main__":
            registrar = f"the library {entry.library}" if entry.library else f"the script {entry.file}"
        if registered_schema(qualified, overload) is None and not _register(entry, trusted, registrations):
            raise BundleError(
                f"the operator {entry.op} is not registered here; {registrar} registers it",
                next_step=_how_to_trust(entry, bundle),
            )
        found = registered_schema(qualified, overload)
        if found != entry.schema:
            raise BundleError(
                f"{registrar} does not register the operator {entry.op}"
                if found is None
                else f"the operator {entry.op} is {found} here and was {entry.schema}",
                next_step="install the version that the bundle was taken with",
            )


def _register(entry: CustomOpEntry, trusted: Collection[str], registrations: Registrations) -> bool:
    """Run what registers an operator, if that is trusted."""
    if entry.in_source and SOURCE_TRUST in trusted:
        # Kept by the module of the source: torch itself refers to an operator only weakly.
        registrations()[entry.op]()
    elif entry.module and entry.module != "__main__" and covers(trusted, entry.module):
        try:
            importlib.import_module(entry.module)
        except ImportError as error:
            raise BundleError(
                f"the module {entry.module}, which registers {entry.op}, cannot be imported ({error})",
                next_step="install it or run from its directory" + (f" ({entry.file})" if entry.file else ""),
            ) from error
    elif entry.library and entry.library in trusted:
        try:
            torch.ops.load_library(entry.library)
        except OSError as error:
            raise BundleError(
                f"the library {entry.library}, which registers {entry.op}, cannot be loaded ({error})",
                next_step="build it for this machine, at this path",
            ) from error
    else:
        return False
    return True


def _how_to_trust(entry: CustomOpEntry, bundle: Path) -> str:
    name = shlex.quote(str(bundle))
    command = f"torchrepro check {name} --trust"
    if entry.in_source:
        return (
            f"its source is in the bundle: read it with torchrepro show --source {name}, "
            f"allow it with {command} {SOURCE_TRUST}"
        )
    if entry.module == "__main__" or not (entry.module or entry.library):
        return f"move what registers it into a module, and allow that with {command} MODULE"
    return f"if you trust it, allow it with {command} {shlex.quote(entry.library or entry.module)}"
