"""Values inside a graph become outputs of it, as they were computed, and the graph stays what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.cut.record_values import Recording, observed_values, raising_node, read_values, write_values
from torchrepro.cut.watched_values import Ancestry, first_wrong, values_in, watched, watched_in
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Comparison, Difference, LeafComparison


def recorded(function: Callable[..., Any], *inputs: Any) -> tuple[Repro, Recording]:
    repro = Repro(torch.fx.symbolic_trace(function), inputs)
    return repro, observed_values(repro, limit=0)


def test_the_watched_values_come_last_and_in_the_order_asked_for() -> None:
    repro, recording = recorded(lambda x, y: torch.cos(torch.sin(x)) + 1, torch.ones(2), torch.ones(3))
    assert values_in(repro.graph.graph, recording) == ["sin", "cos", "add"]
    seen = watched(repro, ["cos", "sin"], recording)
    outputs = seen.graph(*seen.inputs)
    expected = (torch.ones(2).sin().cos() + 1, torch.ones(2).sin().cos(), torch.ones(2).sin())
    assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True))
    assert len(seen.graph.graph.find_nodes(op="placeholder")) == 2


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    z = y.view(-1)
    y.mul_(2)
    return z + y


def test_what_is_written_to_later_is_returned_as_it_was() -> None:
    repro, recording = recorded(in_place, torch.ones(2))
    assert recording.overwritten == {"sin", "view"}
    assert recording.late == {"add"}
    seen = watched(repro, ["sin", "mul_"], recording)
    _, before, after = seen.graph(torch.ones(2))
    assert torch.equal(before * 2, after)


def test_a_recording_comes_back_from_its_file(tmp_path: Any) -> None:
    _, recording = recorded(in_place, torch.ones(2))
    write_values(recording, tmp_path / "values.pt")
    again = read_values(tmp_path / "values.pt")
    assert (again.sizes, again.overwritten, again.late) == (
        recording.sizes,
        recording.overwritten,
        recording.late,
    )
    assert again.sizes == {"sin": 8, "view": 8, "mul_": 8, "add": 8}


def test_the_first_wrong_value_is_the_one_whose_operands_are_right() -> None:
    repro, recording = recorded(lambda x: torch.cos(torch.sin(x)) + 1, torch.ones(2))
    names = ["sin", "cos", "add"]
    seen = watched(repro, names, recording)
    leaves = [LeafComparison("out[0]", Difference.VALUE)]
    leaves += [LeafComparison(f"out[{place}]", Difference.VALUE) for place in (2, 3)]
    found = watched_in(Comparison(tuple(leaves)), seen, names)
    assert set(found) == {"cos", "add"}
    assert first_wrong(repro.graph.graph, set(found)) == "cos"
    assert first_wrong(repro.graph.graph, set()) is None


def test_ancestors_are_all_that_a_node_depends_on() -> None:
    repro, _ = recorded(lambda x, y: torch.cos(torch.sin(x)) + torch.tanh(y), torch.ones(2), torch.ones(2))
    ancestry = Ancestry(repro.graph.graph)
    assert ancestry.among(ancestry.order, ancestry.before("cos")) == ["x", "sin", "cos"]


def test_the_node_at_which_eager_raises_is_known() -> None:
    fails = Repro(torch.fx.symbolic_trace(lambda x: torch.sin(x).view(5)), (torch.ones(2),))
    assert raising_node(fails) == "view"
    assert raising_node(Repro(torch.fx.symbolic_trace(in_place), (torch.ones(2),))) is None
