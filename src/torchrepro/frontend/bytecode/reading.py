"""Reads a code object into a `Program`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType

from bytecode import Bytecode, Instr, Label
from bytecode.instr import UNSET, TryBegin, TryEnd

from torchrepro.frontend.bytecode.normalise import FOR_ITER_SKIPS, Simple, written_out
from torchrepro.frontend.bytecode.program import Handler, Instruction, Position, Program


def program_of(code: CodeType) -> Program:
    """The program of a code object; the same one each time, as long as it is in use."""
    return _read(_ByIdentity(code))


class _ByIdentity:
    """A key for a code object: two code objects that are equal are still two (`==` ignores file names)."""

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.code is other.code


@dataclass(slots=True, eq=False)
class _Draft:
    """An instruction whose jump target and handler are not placed yet."""

    simple: Simple
    label: Label | None
    guard: TryBegin | None
    position: Position | None


@dataclass(slots=True)
class _Reader:
    drafts: list[_Draft] = field(default_factory=list)
    places: dict[Label, int] = field(default_factory=dict)
    keywords: tuple[str, ...] | None = None
    """Of a `KW_NAMES` whose `CALL` is still to come."""

    def read(self, elements: Bytecode, locals_of: dict[str, str]) -> None:
        guard: TryBegin | None = None
        for element in elements:
            if isinstance(element, Label):
                self.places[element] = len(self.drafts)
            elif isinstance(element, TryBegin):
                guard = element
            elif isinstance(element, TryEnd):
                guard = None
            elif isinstance(element, Instr):
                label = element.arg if isinstance(element.arg, Label) else None
                argument = None if label or element.arg is UNSET else element.arg
                for simple in written_out(element.name, argument):
                    self.add(simple, label, guard, _position(element))
        for draft in self.drafts:
            name, argument = draft.simple
            if isinstance(argument, str) and name != "LOAD_CONST" and argument in locals_of:
                draft.simple = Simple(name, locals_of[argument])

    def add(self, simple: Simple, label: Label | None, guard: TryBegin | None, at: Position | None) -> None:
        name, argument = simple
        if name == "KW_NAMES":
            assert isinstance(argument, tuple)
            self.keywords = argument
            return
        if name == "CALL" and self.keywords is not None:
            simple, self.keywords = Simple("CALL_KW", (argument, self.keywords)), None
        elif name == "CALL_KW":
            names = self.drafts.pop().simple
            assert names.name == "LOAD_CONST", "the compiler loads the names right before the call"
            simple = Simple("CALL_KW", (argument, names.argument))
        self.drafts.append(_Draft(simple, label, guard, at))

    def instructions(self) -> tuple[Instruction, ...]:
        handlers: dict[TryBegin, Handler] = {}
        made = []
        for draft in self.drafts:
            target = None if draft.label is None else self.places[draft.label]
            if draft.simple.name == "FOR_ITER":
                assert target is not None
                target += FOR_ITER_SKIPS
            handler = None
            if draft.guard is not None:
                handler = handlers.setdefault(draft.guard, self._handler(draft.guard))
            made.append(Instruction(*draft.simple, target, handler, draft.position))
        return tuple(made)

    def _handler(self, guard: TryBegin) -> Handler:
        assert isinstance(guard.target, Label)
        assert isinstance(guard.stack_depth, int)
        return Handler(self.places[guard.target], guard.stack_depth, guard.push_lasti)


@lru_cache(maxsize=4096)
def _read(key: _ByIdentity) -> Program:
    code = key.code
    # From 3.12 a variable of an inlined comprehension may be named like a free variable of its function, and
    # `bytecode` 0.19 then mixes up the slots of 3.13: the local has another name until they are resolved.
    clashes = {f"{name} (local)": name for name in code.co_varnames if name in code.co_freevars}
    to_unique = {name: unique for unique, name in clashes.items()}
    varnames = tuple(to_unique.get(name, name) for name in code.co_varnames)
    distinct = code.replace(co_varnames=varnames)
    reader = _Reader()
    reader.read(Bytecode.from_code(distinct, conserve_exception_block_stackdepth=True), clashes)
    return Program(code, reader.instructions())


def _position(instr: Instr) -> Position | None:
    location = instr.location
    if location is None or location.lineno is None:
        return None
    return Position(location.lineno, location.end_lineno, location.col_offset, location.end_col_offset)
