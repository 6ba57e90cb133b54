"""Rebuilder: writes the code that makes live values again, each object once, old objects by reading them.

An object is made at its first use. What is mutable is made empty, and filled when it has a name: it may be
part of itself. Where a cycle is met while something immutable is made (a tuple in a list in that tuple),
`Pending` unwinds to the list, which is filled once the tuple exists.

RegionText: the function of a region. Reads sources, calls the graph, makes values, writes effects.
"""

from __future__ import annotations

import numbers
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.objects import (
    CannotRebuild,
    ShadowKind,
    attributes,
    dict_items,
    elements,
    is_full,
    is_only_code,
    slots,
)
from torchrepro.frontend.codegen.recipes import RECIPES, Recipe, recipe, tuple_text
from torchrepro.frontend.codegen.writer import Writer, define, literal
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.raw_access import bare, is_a
from torchrepro.frontend.source import Attribute, FrameState, Item, KeyOf, Source, instance_value
from torchrepro.frontend.trace.classes import is_single

if TYPE_CHECKING:
    from torchrepro.frontend.trace.values import Values

GLOBAL_OBJECTS = (types.FunctionType, types.GenericAlias, types.UnionType, torch.finfo, torch.iinfo)
"""Immutable, or one of a kind: without a source they are the same object on every call."""

NUMBER_LIBRARIES = frozenset({"builtins", "decimal", "fractions", "numpy"})


def is_immutable(value: Any) -> bool:
    """Return whether only `is` can tell that a value is shared between calls."""
    kind = type(value)
    return is_constant(value) or (issubclass(kind, numbers.Number) and kind.__module__ in NUMBER_LIBRARIES)


def _is_one_object(value: Any) -> bool:
    """Return whether all literals of a value are one object, as far as CPython shares them."""
    if type(value) is int:
        return -5 <= value <= 256
    return type(value) not in (float, bytes, str) or (type(value) is str and value.isidentifier())


def is_global_object(value: Any) -> bool:
    kind = type(value)  # `isinstance` would read `__class__`, which may be wrong
    return is_single(value) or issubclass(kind, GLOBAL_OBJECTS) or kind.__module__ == "typing"


class Pending(Exception):
    """The value is part of an immutable object that is being made."""

    def __init__(self, key: int) -> None:
        self.key = key


class Rebuilder:
    """`expression(value)` returns text for a value; the statements it needs are in `body`, after the graph.

    Sources are read in the writer's lines, before the graph: so `body` may change old objects at any point.
    """

    def __init__(self, world: Values, writer: Writer) -> None:
        self.world = world
        self.writer = writer
        self.body: list[str] = []
        self.outputs = writer.variable("out")
        """The variable that holds the outputs of the graph."""
        self.settle: Callable[[Any], None] = lambda value: None
        """Writes the effects on an old object now (`Effects`)."""
        self._names: dict[int, str] = {}
        self._alive: list[Any] = []
        self._open: set[int] = set()
        self._put_off: defaultdict[int, list[Callable[[], None]]] = defaultdict(list)
        self._unfilled: set[int] = set()
        self._untouched: dict[int, Source] | None = None

    def forget(self) -> None:
        """Release references to the user's objects once all is written, so that finalisers run on time."""
        self._names.clear()
        self._alive.clear()
        self.settle = lambda value: None

    def expression(self, value: Any) -> str:
        """Return text without effects, valid in `body` from here on; raise `CannotRebuild` if impossible."""
        text = literal(value)
        if text is not None:
            name = f"{type(value).__name__}_{text}"[:24]
            return text if _is_one_object(value) else self.writer.held(value, name)
        key = id(value)
        if key not in self._names:
            known = self._known(value)
            if known is None:
                return self._build(value)
            self._name(value, known)
        return self._names[key]

    def settled(self, value: Any) -> str:
        """Return `expression` of a container that must already be complete, as an iterator reads it."""
        self.settle(value)
        text = self.expression(value)
        if id(value) in self._unfilled:
            raise CannotRebuild(f"iterator of a {type(value).__name__} that contains it")
        return text

    def sequence(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.expression, values))

    def mapping(self, items: Iterable[tuple[Any, Any]]) -> str:
        return ", ".join(f"{self.expression(key)}: {self.expression(value)}" for key, value in items)

    def held(self, value: Any) -> str:
        """Return the name of a global object, or of a class made in the captured code that holds no state."""
        if is_a(value, type) and self.world.is_fresh(value) and not is_only_code(value):
            raise CannotRebuild(
                f"class {value.__qualname__}, made in the captured code, has state and cannot be made again"
            )
        hint = str(getattr(value, "__name__", None) or type(value).__name__)
        return self.writer.held(value, hint if hint.isascii() else "held")

    def _name(self, value: Any, name: str) -> None:
        self._names[id(value)] = name
        self._alive.append(value)  # or its id could be reused by another object

    def _known(self, value: Any) -> str | None:
        """Return the text for what need not be made: old objects, tensors, constants, global objects."""
        source = self.world.source_of(value)
        if issubclass(type(value), torch.Tensor):
            source = source or self._left_alone(value)
            return self.writer.read(source) if source else f"{self.outputs}[{self.world.output_index(value)}]"
        if source is not None:
            return self.writer.read(source)
        if is_immutable(value):
            return self.held(value)
        if is_global_object(value):
            if not self.world.is_fresh(value):
                return self.held(value)
            if is_a(value, type):
                raise CannotRebuild(
                    f"class {value.__qualname__}, made in the captured code, cannot be made again"
                )
        source = self._left_alone(value)
        return self.writer.read(source) if source else None

    def _left_alone(self, value: Any) -> Source | None:
        """Return the source of an old object in a copied container: it may have been moved but not read."""
        if self._untouched is None:
            self._untouched = {}
            for shadow in self.world.shadows:
                for child, source in _children(shadow.kind, shadow.source, shadow.original):
                    self._untouched.setdefault(id(child), source)
        return self._untouched.get(id(value))

    def _build(self, value: Any) -> str:
        key = id(value)
        if key in self._open:
            raise Pending(key)
        made = (RECIPES.get(type(value)) or recipe)(self, value)
        self._open.add(key)
        try:
            text = made.make()
            self._open.discard(key)
            hint = type(value).__name__
            name = self.writer.variable(hint if hint.isascii() else "value")
            self.body.append(f"{name} = {text}")
            self._name(value, name)
            self._fill(made, value)
        except Pending as pending:
            if pending.key == key:
                raise CannotRebuild(f"{type(value).__name__} that is part of itself") from None
            raise
        except RecursionError:
            raise CannotRebuild(f"{type(value).__name__} nested too deeply") from None
        finally:
            self._open.discard(key)
        for fill in self._put_off.pop(key, ()):
            fill()
        return self._names[key]

    def _fill(self, recipe: Recipe, value: Any) -> None:
        self._unfilled.add(id(value))
        try:
            self.body.extend(recipe.fill(self._names[id(value)]))
        except Pending as pending:
            self._put_off[pending.key].append(partial(self._fill, recipe, value))
        else:
            self._unfilled.discard(id(value))


def _children(kind: ShadowKind, source: Source, original: Any) -> Iterable[tuple[Any, Source]]:
    match kind:
        case ShadowKind.LIST | ShadowKind.DEQUE:
            place = bare(source, original)
            return [(child, Item.at(place, index)) for index, child in enumerate(elements(original))]
        case ShadowKind.DICT:
            items = list(dict_items(original))
            place = bare(source, original)
            return [
                (child, Item.at(place, key)) if is_immutable(key) else (key, KeyOf(place, index))
                for index, (key, child) in enumerate(items)
            ]
        case ShadowKind.ATTRIBUTES if not issubclass(type(original), type):
            return [(child, instance_value(source, name)) for name, child in attributes(original).items()]
        case ShadowKind.SLOTS:
            return [(child, Attribute(source, name)) for name, child in slots(original)]
        case ShadowKind.CELL if is_full(original):
            return [(original.cell_contents, Attribute(source, "cell_contents"))]
    return []


RegionFunction = Callable[[Mapping[str, Any], Mapping[str, CellType], Sequence[Any]], Any]
"""Called with locals, cells and stack of the frame."""


@dataclass(frozen=True, slots=True)
class RegionText:
    text: str
    """For readers; tracebacks show it too."""
    run: RegionFunction


def frame_state(
    rebuilder: Rebuilder, locals: Mapping[str, Any], cells: Mapping[str, CellType], stack: Sequence[Any]
) -> str:
    """Return the text of the `FrameState` that a region returns at a break."""
    parts = f"{{{rebuilder.mapping(locals.items())}}}, {{{rebuilder.mapping(cells.items())}}}"
    return f"{rebuilder.held(FrameState)}({parts}, {tuple_text(rebuilder, tuple(stack))})"


def compile_region(
    label: str,
    rebuilder: Rebuilder,
    result: str,
    graph: Callable[..., Sequence[Any]] | None,
    inputs: Sequence[Source],
    ambient: Sequence[str] = (),
) -> RegionText:
    """Return the region's function. `rebuilder` has written `result`, what `ambient` names, and the effects.

    `graph` takes the inputs and returns its outputs as a sequence; `None` where nothing was recorded.
    """
    writer = rebuilder.writer
    arguments = ", ".join([writer.read(source) for source in inputs])
    call = [f"{rebuilder.outputs} = {writer.held(graph, 'graph')}({arguments})"] if graph is not None else []
    lines = [*writer.lines, *call, *rebuilder.body, *ambient, f"return {result}"]
    text = "\n    ".join(["def region(L, C, S):", *lines]) + "\n"
    run: RegionFunction = define("region", text, dict(writer.namespace), "region", f": {label}")
    return RegionText(text, run)
