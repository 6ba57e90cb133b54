"""Grad mode and mixed precision get into the graph; nothing of them is left behind by tracing."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from frontend_recording import calls, capture, new_recorder, replay

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.source import Local
from torchrepro.torch_api.captured_graphs import Modes


def test_a_no_grad_block_is_in_the_graph():
    def program(x):
        with torch.no_grad():
            y = x * 2
        return y, x * 3

    captured = capture(program, torch.ones(2, requires_grad=True))

    assert calls(captured) == ["_set_grad_enabled", "mul", "_set_grad_enabled", "mul"]
    assert [value.requires_grad for value in replay(captured)] == [False, True]
    assert captured.end_state is None


def test_decorators_and_functions_set_grad_mode_too():
    @torch.no_grad()
    def off(x):
        return x * 2

    def program(x):
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        y = x * 2
        torch.set_grad_enabled(before)
        with torch.enable_grad():
            return off(x), y, x * 3

    found = replay(capture(program, torch.ones(2, requires_grad=True)))

    assert [value.requires_grad for value in found] == [False, False, True]


def test_an_autocast_block_is_in_the_graph():
    def program(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = F.linear(x, w)
            with torch.autocast("cpu", enabled=False):
                z = F.linear(x, w)
            again = F.linear(x, w)
        return y, z, again, F.linear(x, w)

    x, w = torch.randn(2, 2), torch.randn(2, 2)
    captured = capture(program, x, w)

    for found, expected in zip(replay(captured), program(x, w), strict=True):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    assert calls(captured).count("_enter_autocast") == calls(captured).count("_exit_autocast") == 2
    assert not torch.is_autocast_enabled("cpu")


def test_an_autocast_block_around_the_trace_can_be_switched_off_inside():
    def program(x):
        with torch.autocast("cpu", enabled=False):
            y = x @ x
        return y, x @ x

    x = torch.randn(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        captured = capture(program, x)
        found, expected = replay(captured), program(x)
        assert torch.is_autocast_enabled("cpu")
    assert [value.dtype for value in found] == [value.dtype for value in expected]


def test_a_block_that_is_still_open_at_the_end_is_closed_in_the_graph_and_reported():
    recorder = new_recorder()
    real = torch.ones(2, 2, requires_grad=True)
    with recorder.active():
        x = recorder.input(real, Local("x"), "x")
        torch.no_grad().__enter__()
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
        captured = recorder.finish([x @ x])
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    replay(captured)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")

    before = Modes.now()
    assert captured.end_state is not None
    captured.end_state.apply()
    try:
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert Modes.now().nesting == before.nesting + 1
    finally:
        before.apply()
    assert Modes.now() == before
    assert Modes.now().nesting == before.nesting


def test_an_open_block_that_changes_nothing_is_counted():
    recorder = new_recorder()
    with recorder.active():
        torch.autocast("cpu", enabled=False).__enter__()
        captured = recorder.finish([torch.ones(2)])
    assert captured.end_state is not None
    assert captured.end_state.nesting == Modes.now().nesting + 1


def test_tracing_leaves_no_trace_even_when_it_ends_in_the_middle():
    recorder = new_recorder()
    real = torch.ones(2)
    torch.manual_seed(1)
    random.seed(1)
    state, python = torch.get_rng_state(), random.getstate()
    before = Modes.now()

    def run():
        with recorder.active():
            x = recorder.input(real, Local("x"), "x")
            torch.set_grad_enabled(False)
            torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            torch.device("meta").__enter__()
            torch.rand(3)
            torch.manual_seed(7)
            random.random()
            bool(x.sum())

    with pytest.raises(Break):
        run()
    assert Modes.now() == before
    assert torch.get_default_dtype() is torch.float32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python
    assert type(torch.ones(2)) is torch.Tensor
    assert torch.ones(2).device.type == "cpu"


def test_random_operations_draw_when_the_graph_runs_and_not_before():
    def program(x):
        return F.dropout(x, 0.5), torch.rand(3), torch.randn_like(x), x.bernoulli(0.5)

    x = torch.ones(8)
    torch.manual_seed(3)
    captured = capture(program, x)
    torch.manual_seed(3)
    expected = program(x)
    torch.manual_seed(3)

    for found, wanted in zip(replay(captured), expected, strict=True):
        assert torch.equal(found, wanted)


def test_a_default_device_inside_is_an_argument():
    def program(x):
        with torch.device("cpu"):
            return torch.ones(2) + x

    assert torch.equal(replay(capture(program, torch.ones(2)))[0], torch.full((2,), 2.0))


def test_tracing_works_inside_of_inference_mode():
    with torch.inference_mode():
        x = torch.ones(2)
        captured = capture(lambda x: x * 2, x)
        assert torch.equal(replay(captured)[0], torch.full((2,), 2.0))
        assert torch.is_inference_mode_enabled()


def test_inference_mode_inside_is_a_break():
    def program(x):
        with torch.inference_mode():
            return x * 2

    with pytest.raises(Break) as caught:
        capture(program, torch.ones(2))
    assert caught.value.reason.kind is BreakKind.UNSUPPORTED
