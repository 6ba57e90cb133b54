"""Which variables are still needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrepro.frontend.bytecode.flow import live_before
from torchrepro.frontend.bytecode.program import program_of


def live_at_call_of(name: str, function: Callable[..., Any]) -> frozenset[str]:
    """What is live where the function loads a global of this name."""
    program = program_of(function.__code__)
    index = next(
        index
        for index, each in enumerate(program.instructions)
        if (each.name, each.argument) == ("LOAD_GLOBAL", name)
    )
    return live_before(program, index)


def test_a_variable_lives_until_its_last_read() -> None:
    def f(a, b):
        print()
        c = a
        len()
        return c

    assert live_at_call_of("print", f) == {"a"}
    assert live_at_call_of("len", f) == {"c"}


def test_a_variable_that_is_written_first_is_dead() -> None:
    def f(a):
        print()
        a = 1
        return [a]

    assert live_at_call_of("print", f) == set()


def test_a_loop_keeps_what_its_next_round_reads() -> None:
    def f(n, step):
        while n:
            print()
            n -= step

    assert live_at_call_of("print", f) == {"n", "step"}


def test_a_handler_keeps_what_it_reads() -> None:
    def f(a, b):
        try:
            print()
            a = 1
            len()
        except ValueError:
            return a
        return b

    assert live_at_call_of("print", f) == {"a", "b"}


def test_deleting_needs_the_variable() -> None:
    def f(a):
        print()
        del a

    assert live_at_call_of("print", f) == {"a"}


def test_a_cell_lives_as_long_as_it_is_written() -> None:
    def f(a):
        def g():
            return a

        print(g)
        a = 2
        len()

    assert live_at_call_of("print", f) == {"a", "g"}
    assert live_at_call_of("len", f) == set()


def test_a_comprehension_gives_an_outer_variable_of_its_name_back() -> None:
    def f(x, values):
        print()
        y = [x for x in values]  # noqa: C416
        return x, y

    assert live_at_call_of("print", f) == {"x", "values"}


def test_super_needs_the_first_argument() -> None:
    class Thing:
        def f(self, a):
            print()
            return super().__hash__()

    assert live_at_call_of("print", Thing.f) >= {"self"}
    assert "a" not in live_at_call_of("print", Thing.f)


def test_a_function_that_looks_into_its_frame_needs_everything() -> None:
    def f(a, b):
        print()
        return locals()

    assert live_at_call_of("print", f) == {"a", "b"}
