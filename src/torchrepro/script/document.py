"""Script: the text of a repro and the files beside it; and how its parts make a text."""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from torchrepro.bundle.archive import Content
from torchrepro.nouns.repro import Repro
from torchrepro.script.assertions import shortened
from torchrepro.script.layout import WIDTH, laid_out

_STANDARD = ("copy", "io", "json", "math", "operator", "os", "sys")


class Entry(StrEnum):
    """How a script reaches the compiler."""

    PUBLIC = "public"
    """`torch.compile` on code that a person would write."""
    OPERATORS = "operators"
    """`torch.compile` on calls of `torch.ops`."""
    INTERNAL = "internal"
    """The compiler's own entry point: the public one does not show the failure."""


@dataclass(frozen=True, slots=True)
class Script:
    """A way to write a repro. `side_files` stand beside the script, by name."""

    text: str
    entry: Entry
    remark: str = ""
    """What a reader of a report should know about the way it is written."""
    side_files: Mapping[str, Content] = field(default_factory=dict)


def document(
    docstring: Sequence[str],
    *,
    environ: Sequence[str] = (),
    modules: Iterable[str] = (),
    settings: Sequence[str] = (),
    definitions: Sequence[Sequence[str]] = (),
    statements: Sequence[str] = (),
) -> str:
    """The text of a script from its parts, with the blank lines that formatters want."""
    lines = ['"""' + docstring[0], *docstring[1:], '"""'] if len(docstring) > 1 else [f'"""{docstring[0]}"""']
    lines.append("")
    if environ:
        lines += ["import os", "", *environ, ""]
    lines += _imports({*modules, "torch"} - ({"os"} if environ else set()))
    if settings:
        lines += ["", *(line for setting in settings for line in laid_out(setting))]
    for definition in definitions:
        lines += ["", "", *definition]
    lines += ["", ""] if definitions else [""]
    lines += [line for statement in statements for line in laid_out(statement)]
    return "\n".join(lines) + "\n"


def _imports(modules: set[str]) -> list[str]:
    standard = sorted(f"import {name}" for name in modules if name in _STANDARD)
    if "Path" in modules:
        standard.append("from pathlib import Path")
    plain = sorted(
        f"import {name}" for name in modules if name not in (*_STANDARD, "F", "Path") and " " not in name
    )
    functional = ["import torch.nn.functional as F"] if "F" in modules else []
    from_ = sorted(name for name in modules if " " in name)
    return [*standard, *([""] if standard else []), *sorted([*plain, *functional]), *from_]


def docstring(sentence: str, facts: Sequence[str]) -> list[str]:
    """What goes wrong, in one sentence, and what is known about it."""
    first = shortened(_quotable(sentence), 3 * (WIDTH - 10)).rstrip(".") + "."
    return [*textwrap.wrap(first, WIDTH - 3)[:3], "", *map(_quotable, facts)]


def seen_with(repro: Repro) -> str:
    """With which torch and on which device the failure is seen, here and now."""
    devices = {value.device.type for value in repro.inputs if isinstance(value, torch.Tensor)} - {"cpu"}
    where = ", ".join(sorted(devices)) or torch.backends.cpu.get_cpu_capability()
    return f"Seen with torch {torch.__version__} on {platform.machine()} ({where})."


def _quotable(text: str) -> str:
    """Text that may stand in a docstring."""
    return text.replace("\\", "/").replace('"""', "'''").rstrip('"').rstrip()
