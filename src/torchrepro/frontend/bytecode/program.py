"""Program: a code object as a list of instructions to interpret, enter midway and assemble again.

NULL: the empty stack slot that CPython keeps next to a callable, as a value of its own.

The instructions are those of the running Python with its shortcuts written out: fewer kinds to interpret, and
a stack whose shape does not depend on what a load finds at run time.

What differs from what `dis` shows:

    CALL n                 the `PRECALL` of 3.11 is gone
    CALL_KW (n, names)     one instruction; up to 3.12 it was `KW_NAMES; [PRECALL;] CALL`, in 3.13
                           `LOAD_CONST; CALL_KW`. n counts all arguments, the last `len(names)` are by keyword
    LOAD_ATTR name         never a method load: that is `LOAD_ATTR; PUSH_NULL; [SWAP 2]`
    LOAD_GLOBAL name       never with NULL: that is `PUSH_NULL` next to it
    LOAD_SUPER_ATTR name   never a method load; pops super, class, self (3.12, 3.13)
    LOAD_FAST name         is `LOAD_FAST_CHECK` too: the slot, or `UnboundLocalError`. The slot of a variable
                           in `co_cellvars` may hold its cell, which is then what is loaded. From 3.12
                           `LOAD_FAST_AND_CLEAR` and `STORE_FAST` move a cell in the same way
    LOAD_CLOSURE name      the cell; in 3.13 `LOAD_FAST` of a cell or free variable that is no argument
    JUMP                   in either direction, as are POP_JUMP_IF_{TRUE,FALSE,NONE,NOT_NONE}
    FOR_ITER               `target` is where it continues after the loop, the iterator popped; what 3.12
                           and 3.13 have in front of that (`END_FOR`, `POP_TOP`) is never run
    COMPARE_OP             an enum without the cast of 3.13: that is a `TO_BOOL` after it
    RETURN_VALUE           `RETURN_CONST` is `LOAD_CONST; RETURN_VALUE`
    LOAD_FAST, STORE_FAST  one variable: `LOAD_FAST_LOAD_FAST` and the like are two instructions

The two slots that a call finds below its arguments are, up to 3.12, [NULL, callable] or [callable, argument],
in 3.13 [callable, NULL] or [callable, argument]. The second form is left in the exits of `with`, decorators,
`assert`, and the comprehensions of 3.11. `CALL_FUNCTION_EX` has the first form only.

What remains:

    all         BEFORE_WITH BINARY_OP BINARY_SUBSCR BUILD_{CONST_KEY_MAP,LIST,MAP,SET,SLICE,STRING,TUPLE} CALL
                CALL_FUNCTION_EX CALL_KW CHECK_EG_MATCH CHECK_EXC_MATCH COMPARE_OP CONTAINS_OP COPY
                COPY_FREE_VARS DELETE_{ATTR,DEREF,FAST,GLOBAL,SUBSCR} DICT_MERGE DICT_UPDATE FOR_ITER GET_ITER
                GET_LEN IMPORT_FROM IMPORT_NAME IS_OP JUMP LIST_APPEND LIST_EXTEND LOAD_ASSERTION_ERROR
                LOAD_{ATTR,BUILD_CLASS,CLOSURE,CONST,DEREF,FAST,GLOBAL} MAKE_CELL MAKE_FUNCTION MAP_ADD
                MATCH_{CLASS,KEYS,MAPPING,SEQUENCE} NOP POP_EXCEPT POP_JUMP_IF_{FALSE,NONE,NOT_NONE,TRUE}
                POP_TOP PUSH_EXC_INFO PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_VALUE SET_ADD SET_UPDATE
                STORE_{ATTR,DEREF,FAST,GLOBAL,SUBSCR} SWAP UNARY_{INVERT,NEGATIVE,NOT} UNPACK_EX
                UNPACK_SEQUENCE WITH_EXCEPT_START
    generators  ASYNC_GEN_WRAP BEFORE_ASYNC_WITH CLEANUP_THROW END_ASYNC_FOR END_SEND GET_AITER GET_ANEXT
                GET_AWAITABLE GET_YIELD_FROM_ITER RETURN_GENERATOR SEND YIELD_VALUE
    classes     DELETE_NAME IMPORT_STAR LOAD_CLASSDEREF LOAD_FROM_DICT_OR_{DEREF,GLOBALS} LOAD_LOCALS
                LOAD_NAME SETUP_ANNOTATIONS STORE_NAME
    3.11        FORMAT_VALUE JUMP_IF_{FALSE,TRUE}_OR_POP LIST_TO_TUPLE PREP_RERAISE_STAR UNARY_POSITIVE
    3.12        FORMAT_VALUE
    from 3.12   BINARY_SLICE CALL_INTRINSIC_{1,2} END_FOR LOAD_FAST_AND_CLEAR LOAD_SUPER_ATTR STORE_SLICE
    3.13        CONVERT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC SET_FUNCTION_ATTRIBUTE TO_BOOL
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import CodeType
from typing import Any, Final

from bytecode import BinaryOp, Bytecode, Compare, Instr, Label
from bytecode.instr import UNSET, CellVar, FreeVar, InstrLocation, TryBegin, TryEnd


@dataclass(frozen=True, slots=True)
class Handler:
    """Where an exception goes that is raised here: a row of CPython's exception table."""

    target: int
    """Index of the handler's first instruction."""
    depth: int
    """How many stack slots are kept."""
    push_last: bool
    """Whether the offset of the raising instruction is pushed below the exception (for `RERAISE`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    name: str
    """The opcode's name as `dis` gives it, but for what `written_out` rewrites."""
    argument: object
    """Resolved: a constant itself, a name as `str`, an operator as `bytecode`'s enum; a number otherwise."""
    target: int | None
    """Index of the instruction that a jump goes to."""
    handler: Handler | None
    position: InstrLocation
    """Where in the source text it comes from: what a traceback underlines."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    code: CodeType
    instructions: tuple[Instruction, ...]

    @property
    def locals(self) -> tuple[str, ...]:
        return self.code.co_varnames

    @property
    def cells(self) -> tuple[str, ...]:
        """Variables shared with inner functions, and those shared with outer ones."""
        return self.code.co_cellvars + self.code.co_freevars


class Null(Enum):
    NULL = "NULL"

    def __repr__(self) -> str:
        return "NULL"


NULL: Final = Null.NULL
NOWHERE: Final = InstrLocation(None, None, None, None)


NULL_AFTER_CALLABLE: Final = sys.version_info >= (3, 13)
FOR_ITER_SKIPS: Final = 0 if sys.version_info < (3, 12) else 1 if sys.version_info < (3, 13) else 2
"""How many instructions `FOR_ITER` skips at its target when the iterator is exhausted."""

_JUMPS = {
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP",
    **{
        f"POP_JUMP_{direction}_IF_{test}": f"POP_JUMP_IF_{test}"
        for direction in ("FORWARD", "BACKWARD")
        for test in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
}
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
_CAST: Final = 16  # the bit of COMPARE_OP's enum that casts to bool (3.13)


Simple = tuple[str, object]
"""Name and argument of an instruction."""
_NULL: Final[Simple] = ("PUSH_NULL", None)
_NULL_BESIDE_TOP: Final[tuple[Simple, ...]] = (_NULL,) if NULL_AFTER_CALLABLE else (_NULL, ("SWAP", 2))
"""A NULL where a call expects it, once the callable is on top."""


def written_out(name: str, argument: object) -> tuple[Simple, ...]:
    """Return what an instruction of `bytecode` stands for. `_read` puts calls with keywords together."""
    name = _JUMPS.get(name, name)
    match name, argument:
        case ("PRECALL", _):
            return ()
        case ("LOAD_METHOD", str(attribute)) | ("LOAD_ATTR", (True, str(attribute))):
            return (("LOAD_ATTR", attribute), *_NULL_BESIDE_TOP)
        case ("LOAD_ATTR" | "LOAD_GLOBAL", (False, str(found))):
            return ((name, found),)
        case ("LOAD_GLOBAL", (True, str(found))):
            return ((name, found), _NULL) if NULL_AFTER_CALLABLE else (_NULL, (name, found))
        case ("LOAD_SUPER_ATTR", (bool(method), _, str(attribute))):
            # `super(class, self)` always: without arguments it would search a frame that `resume` has built.
            return ((name, attribute), *(_NULL_BESIDE_TOP if method else ()))
        case ("LOAD_FAST", CellVar() | FreeVar() as variable):
            return (("LOAD_CLOSURE", variable.name),)
        case ("LOAD_FAST_CHECK", str(variable)):
            return (("LOAD_FAST", variable),)
        case (_, CellVar() | FreeVar() as variable):
            return ((name, variable.name),)
        case (_, (first, second)) if name in _PAIRS:
            return tuple(
                simple
                for half, variable in zip(_PAIRS[name], (first, second), strict=True)
                for simple in written_out(half, variable)
            )
        case ("RETURN_CONST", _):
            return (("LOAD_CONST", argument), ("RETURN_VALUE", None))
        case ("COMPARE_OP", Compare() as compare) if compare & _CAST:
            return ((name, Compare(compare & ~_CAST)), ("TO_BOOL", None))
        case ("BINARY_OP", int(operator)):
            return ((name, BinaryOp(operator)),)
    return ((name, argument),)


def program_of(code: CodeType) -> Program:
    """Return the program of a code object; the same one each time, while it is in use."""
    return _read(_ByIdentity(code))


class _ByIdentity:
    """A key for a code object: equal code objects stay distinct (`==` ignores file names)."""

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.code is other.code


@lru_cache(maxsize=4096)
def _read(key: _ByIdentity) -> Program:
    code = key.code
    # From 3.12 a variable of an inlined comprehension may be named like a free variable of its function, and
    # `bytecode` 0.19 then mixes up the slots of 3.13: the local has another name until they are resolved.
    clashes = {f"{name} (local)": name for name in code.co_varnames if name in code.co_freevars}
    to_unique = {name: unique for unique, name in clashes.items()}
    distinct = code.replace(co_varnames=tuple(to_unique.get(name, name) for name in code.co_varnames))
    drafts: list[tuple[str, Any, Label | None, TryBegin | None, InstrLocation]] = []
    places: dict[Label, int] = {}
    guard: TryBegin | None = None
    keywords: Any = None  # of a `KW_NAMES` whose `CALL` is still to come
    for element in Bytecode.from_code(distinct, conserve_exception_block_stackdepth=True):
        if isinstance(element, Label):
            places[element] = len(drafts)
        elif isinstance(element, TryBegin | TryEnd):
            guard = element if isinstance(element, TryBegin) else None
        elif isinstance(element, Instr):
            label = element.arg if isinstance(element.arg, Label) else None
            given: Any = None if label or element.arg is UNSET else element.arg
            for name, argument in written_out(element.name, given):
                if name == "KW_NAMES":
                    keywords = argument
                    continue
                if name == "CALL" and keywords is not None:
                    name, argument, keywords = "CALL_KW", (argument, keywords), None
                elif name == "CALL_KW":  # the compiler loads the names right before the call
                    argument = argument, drafts.pop()[1]
                elif name != "LOAD_CONST" and isinstance(argument, str):
                    argument = clashes.get(argument, argument)
                drafts.append((name, argument, label, guard, element.location or NOWHERE))

    def target(name: str, label: Label | None) -> int | None:
        return None if label is None else places[label] + (FOR_ITER_SKIPS if name == "FOR_ITER" else 0)

    def handler(guard: Any) -> Handler | None:
        return guard and Handler(places[guard.target], guard.stack_depth, guard.push_lasti)

    return Program(
        code,
        tuple(
            Instruction(name, argument, target(name, label), handler(guard), position)
            for name, argument, label, guard, position in drafts
        ),
    )
