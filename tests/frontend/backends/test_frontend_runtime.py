"""What running captured code is like from outside: tracebacks, threads, interrupts, long loops, faults."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from torchrepro.frontend.trace.tracer import Tracer
from torchrepro.second_opinion.api import trace


def captured(function: Callable[..., Any]) -> Any:
    return trace(function, backend="eager")


def lines_of(error: BaseException, *functions: Callable[..., Any]) -> list[tuple[str, str]]:
    """Name and text of the lines of these functions in a traceback."""
    codes = {(function.__code__.co_filename, function.__code__.co_name) for function in functions}
    return [
        (each.name, (each.line or "").strip())
        for each in traceback.extract_tb(error.__traceback__)
        if (each.filename, each.name) in codes
    ]


def inner_raises(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    raise KeyError("k")
    return y


def outer_calls(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return inner_raises(y)


def after_a_break(x: torch.Tensor) -> Any:
    y = x + 1
    print(end="")
    z = y * 2
    return {}[z.shape]


def looks_up(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    doubled = table * 2
    return F.embedding(index, doubled)


def in_a_native_step(x: torch.Tensor) -> int:
    y = x + 1
    return int(str(y.sum()))


@pytest.mark.parametrize(
    ("function", "args", "others"),
    [
        (outer_calls, (torch.ones(2),), (inner_raises,)),
        (after_a_break, (torch.ones(2),), ()),
        (looks_up, (torch.tensor([0, 9]), torch.ones(3, 2)), ()),
        (in_a_native_step, (torch.ones(2),), ()),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_traceback_shows_the_frames_of_the_user(
    function: Callable[..., Any], args: tuple[Any, ...], others: tuple[Callable[..., Any], ...]
) -> None:
    with pytest.raises(Exception) as eager:
        function(*args)
    call = captured(function)
    for _ in range(2):
        with pytest.raises(eager.type) as found:
            call(*args)
        assert lines_of(found.value, function, *others) == lines_of(eager.value, function, *others)
        assert str(found.value) == str(eager.value)


def test_no_error_of_ours_is_in_the_chain() -> None:
    call = captured(looks_up)
    with pytest.raises(IndexError) as found:
        call(torch.tensor([9]), torch.ones(3, 2))
    assert found.value.__context__ is None
    assert found.value.__cause__ is None


def test_a_fault_of_the_compiler_alone_is_not_hidden() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*args: torch.Tensor) -> Any:
            raise IndexError("only compiled")

        return run

    def function(x: torch.Tensor) -> Any:
        try:
            return x + 1
        except IndexError:
            return "handled"

    with pytest.raises(IndexError, match="only compiled"):
        trace(function, backend=broken)(torch.ones(2))


def test_a_fault_after_a_write_says_what_was_changed() -> None:
    def function(index: torch.Tensor, table: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        counts.add_(1)
        return F.embedding(index, table)

    call = captured(function)
    with pytest.raises(IndexError) as found:
        call(torch.tensor([9]), torch.ones(3, 2), torch.zeros(1))
    assert any("counts" in note for note in found.value.__notes__)


def test_modes_are_put_back_where_a_graph_fails() -> None:
    def function(index: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        out.add_(1)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return F.embedding(index, table @ table.t())

    call = captured(function)
    with pytest.raises(IndexError):
        call(torch.tensor([9]), torch.ones(3, 2), torch.zeros(1))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_a_lock_is_released_where_a_graph_fails() -> None:
    lock = threading.Lock()

    def function(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        with lock:
            doubled = table * 2
            return F.embedding(index, doubled)

    call = captured(function)
    call(torch.tensor([1]), torch.ones(3, 2))
    with pytest.raises(IndexError):
        call(torch.tensor([9]), torch.ones(3, 2))
    assert not lock.locked()


def test_threads_call_one_function_at_once() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * n
        print(end="")
        return y + n if y.sum() > 0 else y - n

    call = captured(function)
    wrong: list[Any] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        start.wait()
        for step in range(12):
            x = torch.full((3,), float((-1) ** step))
            n = 1 + (number + step) % 3
            if not torch.equal(call(x, n), function(x, n)):
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_an_interrupt_while_tracing_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Box:
        def __init__(self) -> None:
            self.items, self.count, self.value = [1], 0, torch.zeros(2)

    def function(box: Box, x: torch.Tensor) -> torch.Tensor:
        box.count += 1
        box.items.append(box.count)
        box.value = box.value + x
        box.value.add_(1)
        with torch.no_grad():
            return x * box.count

    box, steps, limit = Box(), 0, 0
    step = Tracer.step

    def interrupted(self: Tracer, frame: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == limit:
            raise KeyboardInterrupt
        return step(self, frame)

    call = captured(function)
    monkeypatch.setattr(Tracer, "step", interrupted)
    random = torch.get_rng_state()
    value = box.value
    for number in range(2, 40, 3):
        steps, limit = 0, number
        with pytest.raises(KeyboardInterrupt):
            call(box, torch.ones(2))
        assert (box.count, box.items) == (0, [1])
        assert box.value is value
        assert value.tolist() == [0.0, 0.0]
        assert torch.is_grad_enabled()
        assert torch.equal(random, torch.get_rng_state())
    monkeypatch.undo()
    assert call(box, torch.ones(2)).tolist() == [1.0, 1.0]
    assert (box.count, box.items) == (1, [1, 1])


def test_a_break_in_each_of_three_thousand_iterations() -> None:
    seen: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < 3000:
            n = step_of(n)
            x = x + 1
        return x

    step_of = torch._dynamo.disable(lambda n: seen.append(n) or n + 1)
    start = time.monotonic()
    call = captured(function)
    assert call(torch.zeros(1)).item() == 3000.0
    assert len(seen) == 3000
    assert time.monotonic() - start < 60


def test_a_break_in_a_loop_over_data_is_captured_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 3000:
            x = x + 1
        return x

    graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph

    assert trace(function, backend=counting)(torch.zeros(1)).item() == 3000.0
    assert graphs <= 3


@pytest.mark.filterwarnings("ignore::torchrepro.frontend.runtime.cache.CaptureLimitWarning")
def test_a_deep_recursion_is_pythons() -> None:
    def down(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else down(x + 1, depth - 1)

    assert captured(down)(torch.zeros(1), 250).item() == 250.0

    def telling(x: torch.Tensor, depth: int) -> torch.Tensor:
        print(end="")
        return x if depth == 0 else telling(x + 1, depth - 1)

    depth = sys.getrecursionlimit() - len(inspect.stack()) - 200
    assert captured(telling)(torch.zeros(1), depth).item() == depth

    def forever(x: torch.Tensor) -> torch.Tensor:
        return forever(x + 1)

    with pytest.raises(RecursionError):
        captured(forever)(torch.zeros(1))


def test_the_tensors_of_a_call_do_not_outlive_it() -> None:
    def function(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        items.append(x * 2)
        print(end="")
        return items[0] + x

    call = captured(function)
    x, items = torch.ones(3), []
    result = call(x, items)
    references = [weakref.ref(each) for each in (x, items[0], result)]
    del x, items, result
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_an_error_of_the_program_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="Expected reduction dim"):
        trace(lambda x: x.max() + 1, backend="eager")(torch.zeros(0, 4))
    assert capfd.readouterr() == ("", "")
