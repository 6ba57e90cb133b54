"""A region as text and as a function: sources, graph, values, effects and the state at a break."""

from __future__ import annotations

import gc
import linecache
import traceback
from types import CellType
from typing import Any

import pytest
import torch
from rebuild_world import SmallWorld

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.codegen.effects import Effects
from torchrepro.frontend.codegen.objects import ShadowKind
from torchrepro.frontend.codegen.rebuild import Rebuilder, RegionText, compile_region, frame_state
from torchrepro.frontend.codegen.writer import Writer
from torchrepro.frontend.source import Cell, FrameState, Item, Local, StackSlot


def test_inputs_are_read_and_given_to_the_graph_in_order() -> None:
    world = SmallWorld()
    rebuilder = Rebuilder(world, Writer(world.kept))
    result = rebuilder.expression({"sum": torch.empty(1)})
    region = compile_region(
        "f", rebuilder, result, lambda x, y: [x - y], [Item.at(Local("pair"), 1), Local("x y")]
    )
    assert region.text == (
        "def region(L, C, S):\n"
        "    pair = L['pair']\n"
        "    value = pair[1]\n"
        "    x_y = L['x y']\n"
        "    out = graph(value, x_y)\n"
        "    dict = {}\n"
        "    dict.update({'sum': out[0]})\n"
        "    return dict\n"
    )
    given = {"pair": (None, torch.tensor(5)), "x y": torch.tensor(3)}
    assert region.run(given, {}, ())["sum"].item() == 2


def test_an_empty_graph_is_not_called() -> None:
    assert SmallWorld().region(1).text == "def region(L, C, S):\n    return 1\n"


def test_the_state_at_a_break() -> None:
    world = SmallWorld()
    rebuilder = Rebuilder(world, Writer(world.kept))
    new, shared = CellType(3), torch.ones(1)
    result = frame_state(rebuilder, {"a b": shared, "c": [new]}, {"n": new}, (NULL, len, shared))
    state = compile_region("f", rebuilder, result, lambda: [shared.clone()], []).run({}, {}, ())
    assert isinstance(state, FrameState)
    assert state.locals["a b"] is state.stack[2]
    assert state.locals["c"][0] is state.cells["n"]
    assert state.cells["n"].cell_contents == 3
    assert state.stack[:2] == (NULL, len)


def test_a_stack_of_none_or_one() -> None:
    for stack in ((), (None,)):
        world = SmallWorld()
        rebuilder = Rebuilder(world, Writer(world.kept))
        region = compile_region("f", rebuilder, frame_state(rebuilder, {}, {}, stack), None, [])
        assert region.run({}, {}, ()).stack == stack


def test_cells_and_stack_of_the_frame_are_found_again() -> None:
    world = SmallWorld()
    rebuilder = Rebuilder(world, Writer(world.kept))
    region = compile_region("f", rebuilder, "None", lambda *given: given, [Cell("c"), StackSlot(1)])
    assert "C['c']" in region.text
    assert "S[1]" in region.text


def test_values_are_made_before_effects_and_the_ambient_state_comes_last() -> None:
    world = SmallWorld()
    world.shadow("log", [], ShadowKind.LIST).append(1)
    rebuilder = Rebuilder(world, Writer(world.kept))
    effects = Effects(rebuilder)
    result = rebuilder.expression([2])
    effects.write_all()
    disable = f"{rebuilder.held(torch.set_grad_enabled)}(True)"
    region = compile_region("f", rebuilder, result, None, [], [disable])
    lines = [line.strip() for line in region.text.splitlines()[1:]]
    assert lines == [
        "log = L['log']",
        "list = []",
        "list.extend([2])",
        "list_2.extend(log, [1])",
        "set_grad_enabled(True)",
        "return list",
    ]


def failing() -> RegionText:
    def graph() -> Any:
        raise ZeroDivisionError

    world = SmallWorld()
    return compile_region("model.py:3", Rebuilder(world, Writer(world.kept)), "None", graph, [])


def test_a_traceback_shows_the_text() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        failing().run({}, {}, ())
    shown = "".join(traceback.format_exception(caught.value))
    assert "out = graph()" in shown
    assert "model.py:3" in shown


def test_the_text_goes_with_the_function() -> None:
    region = failing()
    name = region.run.__code__.co_filename  # type: ignore[attr-defined]
    assert name in linecache.cache
    del region
    gc.collect()
    assert name not in linecache.cache
