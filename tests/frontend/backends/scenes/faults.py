"""Operations that fail on some data: handlers, `finally` and what was done before are Python's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tests.frontend.harness import Capture, outcome, scene, tensor


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)


def say(*values: Any) -> None:
    print(*values, end="", file=_Nowhere())


NUMBERS = (1, 99, 2, 99, 1)


@scene
def a_fault_behind_a_break(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, log: list[str]) -> Any:
        log.append("begin")
        table = table + 1
        say(table)
        log.append("middle")
        try:
            doubled = table * 2
            found = F.embedding(index, doubled)
            log.append("found")
        except IndexError as error:
            log.append(str(error))
            found = doubled
        say(found)
        return found * 2, doubled

    call = capture(function)
    for number in NUMBERS:
        log: list[str] = []
        yield call(torch.tensor([number]), tensor(4, 2), log), log


@scene
def a_fault_in_some_iterations(capture: Capture) -> Iterator[Any]:
    def function(indices: list[torch.Tensor], table: torch.Tensor) -> Any:
        done, failed = [], 0
        for index in indices:
            try:
                done.append(F.embedding(index, table))
            except IndexError:
                failed += 1
                continue
            say(failed)
        return done, failed

    call = capture(function)
    for numbers in ((1, 2), (99, 1), (1, 99, 2), (99, 99)):
        yield call([torch.tensor([number]) for number in numbers], tensor(4, 2))


@scene
def a_fault_after_random_numbers(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor) -> Any:
        noise = torch.rand(2)
        try:
            more = torch.rand(2)
            return F.embedding(index, table) + noise + more
        except IndexError:
            return torch.rand(2) + noise

    call = capture(function)
    torch.manual_seed(5)
    for number in NUMBERS:
        yield call(torch.tensor([number]), tensor(4, 2)), torch.rand(1)


@scene
def a_fault_in_a_with_block(capture: Capture) -> Iterator[Any]:
    log: list[str] = []

    class Noting:
        def __init__(self, swallow: bool) -> None:
            self.swallow = swallow

        def __enter__(self) -> None:
            log.append("in")

        def __exit__(self, kind: Any, *rest: object) -> bool:
            log.append(f"out {kind.__name__ if kind else None}")
            return self.swallow

    def function(index: torch.Tensor, table: torch.Tensor, swallow: bool) -> Any:
        out = table.sum()
        with torch.no_grad(), Noting(swallow), torch.autocast("cpu", torch.bfloat16):
            out = F.embedding(index, table).sum()
            log.append("done")
        return out, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    call = capture(function)
    for swallow in (True, False):
        for number in NUMBERS:
            log.clear()
            kind, value = outcome(call, torch.tensor([number]), tensor(4, 2).requires_grad_(), swallow)
            yield kind, value if kind == "gives" else type(value), list(log), torch.is_grad_enabled()


@scene
def a_fault_in_a_generator(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor) -> Any:
        log: list[str] = []

        def produce() -> Iterator[Any]:
            try:
                yield table * 2
                yield F.embedding(index, table)
            except IndexError:
                log.append("caught")
                yield table * 3
            finally:
                log.append("closed")

        return list(produce()), log

    call = capture(function)
    for number in NUMBERS:
        yield call(torch.tensor([number]), tensor(4, 2))


@scene
def a_fault_after_a_change_of_an_argument(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, items: list[Any], box: dict[str, Any]) -> Any:
        items.append("first")
        box["n"] = box.get("n", 0) + 1
        try:
            items.append(F.embedding(index, table))
        except IndexError:
            items.append("failed")
        box["end"] = len(items)
        return items

    call = capture(function)
    box: dict[str, Any] = {}
    for number in NUMBERS:
        items: list[Any] = []
        yield call(torch.tensor([number]), tensor(4, 2), items, box), items, dict(box)


@scene
def a_fault_after_a_write_to_memory(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, counts: torch.Tensor) -> Any:
        counts[0] += 1
        try:
            counts.mul_(2)
            found = F.embedding(index, table)
            counts.add_(100)
            return found
        except IndexError:
            return counts.clone()
        finally:
            counts.sub_(0.5)

    call = capture(function)
    counts = torch.ones(2)
    for number in NUMBERS:
        yield call(torch.tensor([number]), tensor(4, 2), counts), counts


@scene
def other_faults(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, how: int) -> Any:
        with contextlib.suppress(RuntimeError, IndexError):
            if how == 0:
                return torch.linalg.cholesky(x)
            if how == 1:
                return torch.linalg.inv(x)
            if how == 2:
                return x[torch.tensor([0, 9])]
            if how == 3:
                return torch.gather(x, 0, torch.full((1, 3), 7))
            return F.one_hot(x[0].long(), 2)
        return "suppressed"

    call = capture(function)
    good, bad = torch.eye(3), torch.zeros(3, 3) - 1
    for how in range(5):
        for x in (good, bad, good):
            yield call(x, how)


@scene
def a_fault_that_a_caller_handles(capture: Capture) -> Iterator[Any]:
    @capture
    def inner(index: torch.Tensor, table: torch.Tensor) -> Any:
        return F.embedding(index, table) * 2

    def function(index: torch.Tensor, table: torch.Tensor) -> Any:
        try:
            return inner(index, table)
        except IndexError:
            say("failed")
            return table[:1]

    call = capture(function)
    for number in NUMBERS:
        yield (
            call(torch.tensor([number]), tensor(4, 2)),
            outcome(inner, torch.tensor([number]), tensor(4, 2))[0],
        )
