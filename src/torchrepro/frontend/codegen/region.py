"""RegionText: the function of a region. Reads sources, calls the graph, makes values, writes effects."""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any

from torchrepro.frontend.codegen.values import Rebuilder
from torchrepro.frontend.frame_state import FrameState
from torchrepro.frontend.source import Source

RegionFunction = Callable[[Mapping[str, Any], Mapping[str, CellType], Sequence[Any]], Any]
"""Called with locals, cells and stack of the frame."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class RegionText:
    text: str
    """For people; also what tracebacks show."""
    run: RegionFunction


def frame_state(
    rebuilder: Rebuilder, locals: Mapping[str, Any], cells: Mapping[str, CellType], stack: Sequence[Any]
) -> str:
    """The result of a region that ends at a break."""
    slots = "".join(f"{text}, " for text in rebuilder.expressions(stack))
    return (
        f"{rebuilder.held(FrameState)}({{{rebuilder.mapping(locals.items())}}}, "
        f"{{{rebuilder.mapping(cells.items())}}}, ({slots}))"
    )


def compile_region(
    label: str,
    rebuilder: Rebuilder,
    result: str,
    graph: Callable[..., Sequence[Any]] | None,
    inputs: Sequence[Source],
    ambient: Sequence[str] = (),
) -> RegionText:
    """`result` and what `ambient` names have been written by `rebuilder`, and the effects too.

    `graph` takes the inputs and gives its outputs as a sequence; `None` where nothing was recorded.
    """
    writer = rebuilder.writer
    arguments = ", ".join([writer.read(source) for source in inputs])
    call = [f"{rebuilder.outputs} = {writer.held(graph, 'graph')}({arguments})"] if graph is not None else []
    lines = [*writer.lines, *call, *rebuilder.body, *ambient, f"return {result}"]
    text = "\n    ".join(["def region(L, C, S):", *lines]) + "\n"
    filename = f"<torchrepro region {next(_numbers)}: {label}>"
    namespace = dict(writer.namespace)
    exec(compile(text, filename, "exec"), namespace)
    run: RegionFunction = namespace["region"]
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    weakref.finalize(run, linecache.cache.pop, filename, None)
    return RegionText(text, run)
