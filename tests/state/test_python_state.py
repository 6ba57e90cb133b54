"""Plain Python state of a model, as it is before and after a call."""

from __future__ import annotations

import torch
from torch import nn

from torchrepro.state.snapshot import python_state


def test_closure_variables_and_attributes_of_a_function_are_seen() -> None:
    seen = {"n": 0, "tensor": torch.ones(2)}

    def fn() -> int:
        return seen["n"]  # type: ignore[return-value]

    fn.calls = [1, 2]  # type: ignore[attr-defined]
    assert python_state(fn) == {"closure.seen": {"n": 0}, "calls": [1, 2]}


def test_the_state_is_a_copy() -> None:
    log: list[int] = []

    def fn() -> None:
        log.append(1)

    before = python_state(fn)
    fn()
    assert before == {"closure.log": []}
    assert python_state(fn) == {"closure.log": [1]}


def test_attributes_of_modules_and_their_children_are_seen_but_not_their_inside() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].steps = 3
    model.history = {"loss": [0.5]}
    state = python_state(model)
    assert state["0.steps"] == 3
    assert state["history"] == {"loss": [0.5]}
    assert not any(name.startswith("_") for name in state)


def test_a_structure_that_contains_itself_ends() -> None:
    loop: list[object] = [1]
    loop.append(loop)

    def fn() -> object:
        return loop

    assert python_state(fn)["closure.loop"][0] == 1


def test_bound_methods_show_their_object() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def call(self) -> None:
            self.n += 1

    counter = Counter()
    counter.call()
    assert python_state(counter.call) == {"self.n": 1}
