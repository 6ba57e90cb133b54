"""The user's own code in a script: the source closure of a bundle, its tensors made in place."""

from __future__ import annotations

import re

import torch

from torchrepro.bundle.graph_source import SOURCE_PREFIX
from torchrepro.bundle.graph_text import GraphText
from torchrepro.minify.polish.inputs import Inputs

_TENSOR = re.compile(r"""_tensor\(['"](?P<name>\w+)['"]\)""")
_IMPORT = re.compile(r"(?:import|from) [^#]+")
_IMPLIED = ("import torch", "from __future__ import annotations")
_INLINE = 40
"""A tensor that is longer than this in text goes to the file."""


def source_lines(written: GraphText, inputs: Inputs) -> tuple[list[str], set[str]]:
    """The code without its imports, and the modules that it imports."""

    def tensor(found: re.Match[str]) -> str:
        value = written.constants[SOURCE_PREFIX + found["name"]]
        text = inputs.expression(found["name"], value.detach(), longest=_INLINE)
        if isinstance(value, torch.nn.Parameter):
            frozen = "" if value.requires_grad else ", requires_grad=False"
            return f"torch.nn.Parameter({text}{frozen})"
        return f"{text}.requires_grad_()" if value.requires_grad else text

    lines: list[str] = []
    modules: set[str] = set()
    for line in written.source.strip().splitlines()[1:]:  # the first says whose code it is
        if _IMPORT.fullmatch(line):
            if line not in _IMPLIED:
                named = line.startswith("from ") or " as " in line
                modules.add(line if named else line.removeprefix("import "))
        elif lines or line.strip():
            lines.append(_TENSOR.sub(tensor, line))
    return lines, modules
