"""Generate Python programs: functions with control flow, mutation and closures, called several times.

The grammar is data (`python_grammar.txt`): templates with holes, by the kind of what they give. A hole `<T>`
is filled by an expression of that kind: T a tensor shaped like `a`, I a small integer, F a float, B a
condition, S a string, L a list of integers, X a list of tensors; `<t>` and `<i>` are tensor and integer
variables to assign to. `<block>` on a line of its own is more statements, `<leave>` returns from `program`,
`<shared>` are the names that inner functions declare nonlocal, and `<k>` is a new name.

Every variable exists and has its kind before the first random statement, and inner functions share them, so
any statement is right wherever it stands and can be left out. Numbers stay small and loops end. No operation
is chaotic, so that the same kernels give the same bits.

A program is a module's text: `program` is what gets compiled, and `calls()` sets the world that it reads and
yields the arguments of one call after the other; in between it may change the world. `build` and `call` make
it a file for `torchrepro compare FILE.py:build`; running it prints what eager and compiled calls return.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random

from torchrepro.hunt.generators import python_world as world

_HOLE = re.compile(r"<(\w+)>")
_DEEPEST = 3
"""Blocks inside of blocks, and expressions inside of expressions."""
_WEIGHTS = {"simple statements": 5.0, "breaking statements": 1.0, "compound statements": 4.0}
_COMPOUND = "compound statements"


@dataclass(frozen=True, slots=True)
class PythonProgram:
    """A module's text that defines `program` and `calls`; printed as such in a failing test."""

    source: str

    def __repr__(self) -> str:
        return f"PythonProgram('''\n{self.source}''')"

    @property
    def lines(self) -> int:
        """Lines of code, without those of `world.HARNESS`."""
        return sum(bool(line.strip()) for line in self.source.removesuffix(world.HARNESS).splitlines())


def generate(random: Random, *, statements: int = 4) -> PythonProgram:
    """Return a random program; the same one for the same state of `random`."""
    writer = _Writer(random)
    body = [*world.PREAMBLE, *writer.block(random.randint(2, statements), 0), world.RESULT]
    function = [f"def program({world.PARAMETERS}):", *_indented(body)]
    text = "\n".join([*function, "", "", *_calls(random)])
    return PythonProgram("\n\n\n".join([*_prelude(text), text]) + "\n" + world.HARNESS)


def _calls(random: Random) -> list[str]:
    """Return the function `calls`: the world, and two to four calls, with changes of the world in between."""
    lines = [*world.WORLD]
    drawn = {name: random.choice(choices) for name, choices in world.ARGUMENTS.items()}
    for number in range(random.randint(2, 4)):
        if number:
            lines += [random.choice(world.CHANGES)] if random.random() < 0.3 else []
            for name in random.sample(list(drawn), random.randint(0, 3)):
                drawn[name] = random.choice(world.ARGUMENTS[name])
        lines += [drawn["a"], drawn["b"]]
        given = ", ".join(f"{name}={value}" for name, value in drawn.items() if name not in ("a", "b"))
        lines.append(f"yield dict(a=a, b=b, {given})")
    return ["def calls():", *_indented(lines)]


def _prelude(text: str) -> list[str]:
    """Return the imports and definitions that a text needs, in their order."""
    wanted: set[str] = set()
    found = text
    while found:
        words = set(re.findall(r"\w+", found))
        new = [name for name in world.DEFINITIONS if name in words and name not in wanted]
        wanted.update(new)
        found = "\n".join(world.DEFINITIONS[name] for name in new)
    chosen = [definition for name, definition in world.DEFINITIONS.items() if name in wanted]
    words = set(re.findall(r"\w+", "\n".join([text, *chosen])))
    imports = [f"import {module}" for module in world.MODULES if module in words]
    return ["\n".join([*imports, "import torch"]), *chosen]


class _Writer:
    """Fills the holes of templates."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = 0

    def block(self, statements: int, depth: int, leave: str = world.RESULT) -> list[str]:
        """Return the lines of random statements; `leave` is how to return early."""
        return [line for _ in range(statements) for line in self._statement(depth, leave)]

    def _statement(self, depth: int, leave: str) -> list[str]:
        weights = [0 if depth >= _DEEPEST and kind == _COMPOUND else each for kind, each in _WEIGHTS.items()]
        kind = self._random.choices(list(_WEIGHTS), weights)[0]
        self._names += 1
        fixed = {"k": f"k{self._names}", "leave": leave, "shared": world.SHARED}
        lines = []
        for template in self._random.choice(_grammar()[kind]).splitlines():
            text = template.lstrip()
            indent = template[: len(template) - len(text)]
            if text.startswith("<block"):
                inside = "pass" if text == "<block of a function>" else leave
                block = self.block(self._random.randint(1, 3), depth + 1, inside)
                lines += [indent + line for line in block]
            else:
                lines.append(indent + self._filled(text, _DEEPEST, fixed))
        return lines

    def _filled(self, template: str, depth: int, fixed: Mapping[str, str]) -> str:
        def fill(hole: re.Match[str]) -> str:
            kind = hole[1]
            if kind in fixed:
                return fixed[kind]
            larger = _grammar().get(f"{kind} with holes", ())
            simple = not larger or not depth or self._random.random() < 0.4
            chosen = self._random.choice(_grammar()[kind] if simple else larger)
            return self._filled(chosen, depth - 1, fixed)

        return _HOLE.sub(fill, template)


@cache
def _grammar() -> Mapping[str, Sequence[str]]:
    """Return the templates by section: a line each, compound statements a paragraph each."""
    text = files(__package__).joinpath("python_grammar.txt").read_text()
    sections = (section.partition("\n") for section in text.removeprefix("== ").split("\n== "))
    return {name: body.strip("\n").split("\n\n" if name == _COMPOUND else "\n") for name, _, body in sections}


def _indented(lines: Sequence[str]) -> list[str]:
    return textwrap.indent("\n".join(lines), "    ").splitlines()
