"""A stepped function does what CPython does with it."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bytecode
import pytest

import torchrepro
from tests.frontend.bytecode.pythons import python
from tests.frontend.bytecode.split_functions import CASES
from tests.frontend.interpreter.language import FEATURES, native, observed, stepped
from tests.frontend.interpreter.plain import PlainCalls, PlainInterpreter
from torchrepro.frontend.bytecode.program import Program, program_of
from torchrepro.frontend.graph_breaks import Break, BreakKind, Control
from torchrepro.frontend.interpreter.frame import Frame, Signal
from torchrepro.frontend.interpreter.generator import SteppedGenerator


@pytest.mark.parametrize("name", FEATURES)
def test_a_stepped_function_does_what_the_function_does(name: str) -> None:
    assert observed(FEATURES[name], stepped) == observed(FEATURES[name], native)


@pytest.mark.parametrize("name", CASES)
def test_a_stepped_function_with_arguments_does_what_the_function_does(name: str) -> None:
    def call(step: bool) -> Any:
        seen: list[Any] = []
        function, args, kwargs = CASES[name](seen)
        run = (
            PlainInterpreter().calls.call
            if step
            else lambda function, args, kwargs: function(*args, **kwargs)
        )
        return observed(lambda: run(function, args, kwargs), native), seen

    assert call(step=True) == call(step=False)


@pytest.mark.slow
@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)], ids=["3.11", "3.12", "3.13"])
def test_a_stepped_function_does_what_the_function_does_on_every_python(
    version: tuple[int, int], tmp_path: Path
) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine (PATH, pyenv)")
    (tmp_path / "bytecode").symlink_to(Path(bytecode.__file__).parent)
    root = Path(__file__).parents[3]
    path = os.pathsep.join(map(str, (Path(torchrepro.__file__).parent.parent, tmp_path, root)))
    ran = subprocess.run(
        [interpreter, str(Path(__file__).parent / "language.py")],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


PARTS = ("variables", "attributes", "operators", "items", "calls")


# Control of the front end


def _break() -> None:
    raise Break(BreakKind.DATA, "stop here")


class BreakingCalls(PlainCalls):
    """A part of a tracer that cannot go on where `_break` is called."""

    def call(self, function: Any, args: Sequence[Any], kwargs: Any) -> Any:
        if function is _break:
            _break()
        return super().call(function, args, kwargs)


class Breaking(PlainInterpreter):
    def __init__(self) -> None:
        super().__init__()
        self.calls = BreakingCalls(self)


def test_a_break_passes_the_handlers_of_the_user() -> None:
    events: list[str] = []

    class Manager:
        def __enter__(self) -> None:
            events.append("enter")

        def __exit__(self, *_: object) -> bool:
            events.append("exit")
            return True

    def generator() -> Any:
        try:
            yield _break()
        except BaseException:
            events.append("except in the generator")
        finally:
            events.append("finally in the generator")

    def function() -> None:
        with Manager():
            try:
                list(generator())
            except BaseException:
                events.append("except")
            finally:
                events.append("finally")

    with pytest.raises(Break, match="stop here"):
        Breaking().calls.call(function, (), {})
    assert events == ["enter"]


def test_a_break_thrown_into_a_generator_by_native_code_passes_too() -> None:
    events: list[str] = []

    def generator() -> Any:
        try:
            yield 1
        except BaseException:
            events.append("except")
        finally:
            events.append("finally")

    it = PlainInterpreter().calls.call(generator, (), {})
    next(it)
    with pytest.raises(Control):
        it.throw(Break(BreakKind.DATA, "stop"))
    assert events == []


def test_a_frame_stays_at_the_instruction_that_breaks() -> None:
    def function(x: int) -> int:
        y = x + 1
        _break()
        return y

    frame = _frame_of(function, x=1)
    with pytest.raises(Break):
        Breaking().run(frame)
    assert frame.program.instructions[frame.index].name == "CALL"
    assert frame.locals == {"x": 1, "y": 2}
    line = function.__code__.co_firstlineno + 2
    assert str(frame.where).endswith(f":{line} in function")


def test_an_interrupt_goes_to_the_handler_of_the_user() -> None:
    def function() -> str:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                pass
        except KeyboardInterrupt:
            return "interrupted"

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert PlainInterpreter().calls.call(function, (), {}) == "interrupted"
    finally:
        signal.signal(signal.SIGINT, previous)


def test_an_unknown_instruction_is_a_break_that_names_it() -> None:
    def function() -> None:
        pass

    program = program_of(function.__code__)
    instructions = (replace(program.instructions[0], name="FROBNICATE"), *program.instructions[1:])
    frame = Frame(function, {})
    frame.program = Program(program.code, instructions)
    with pytest.raises(Break, match="FROBNICATE"):
        PlainInterpreter().run(frame)


# Stepping


def _frame_of(function: Callable[..., Any], **locals: Any) -> Frame:
    return Frame(function, locals)


def test_a_step_is_one_instruction() -> None:
    def function(x: int) -> int:
        return x * 2

    interpreter, frame = PlainInterpreter(), _frame_of(function, x=4)
    names = []
    signal = None
    while signal is None:
        names.append(frame.program.instructions[frame.index].name)
        signal = interpreter.step(frame)
    assert signal is Signal.RETURN
    assert frame.stack == [8]
    assert [name for name in names if name not in ("RESUME", "NOP")] == [
        "LOAD_FAST",
        "LOAD_CONST",
        "BINARY_OP",
        "RETURN_VALUE",
    ]


def test_a_step_that_raises_goes_to_the_handler() -> None:
    def function() -> str:
        try:
            raise ValueError
        except ValueError:
            return "handled"

    interpreter, frame = PlainInterpreter(), _frame_of(function)
    while frame.program.instructions[frame.index].name != "RAISE_VARARGS":
        interpreter.step(frame)
    interpreter.step(frame)
    assert frame.program.instructions[frame.index].name == "PUSH_EXC_INFO"
    assert interpreter.run(frame) == "handled"


def test_called_functions_are_stepped_and_know_their_caller() -> None:
    def inner() -> int:
        return 1

    def outer() -> int:
        return inner() + 1

    seen: list[tuple[str, str]] = []

    class Watching(PlainInterpreter):
        def run(self, frame: Frame) -> Any:
            caller = self.frame.program.code.co_name if self.frame else ""
            seen.append((frame.program.code.co_name, caller))
            return super().run(frame)

    assert Watching().calls.call(outer, (), {}) == 2
    assert seen == [("outer", ""), ("inner", "outer")]


def test_everything_that_happens_to_values_goes_through_the_parts() -> None:
    def function(x: Any, items: list[int], table: dict[str, int]) -> Any:
        class Manager:
            def __enter__(self) -> int:
                return 1

            def __exit__(self, *_: object) -> None:
                return None

        import os

        first, *rest = items
        total = -first + sum(rest)
        for item in items:
            if item in rest and item and not item > 5:
                total += item
        x.size = total
        table["a"] = x.size
        del table["b"], x.size
        with Manager() as entered:
            text = f"{total:d} {entered!r}"
        return [*items, *table], dict(**table), text, os.sep, (lambda: total)(), items[0:1]

    used: Counter[str] = Counter()
    interpreter = PlainInterpreter()
    methods = {
        f"{part}.{name}"
        for part in PARTS
        for name in dir(type(getattr(interpreter, part)))
        if not name.startswith("_")
    }

    def counted(part: Any, label: str, name: str) -> None:
        method = getattr(part, name)

        def count(*args: Any) -> Any:
            used[f"{label}.{name}"] += 1
            return method(*args)

        setattr(part, name, count)

    for method in methods:
        label, _, name = method.partition(".")
        counted(getattr(interpreter, label), label, name)
    thing = type("Thing", (), {})()
    result = interpreter.calls.call(function, (thing, [1, 2, 3], {"b": 1, "c": 2}), {})
    assert result == function(thing, [1, 2, 3], {"b": 1, "c": 2})
    assert methods - set(used) == {
        "variables.store_global",
        "variables.delete_global",
        "variables.delete_cell",
        "variables.import_from",
        "attributes.load_super",
        "calls.call_method",
    }


# Generators and lifetimes


def test_a_generator_is_not_stepped_before_it_is_asked() -> None:
    events: list[int] = []

    def generator() -> Any:
        events.append(1)
        yield

    made = PlainInterpreter().calls.call(generator, (), {})
    assert type(made) is SteppedGenerator
    assert events == []
    next(made)
    assert events == [1]


def test_a_stepped_generator_cannot_be_copied() -> None:
    def generator() -> Any:
        yield

    with pytest.raises(TypeError, match="cannot pickle"):
        copy.copy(PlainInterpreter().calls.call(generator, (), {}))


def test_a_handled_error_keeps_nothing_alive() -> None:
    class Thing:
        pass

    def raising(thing: Any) -> None:
        local = thing
        raise ValueError(local)

    def function() -> Any:
        thing = Thing()
        there = weakref.ref(thing)
        for _ in range(2):
            try:
                try:
                    raising(thing)
                finally:
                    _ = 1
            except ValueError:
                pass
        del thing
        return there()  # without a run of the garbage collector

    assert PlainInterpreter().calls.call(function, (), {}) is None


def test_the_traceback_of_a_stepped_function_can_be_printed() -> None:
    def function() -> str:
        try:
            try:
                raise ValueError("printed")
            finally:
                _ = 1
        except ValueError:
            return traceback.format_exc()

    assert PlainInterpreter().calls.call(function, (), {}).endswith("ValueError: printed\n")
