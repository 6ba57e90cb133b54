"""Writes the shortcuts of a Python's bytecode out: fewer kinds of instruction, NULLs that are known unrun.

What differs from what `dis` shows:

    CALL n                 the `PRECALL` of 3.11 is gone
    CALL_KW (n, names)     one instruction; up to 3.12 it was `KW_NAMES; [PRECALL;] CALL`, in 3.13
                           `LOAD_CONST; CALL_KW`. n counts all arguments, the last `len(names)` are by keyword
    LOAD_ATTR name         never a method load: that is `LOAD_ATTR; PUSH_NULL; [SWAP 2]`
    LOAD_GLOBAL name       never with NULL: that is `PUSH_NULL` beside it
    LOAD_SUPER_ATTR name   never a method load; pops super, class, self (3.12, 3.13)
    LOAD_FAST name         is `LOAD_FAST_CHECK` too: the slot, or `UnboundLocalError`. The slot of a variable
                           in `co_cellvars` may hold its cell, which is then what is loaded. From 3.12
                           `LOAD_FAST_AND_CLEAR` and `STORE_FAST` move a cell in the same way
    LOAD_CLOSURE name      the cell; in 3.13 `LOAD_FAST` of a cell or free variable that is no argument
    JUMP                   in either direction, as are POP_JUMP_IF_{TRUE,FALSE,NONE,NOT_NONE}
    FOR_ITER               `target` is where the loop goes on after its end, the iterator popped; what 3.12
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
from typing import Final, NamedTuple

from bytecode import BinaryOp, Compare
from bytecode.instr import CellVar, FreeVar

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
_CAST: Final = 16  # the bit of COMPARE_OP's enum that asks for a bool (3.13)


class Simple(NamedTuple):
    """An instruction without its place."""

    name: str
    argument: object


def written_out(name: str, argument: object) -> tuple[Simple, ...]:
    """What an instruction of `bytecode` stands for. Calls with keywords are put together in `reading`."""
    name = _JUMPS.get(name, name)
    match name, argument:
        case ("PRECALL", _):
            return ()
        case ("LOAD_METHOD", str(attribute)) | ("LOAD_ATTR", (True, str(attribute))):
            return (Simple("LOAD_ATTR", attribute), *_null_beside_top())
        case ("LOAD_ATTR" | "LOAD_GLOBAL", (False, str(found))):
            return (Simple(name, found),)
        case ("LOAD_GLOBAL", (True, str(found))):
            null, load = Simple("PUSH_NULL", None), Simple(name, found)
            return (load, null) if NULL_AFTER_CALLABLE else (null, load)
        case ("LOAD_SUPER_ATTR", (bool(method), _, str(attribute))):
            # `super(class, self)` always: without arguments it would search a frame that `resume` has built.
            return (Simple(name, attribute), *(_null_beside_top() if method else ()))
        case ("LOAD_FAST", CellVar() | FreeVar() as variable):
            return (Simple("LOAD_CLOSURE", variable.name),)
        case ("LOAD_FAST_CHECK", str(variable)):
            return (Simple("LOAD_FAST", variable),)
        case (_, CellVar() | FreeVar() as variable):
            return (Simple(name, variable.name),)
        case (_, (first, second)) if name in _PAIRS:
            return tuple(
                simple
                for half, variable in zip(_PAIRS[name], (first, second), strict=True)
                for simple in written_out(half, variable)
            )
        case ("RETURN_CONST", _):
            return (Simple("LOAD_CONST", argument), Simple("RETURN_VALUE", None))
        case ("COMPARE_OP", Compare() as compare) if compare & _CAST:
            return (Simple(name, Compare(compare & ~_CAST)), Simple("TO_BOOL", None))
        case ("BINARY_OP", int(operator)):
            return (Simple(name, BinaryOp(operator)),)
    return (Simple(name, argument),)


def _null_beside_top() -> tuple[Simple, ...]:
    """A NULL where a call expects it, once the callable is on top."""
    null = Simple("PUSH_NULL", None)
    return (null,) if NULL_AFTER_CALLABLE else (null, Simple("SWAP", 2))
