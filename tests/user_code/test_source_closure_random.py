"""Random programs of a user: their closures compute the same and never reach back into their modules."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from user_files import loaded, write_module

from torchrepro.user_code.closure import source_closure

_NAMES = ("alpha", "beta", "gamma", "delta")
"""Few, so that globals, parameters, locals and the two modules clash all the time."""
_NUMBER = itertools.count()


@st.composite
def expressions(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """Arithmetic over names that are numbers."""
    leaves = st.one_of(st.sampled_from(names), st.integers(-3, 3).map(repr))
    left, right, third = draw(leaves), draw(leaves), draw(leaves)
    shapes = (
        f"{left} + {right}",
        f"{left} * {right} - {third}",
        f"sum({names[0]} + item for item in range({draw(st.integers(0, 3))}))",
        f"[({right}) for {names[-1]} in range(2)][-1]",
        f"(lambda {names[0]}, extra=1: {names[0]} + extra)({left})",
    )
    return draw(st.sampled_from(shapes))


@st.composite
def functions(draw: st.DrawFn, name: str, others: tuple[str, ...], constants: tuple[str, ...]) -> str:
    """A function of one argument, in one of the forms that people write."""
    parameter = draw(st.sampled_from(_NAMES))
    inner = draw(expressions((parameter, *constants)))
    called = draw(st.sampled_from((*others, "abs")))
    default = draw(st.sampled_from((*constants, "7", "len('four')")))
    forms = (
        f"def {name}({parameter}, other={default}):\n    return {called}({inner}) + other",
        f"def {name}({parameter}):\n    local = {called}({parameter})\n    return local + ({inner})",
        f"{name} = lambda {parameter}: {called}({inner})",
        f"""
def make_{name}(start):
    count = start
    def advance(by):
        nonlocal count
        count += by
        return count
    def {name}({parameter}):
        advance(1)
        return count + {called}({inner})
    return {name}
{name} = make_{name}({draw(st.integers(0, 5))})
""",
        f"""
class Holder_{name}:
    step = {draw(st.integers(1, 4))}
    def __init__(self, value): self.value = value
    def total(self): return self.value * self.step + {called}(1)
def {name}({parameter}):
    class Local(Holder_{name}):
        def total(self): return super().total() + ({inner})
    return Local({parameter}).total()
""",
        f"""
def decorate_{name}(fn):
    def wrapper(*args): return fn(*args) - {draw(st.integers(0, 3))}
    return wrapper
@decorate_{name}
def {name}({parameter}):
    global seen_{name}
    seen_{name} = seen_{name} + 1
    return {called}({inner}) + seen_{name}
seen_{name} = 0
""",
    )
    return draw(st.sampled_from(forms))


@st.composite
def modules(draw: st.DrawFn, imports: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]]:
    """The text of a module and the functions in it."""
    constants = tuple(draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True)))
    lines = [f"{name} = {draw(st.integers(-5, 5))}" for name in constants]
    if draw(st.booleans()):
        lines.append(f"for _ in range(2): {constants[0]} += 1")
    made: tuple[str, ...] = ()
    for number in range(draw(st.integers(1, 4))):
        name = f"f{number}"
        lines.append(draw(functions(name, (*imports, *made), constants)))
        made += (name,)
    return "\n".join(lines), made


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_closure_computes_what_the_original_computes(data: st.DataObject) -> None:
    before = list(sys.path)
    with tempfile.TemporaryDirectory() as directory:
        helper = f"helper_{next(_NUMBER)}"
        text, names = data.draw(modules())
        write_module(Path(directory), text, helper)
        imported = data.draw(st.sampled_from(names))
        own, functions_ = data.draw(modules((f"{helper}.{imported}", "other")))
        header = f"import {helper}\nfrom {helper} import {imported} as other\n"
        module = write_module(Path(directory), header + own)
        chosen = getattr(module, data.draw(st.sampled_from(functions_)))
        closure = source_closure([chosen])
        copy = loaded(closure)[closure.names[0]]
        assert [_result(copy, n) for n in (0, 1, -2, 1)] == [_result(chosen, n) for n in (0, 1, -2, 1)]
        assert not set(_modules_behind(copy)) & {module, sys.modules[helper]}
    sys.path[:] = before


def _result(function: Any, argument: int) -> Any:
    try:
        return function(argument)
    except (ArithmeticError, TypeError, RecursionError, NameError) as error:
        return type(error)


def _modules_behind(function: Any) -> Iterator[ModuleType]:
    """The modules whose globals the code of a function, and of all it can reach, looks into."""
    waiting, seen = [function], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield sys.modules[value.__globals__["__name__"]]
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
            waiting += [
                value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__
            ]
        elif isinstance(value, type):
            waiting += [*vars(value).values(), *value.__bases__]


def _names(code: CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(_names, inner))
