"""Collectives without the other ranks: recorded results, and what stands for them in another graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.process_groups import current_groups
from torchrepro.execute.collectives import CollectiveRecord, recorded_collectives, without_other_ranks
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Collective, Compiler, Repro
from torchrepro.nouns.verdict import Kind
from torchrepro.script.save_bundle import save_bundle
from torchrepro.torch_api.distributed import start_fake_groups

OPS = torch.ops._c10d_functional


@pytest.fixture(autouse=True)
def second_of_two_ranks() -> Iterator[None]:
    start_fake_groups(1, 2, {"0": (0, 1)})
    yield
    dist.destroy_process_group()


def replayed(function: Any, *recorded: Collective, exact: bool = False) -> Any:
    graph = torch.fx.symbolic_trace(lambda x: x)
    repro = Repro(graph, (), groups=current_groups(), collectives=recorded)
    with without_other_ranks(repro, exact=exact):
        return function()


def summed(given: list[float], returned: list[float], how: str = "sum") -> Collective:
    return Collective("all_reduce", (how,), torch.tensor(given), torch.tensor(returned))


def all_reduce(x: torch.Tensor, how: str = "sum") -> torch.Tensor:
    return OPS.wait_tensor(OPS.all_reduce(x, how, "0"))


def test_a_recorded_result_is_returned_exactly() -> None:
    record = summed([1.0, float("inf"), float("nan")], [10.0, float("inf"), 5.0])
    assert replayed(lambda: all_reduce(record.given.clone()), record).tolist() == [10.0, float("inf"), 5.0]


def test_the_other_ranks_give_the_same_when_this_one_gives_something_else() -> None:
    record = summed([1.0, 2.0], [10.0, 20.0])
    assert replayed(lambda: all_reduce(torch.tensor([1.0, 3.0])), record).tolist() == [10.0, 21.0]
    wide = replayed(lambda: all_reduce(torch.tensor([1.0, 2.5], dtype=torch.float64)), record)
    assert wide.dtype is torch.float64
    assert wide.tolist() == [10.0, 20.5]
    largest = summed([1.0, 2.0], [10.0, 2.0], "max")
    assert replayed(lambda: all_reduce(torch.tensor([1.0, 3.0]), "max"), largest).tolist() == [10.0, 3.0]


def test_this_ranks_part_of_a_gathered_tensor_is_what_it_gives() -> None:
    record = Collective("all_gather_into_tensor", (2,), torch.ones(1), torch.tensor([7.0, 1.0]))
    found = replayed(lambda: OPS.wait_tensor(OPS.all_gather_into_tensor(torch.tensor([3.0]), 2, "0")), record)
    assert found.tolist() == [7.0, 3.0]


def test_a_scattered_sum_changes_by_this_ranks_part() -> None:
    record = Collective("reduce_scatter_tensor", ("sum", 2), torch.tensor([1.0, 2.0]), torch.tensor([20.0]))

    def run() -> torch.Tensor:
        return OPS.wait_tensor(OPS.reduce_scatter_tensor(torch.tensor([5.0, 3.0]), "sum", 2, "0"))

    assert replayed(run, record).tolist() == [21.0]
    assert replayed(run).tolist() == [3.0]


def test_in_place_and_coalesced_forms_use_the_same_records() -> None:
    record = summed([1.0], [10.0])
    buffer = torch.ones(1)
    replayed(lambda: OPS.all_reduce_(buffer, "sum", "0"), record)
    assert buffer.tolist() == [10.0]
    one, two = replayed(lambda: OPS.all_reduce_coalesced([torch.ones(1), torch.zeros(2)], "sum", "0"), record)
    assert (one.tolist(), two.tolist()) == ([10.0], [0.0, 0.0])


def test_without_a_record_all_ranks_have_the_same() -> None:
    x = torch.tensor([1.0, 2.0])
    assert replayed(lambda: all_reduce(x)).tolist() == [1.0, 2.0]
    gathered = replayed(lambda: OPS.all_gather_into_tensor(x, 2, "0"))
    assert gathered.tolist() == [1.0, 2.0, 1.0, 2.0]
    moved = replayed(lambda: OPS.all_to_all_single(x, [2, 1], [1, 1], "0"))
    assert moved.shape == (3,)


def test_where_only_recorded_results_count_another_collective_is_an_error() -> None:
    with pytest.raises(TorchReproError, match="all_reduce"):
        replayed(lambda: all_reduce(torch.ones(2)), summed([1.0], [2.0]), exact=True)


def test_collectives_of_a_call_are_recorded_in_every_form() -> None:
    record = CollectiveRecord()
    with recorded_collectives(record):
        all_reduce(torch.ones(2))
        OPS.all_reduce_coalesced([torch.ones(1)], "avg", "0")  # nobody waits for it
        collectives.all_gather_tensor(torch.ones(3), 0, dist.group.WORLD) + 1
    assert [(one.op, one.arguments, tuple(one.given.shape)) for one in record.collectives] == [
        ("all_reduce", ("sum",), (2,)),
        ("all_gather_into_tensor", (2,), (3,)),
        ("all_reduce", ("avg",), (1,)),
    ]
    assert record.unknown == ""


def repro_with(*recorded: Collective) -> Repro:
    def f(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(OPS.wait_tensor(OPS.all_reduce(x.sin(), "sum", "0"))).square(),)

    graph = torch.fx.symbolic_trace(f)
    return Repro(
        graph,
        (torch.tensor([0.5, 1.0], requires_grad=True),),
        compiler=Compiler("aot_eager"),
        groups=current_groups(),
        collectives=recorded,
    )


def test_a_graph_with_a_collective_is_judged_with_gradients_in_one_process() -> None:
    recorded = Collective("all_reduce", ("sum",), torch.tensor([0.5, 1.0]).sin(), torch.tensor([2.0, 3.0]))
    verdict = judge_repro(repro_with(recorded))
    assert verdict.kind is Kind.PASS, verdict.summary
    assert not any("float64" in note for note in verdict.notes)


def test_records_and_groups_survive_a_bundle_and_replace_those_of_another(tmp_path: Path) -> None:
    recorded = Collective("all_to_all_single", ((1, 1), (2, 0)), torch.ones(2), torch.zeros(2))
    bundle = save_bundle(repro_with(recorded), tmp_path / "b")
    dist.destroy_process_group()
    start_fake_groups(0, 3, {"0": (0, 1, 2)})
    found = load_bundle(bundle)
    assert found.groups == current_groups()
    assert dist.get_world_size() == 2
    (one,) = found.collectives
    assert (one.op, one.arguments, one.returned.tolist()) == ("all_to_all_single", ((1, 1), (2, 0)), [0, 0])
    assert judge_repro(replace(found, compiler=Compiler("eager"))).kind is Kind.PASS
