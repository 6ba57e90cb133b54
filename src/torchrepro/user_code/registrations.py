"""Who registered a custom operator: the user's functions, modules and libraries, and the lines in them."""

from __future__ import annotations

import inspect
import mmap
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from torchrepro.nouns.repro import CustomOpEntry
from torchrepro.torch_api.ops import (
    body_of,
    custom_op_definition,
    device_bodies,
    is_traced_into,
    registered_functions,
    registrations_of,
    registry_entry,
)
from torchrepro.user_code.closure import is_source_module

Role = Literal["kernel", "fake", "backward"]
_REGISTERED_AT = re.compile(r"^debug: registered at (.*):\d+$", re.MULTILINE)
_TORCH = Path(torch.__file__).parent
_REGISTRATION = (b"5torch7Library", b"torch_library_init", b"aoti_torch_library")
"""Symbols in what registers operators: `torch::Library`, and the two forms of the stable C interface."""
_LINES: dict[str, Mapping[str, str]] = {}
"""By operator: lines that bundles have recorded."""
_KEPT = "operators.py in the bundle"


def functions_of(name: str) -> dict[str, Callable[..., Any]]:
    """Return the user's functions behind a `torch.library.custom_op`, by role; none for any other operator.

    Roles: `kernel` for every device or `kernel DEVICE`, `triton` for a `triton_op`, `fake`, `backward`,
    `setup_context`.
    """
    definition = custom_op_definition(name)
    if definition is None:
        return {}
    others = registered_functions(definition)
    if is_traced_into(definition):
        found = {"triton": body_of(definition)}
        del others["fake"]  # it is its own fake form
    else:
        kernels = device_bodies(definition).items()
        found = {f"kernel {device or ''}".strip(): function for device, function in kernels}
    found |= others
    return {role: _users_own(function) for role, function in found.items() if function is not None}


def registered_at(name: str, role: Role) -> str:
    """Return file and line of what is registered for an operator; of the operator itself if there is none.

    Of an operator that a bundle's own source registers, those in the program that the bundle was taken from.
    Empty where torch keeps no trace of it.
    """
    found = _registered_here(name, role)
    is_live = bool(found) and not found.startswith(_KEPT)
    return found if is_live else _LINES.get(name, {}).get(role, found)


def _registered_here(name: str, role: Role) -> str:
    functions = functions_of(name)
    wanted = {"kernel": ("kernel", "triton")}.get(role, (role,))
    for found, function in functions.items():
        if found.startswith(wanted):
            return place_of(function)
    # `torch.library.register_fake` and `Library` keep their caller. Checked on torch 2.11 to 2.15.
    fakes = [kernel.source for kernel in registry_entry(name).fake_impl.kernels] if role == "fake" else []
    lines = () if fakes else registrations_of(name).splitlines()
    recorded = [*fakes, *(line.rpartition("registered at ")[2].partition(" ::")[0] for line in lines)]
    users = (text for text in recorded if ":" in text and not Path(text).is_relative_to(_TORCH))
    for file, _, line in (text.rpartition(":") for text in users):
        if line.isdigit() and Path(file).is_file():
            # For kernels, the line is the one that creates the `Library`, which many operators share.
            return f"{_shown(file)}:{line}" if fakes else _mention(file, name, line)
    if functions:
        return place_of(next(iter(functions.values())))
    _, file = origin_of(name)
    return _mention(file, name)


def remember_lines(entry: CustomOpEntry) -> None:
    """Remember where the program that a bundle was taken from registers an operator."""
    if entry.lines:
        _LINES[entry.op] = entry.lines


def place_of(function: Callable[..., Any]) -> str:
    """Return `file.py:12` of a function, its decorators included; empty for one without Python code."""
    while not hasattr(function, "__code__") and hasattr(function, "fn"):
        function = function.fn  # inside a decorator of Triton
    code = getattr(function, "__code__", None)
    return "" if code is None else f"{_shown(code.co_filename)}:{code.co_firstlineno}"


def _shown(file: str) -> str:
    """Return a path as an import statement would spell it, without the folders of this machine."""
    if file.startswith("<"):
        return _KEPT if is_source_module(file.strip("<>")) else file
    path = Path(file).absolute()
    roots = [
        Path(root).absolute() for root in sys.path if root and path.is_relative_to(Path(root).absolute())
    ]
    longest = max(roots, key=lambda root: len(root.parts), default=path.parent)
    return path.relative_to(longest).as_posix()


def _mention(file: str, name: str, otherwise: str = "") -> str:
    """Return the first line of a source file that names the operator in a string, or the line `otherwise`."""
    place = f"{_shown(file)}:{otherwise}".rstrip(":") if file else ""
    if not file.endswith((".py", ".cpp", ".cc", ".cu")) or not Path(file).is_file():
        return place
    namespace, _, short = map(re.escape, name.partition(".")[0].partition("::"))
    named = re.compile(rf"""["'](?:{namespace}::)?{short}\b""")
    lines = Path(file).read_text(errors="replace").splitlines()
    found = (f"{_shown(file)}:{number}" for number, line in enumerate(lines, 1) if named.search(line))
    return next(found, place)


def _users_own(function: Any) -> Callable[..., Any]:
    """Return the function that the user wrote, inside those that torch put around it."""
    while str(getattr(function, "__module__", None)).partition(".")[0] == "torch":
        inner = inspect.unwrap(function)
        if not inspect.isfunction(inner):
            break  # an operator or a builtin of torch's, which the user has registered unchanged
        held = inspect.getclosurevars(inner).nonlocals
        if "fn" not in held:
            break
        function = held["fn"]
    found: Callable[..., Any] = function
    return found


def origin_of(name: str) -> tuple[str, str]:
    """Return module and file of the Python code that registered an operator, as far as torch can tell."""
    definition = custom_op_definition(name)
    if definition is not None:
        function: Any = _users_own(body_of(definition))
        code = getattr(function, "__code__", None)
        if code is not None:
            return function.__module__ or "", code.co_filename
    # Files that defined the operator or its fake form; checked on torch 2.11 to 2.15 (`_dispatch_dump`).
    recorded = _REGISTERED_AT.findall(registrations_of(name))
    recorded += [kernel.source.rpartition(":")[0] for kernel in registry_entry(name).fake_impl.kernels]
    files = [file for file in recorded if not Path(file).is_relative_to(_TORCH)]
    modules = {file: module for module, file in reversed(list(_files(".py")))}
    for file in files:
        if file in modules:
            return modules[file], file
    if files:
        return "", files[0]  # C++
    # `torch.library.define` leaves no trace of its caller.
    mentioning = ((module, file) for module, file in _files(".py") if _holds(file, name.encode()))
    return next(mentioning, ("", ""))


def native_origin(operator: str) -> tuple[str, str]:
    """Return the extension module or the library of `load_library` that holds the operator's name."""
    namespace, _, name = operator.partition(".")[0].encode().partition(b"::")
    for library in sorted(torch.ops.loaded_libraries):
        if _holds(library, name):
            return "", library
    for module, file in _files(".so"):
        # numpy's extensions hold many short names; one that registers operators also names torch's library.
        if _holds(file, name, namespace) and any(_holds(file, symbol) for symbol in _REGISTRATION):
            return module, ""
    return "", ""


def _files(suffix: str) -> Iterator[tuple[str, str]]:
    """Yield loaded modules that come from a file of this kind, torch's own left out."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if isinstance(file, str) and file.endswith(suffix) and not Path(file).is_relative_to(_TORCH):
            yield name, file


def _holds(path: str, *wanted: bytes) -> bool:
    """Return whether a file contains all these bytes; False for one that cannot be read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return all(data.find(one) >= 0 for one in wanted)
    except (OSError, ValueError):
        return False
