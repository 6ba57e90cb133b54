"""What the watch costs a compiled call with nothing failing, next to torch's own wrapper at the same level.

    python -m benchmarks.overhead --json

All ways of calling live in one process and take turns, so that a busy moment hits all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType

import torch
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from torch import nn

import torchrepro
from torchrepro.catch.session import disable
from torchrepro.catch.torch_hooks import enable

ROUNDS = 40
TURN = 0.02
"""Seconds of one turn of one way, at least one call."""
THREADS = 1
"""Several wait for one another, and for whatever else the machine does, far longer than the watch takes."""
BUDGET = "5%"
BUDGET_SECONDS = 8.0
GROWTH_CALLS = 1000

PLAIN = "plain"
PASSIVE = ("torchrepro 1", "torchrepro 2")
"""What they add is so little that they are measured among themselves, in many short turns."""
SHORT_TURN = TURN / 8


@dataclass(frozen=True, slots=True)
class Cost:
    """A way of calling a model, as a multiple of the plain compiled call."""

    model: str
    way: str
    microseconds: float
    ratio: float
    added: float
    """Microseconds added to a call: the median of the rounds."""
    uncertainty: float
    """Half of the 95 % interval of `added`."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory after many calls more, in bytes."""

    way: str
    calls: int
    python: int
    """Of objects made inside the watch, by `tracemalloc`: torch itself leaves a few kilobytes either way."""
    resident: int


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(split[0], split[1], split[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        grown: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return grown


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(16, 64)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[Block(256, 8) for _ in range(4)]), torch.randn(8, 128, 256)


MODELS = {"MLP": mlp, "transformer": transformer}


@dataclass(frozen=True, eq=False)
class Way:
    """A compiled model, and what has to be set around its calls."""

    name: str
    call: Callable[[torch.Tensor], object]
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    def seconds(self, x: torch.Tensor, turn: float = TURN) -> float:
        """Of one call, over a turn."""
        with self.around():
            calls, started = 0, time.perf_counter()
            while True:
                self.call(x)
                calls += 1
                taken = time.perf_counter() - started
                if taken >= turn:
                    return taken / calls


@contextmanager
def ways(model: nn.Module, x: torch.Tensor, scratch: Path) -> Iterator[list[Way]]:
    """Plain, under torch's wrapper and under ours.

    What is not to be watched is compiled before the watch begins. The caches of whole graphs are off,
    because a hit there turns torch's wrapper off.
    """
    with torch.no_grad(), ExitStack() as stack:
        stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False))
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        found = [_compiled(PLAIN, model, x)]
        found += [_under_torchs(level, model, x, scratch) for level in (1, 2, 3, 4)]
        for level in (1, 2, 3, 4):
            session = enable(level=level, out=scratch / f"level{level}")
            stack.callback(disable, session)
            found.append(_compiled(f"torchrepro {level}", model, x))
        yield found


def _compiled(
    name: str,
    model: nn.Module,
    x: torch.Tensor,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Way:
    """Compiled on its own: dynamo keeps compiled code by code object, so each way needs one of its own."""

    def call(x: torch.Tensor) -> object:
        return model(x)

    code = call.__code__.replace(co_name=f"call_{name}")
    fresh = FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
    way = Way(name, torch.compile(fresh), around)
    for _ in range(3):
        way.seconds(x, turn=0.0)
    return way


def _under_torchs(level: int, model: nn.Module, x: torch.Tensor, scratch: Path) -> Way:
    """Checked on torch 2.13 (`torch._dynamo.config.repro_after`, `repro_level`, `debug_dir_root`)."""

    def settings() -> AbstractContextManager[object]:
        directory = str(scratch / f"torch{level}")
        patched: AbstractContextManager[object] = torch._dynamo.config.patch(
            repro_after="aot", repro_level=level, debug_dir_root=directory
        )
        return patched

    return _compiled(f"torch {level}", model, x, settings)


def costs(name: str, scratch: Path, rounds: int = ROUNDS) -> list[Cost]:
    """Every way of calling a model, measured in turns; then the check with a budget, by itself."""
    model, x = MODELS[name]()
    with ways(model, x, scratch) as found:
        measured = _in_turns([way for way in found if way.name not in PASSIVE], x, rounds)
        answer = [_cost(name, way, taken, measured[PLAIN]) for way, taken in measured.items()]
        quick = [way for way in found if way.name in (PLAIN, *PASSIVE)]
        measured = _in_turns(quick, x, 5 * rounds, SHORT_TURN)
        answer += [_cost(name, way, measured[way], measured[PLAIN]) for way in PASSIVE]
        answer.append(_with_budget(name, model, x, found[0], scratch))
    torch._dynamo.reset()
    return answer


def _in_turns(
    found: Sequence[Way], x: torch.Tensor, rounds: int, turn: float = TURN
) -> dict[str, list[float]]:
    measured: dict[str, list[float]] = {way.name: [] for way in found}
    order = list(found)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for way in order:
            measured[way.name].append(way.seconds(x, turn))
    return measured


def _cost(model: str, way: str, seconds: Sequence[float], plain: Sequence[float]) -> Cost:
    added = [here - there for here, there in zip(seconds, plain, strict=True)]
    middle = statistics.median(added)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in added)
    # The median of n values strays 1.25 times as far as their mean.
    uncertainty = 1.96 * 1.25 * spread / len(added) ** 0.5
    return Cost(
        model=model,
        way=way,
        microseconds=1e6 * statistics.median(seconds),
        ratio=statistics.median(here / there for here, there in zip(seconds, plain, strict=True)),
        added=1e6 * middle,
        uncertainty=1e6 * uncertainty,
    )


def _with_budget(name: str, model: nn.Module, x: torch.Tensor, plain: Way, scratch: Path) -> Cost:
    """The budget is a share of all time that passes, so nothing else may run meanwhile but the yardstick.

    Blocks of plain calls stand before, between and after; the time for which compiling paid is spent first.
    """
    session = enable(level=4, budget=BUDGET, out=scratch / "budget")
    try:
        way = _compiled("torchrepro 4, budget 5 %", model, x)
        way.seconds(x, turn=BUDGET_SECONDS / 2)
        before = plain.seconds(x, turn=BUDGET_SECONDS / 8)
        first = way.seconds(x, turn=BUDGET_SECONDS)
        after = plain.seconds(x, turn=BUDGET_SECONDS / 8)
    finally:
        disable(session)
    yardstick = (before + after) / 2
    return Cost(
        model=name,
        way=way.name,
        microseconds=1e6 * first,
        ratio=first / yardstick,
        added=1e6 * (first - yardstick),
        uncertainty=1e6 * abs(before - after) / 2,
    )


def growth(scratch: Path, calls: int = GROWTH_CALLS) -> list[Growth]:
    """What memory many calls leave behind, plain and at level 2, each call with inputs of its own."""
    model, x = mlp()
    found = []
    with torch.no_grad():
        found.append(_growth(_compiled(PLAIN, model, x), calls))
        session = enable(level=2, out=scratch / "growth")
        try:
            found.append(_growth(_compiled("torchrepro 2", model, x), calls))
        finally:
            disable(session)
    torch._dynamo.reset()
    return found


def _growth(way: Way, calls: int) -> Growth:
    def many() -> None:
        for _ in range(calls):
            way.call(torch.randn(16, 64))
        gc.collect()

    many()
    resident = _resident()
    many()
    resident = _resident() - resident
    tracemalloc.start(8)
    try:
        many()
        python = _traced()
        many()
        python = _traced() - python
    finally:
        tracemalloc.stop()
    return Growth(way.name, calls, python, resident)


def _traced() -> int:
    """Bytes of what was allocated by us or by what we called."""
    ours = tracemalloc.Filter(True, str(Path(torchrepro.__file__).parent / "*"), all_frames=True)
    snapshot = tracemalloc.take_snapshot().filter_traces([ours])
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each way")
    parser.add_argument("--only", default="", help="names of models, joined by commas")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    logging.disable(logging.CRITICAL)  # torch's wrapper logs each file it writes
    chosen = options.only.split(",") if options.only else list(MODELS)
    if not set(chosen) <= set(MODELS):
        parser.error(f"--only knows {', '.join(MODELS)}")
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        found = [cost for name in chosen for cost in costs(name, Path(scratch, name), options.rounds)]
        grown = growth(Path(scratch))
    if options.json:
        answer = {"costs": [asdict(cost) for cost in found], "growth": [asdict(row) for row in grown]}
        print(json.dumps(answer))
        return
    _print_tables(found, grown)


def _print_tables(found: Sequence[Cost], grown: Sequence[Growth]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="a compiled call: as a multiple of the plain one, and what is added to it")
    for heading in ("model", "way", "a call", "ratio", "added"):
        table.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for cost in found:
        table.add_row(
            cost.model,
            cost.way,
            f"{cost.microseconds:,.0f} µs",
            f"{cost.ratio:.2f}",
            f"{cost.added:,.1f} ± {cost.uncertainty:,.1f} µs",
        )
    console.print(table)
    for row in grown:
        console.print(
            f"{row.way}: {row.calls} calls more leave {row.python:,} bytes of Python objects, "
            f"{row.resident:,} bytes resident"
        )


if __name__ == "__main__":
    main()
