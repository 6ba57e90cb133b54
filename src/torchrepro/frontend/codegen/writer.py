"""Writer: the text of a generated function, in which every source is read once, into a variable.

Kept: the objects that generated code refers to by name, because they have no literal.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import re
import weakref
from dataclasses import dataclass, field
from typing import Any

from torchrepro.frontend import source as sources
from torchrepro.frontend.raw_access import BareView
from torchrepro.frontend.source import Attribute, Bare, Cell, Held, Item, KeyOf, Local, Source, StackSlot
from torchrepro.torch_api.numpy_emulation import tensor_of


@dataclass(slots=True)
class Kept:
    """Objects by identity. Kept alive, so that an `id()` in a `Held` source means one object for good."""

    objects: dict[int, Any] = field(default_factory=dict)

    def hold(self, value: Any, label: str | None = None) -> Held:
        """Return the source of an object that is kept alive; a function needs no label."""
        self.objects[id(value)] = value
        label = f"{value.__module__}.{value.__name__}" if label is None else label
        return Held(label, id(value))


_numbers = itertools.count(1)
LITERALS = (type(None), bool, int, str, bytes, type(...))
_LONGEST_INT = 2**256
"""Beyond it an integer is held: Python refuses to write very long ones as text."""


def literal(value: Any) -> str | None:
    """Return the text of a value that Python has a literal for."""
    kind = type(value)
    if kind is int and abs(value) > _LONGEST_INT:
        return None
    if kind in LITERALS or (kind is float and math.isfinite(value)):
        return "..." if value is ... else repr(value)
    return None


@dataclass(slots=True)
class Writer:
    """Generated code sees the frame as `L` (locals), `C` (cells) and `S` (stack), held objects as globals."""

    kept: Kept
    lines: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    """Globals of the generated function."""
    _read: dict[Source, str] = field(default_factory=dict)
    _held: dict[int, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {"L", "C", "S"})

    def variable(self, hint: str) -> str:
        """Return a name that is not in use, made of `hint`."""
        base = re.sub(r"[^A-Za-z0-9_]+", "_", hint).strip("_").lower() or "value"
        base = f"_{base}" if base[0].isdigit() or keyword.iskeyword(base) else base
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def held(self, value: Any, hint: str) -> str:
        """Return the global name by which generated code refers to an object."""
        if id(value) not in self._held:
            name = self.variable(hint)
            self._held[id(value)] = name
            self.namespace[name] = value
        return self._held[id(value)]

    def constant(self, value: Any, hint: str = "constant") -> str:
        """Return a literal where Python has one, a held object otherwise."""
        text = literal(value)
        if text is None and type(value) is tuple and all(literal(item) for item in value):
            text = repr(value)
        return self.held(value, hint) if text is None else text

    def read(self, source: Source) -> str:
        """Return the variable that holds the value of `source`, read here if it was not before."""
        if source not in self._read:
            if isinstance(source, Held):
                self._read[source] = self.held(self.kept.objects[source.key], source.label)
            else:
                text = self.expression(source)
                name = self.variable(_hint(source))
                self.lines.append(f"{name} = {text}")
                self._read[source] = name
        return self._read[source]

    def expression(self, source: Source) -> str:
        """Return the expression that reads `source`, given that its base has been read."""
        match source:
            case Local(name):
                return f"L[{name!r}]"
            case StackSlot(index):
                return f"S[{index}]"
            case Cell(name):
                return f"C[{name!r}]"
            case Held():
                return self.read(source)
            case Attribute(of, name):
                return f"{self.read(of)}.{name}"
            case Item(of, key, _):
                return f"{self.read(of)}[{self.constant(key, 'key')}]"
            case Bare(of, kind):
                return f"{self.held(BareView, 'bare')}({self.read(of)}, {self.held(kind, kind.__name__)})"
            case KeyOf(of, index):
                return f"{self.held(list, 'list')}({self.read(of)})[{index}]"
            case sources.Memory(of):
                return f"{self.held(tensor_of, 'tensor_of')}({self.read(of)})"
        raise NotImplementedError(f"no text for {source!r}")


def _hint(source: Source) -> str:
    match source:
        case Local(name) | Cell(name) | Attribute(_, name):
            return name
        case Item(_, str(key), _):
            return key
        case StackSlot(index):
            return f"stack_{index}"
    return "value"


def define(name: str, text: str, namespace: dict[str, Any], kind: str, label: str = "") -> Any:
    """Return the function that `text` defines. Its lines are known to tracebacks while it exists."""
    file = f"<torchrepro {kind} {next(_numbers)}{label}>"
    exec(compile(text, file, "exec"), namespace)
    function = namespace.pop(name)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
    return function
