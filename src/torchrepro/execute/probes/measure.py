"""Measure what a call costs: time in interleaved pairs, peaks of memory, instructions.

Neighbours on a machine slow both sides down alike if they are measured in turn, and can only add to a cost.
So the lowest deciles of both are compared, with a bootstrap interval. Instructions hardly depend on
neighbours at all; where the system does not count them for us, it is the CPU time of this process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchrepro.execute.judge_repro import synchronise

_RESAMPLED = 1000
_CONFIDENCE = 0.99
_FEWEST, _MOST = 9, 101
_CLEARLY = 1.5
"""How many times further down the highest ratio must be for a few pairs to be enough."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times the baseline's cost something takes, and an interval around that."""

    value: float
    """Of the lowest deciles."""
    lowest: float
    highest: float
    pairs: int
    cost: float
    """The least that was measured, in the unit of the measurement: a neighbour can only add to it."""
    baseline: float

    def exceeds(self, threshold: float, *, by: float) -> bool:
        """Return whether the interval lies above a threshold, and the least costs differ by both numbers."""
        least = self.cost > threshold * self.baseline and self.cost - self.baseline > by
        return least and self.lowest > threshold

    def __str__(self) -> str:
        interval = f"{_CONFIDENCE:.0%} interval {self.lowest:.2f} to {self.highest:.2f}, {self.pairs} pairs"
        return f"{self.value:.2f} times ({interval})"


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of pairs (cost, cost of the baseline), with its bootstrap interval."""
    chance = random.Random(0)
    drawn = sorted(_ratio(chance.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLED))
    tail = round(_RESAMPLED * (1 - _CONFIDENCE) / 2)
    costs, baselines = zip(*pairs, strict=True)
    return Ratio(_ratio(pairs), drawn[tail], drawn[-1 - tail], len(pairs), min(costs), min(baselines))


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the ratio of the lowest deciles: on a busy machine most calls are disturbed."""
    place = len(pairs) // 10
    own, other = sorted(own for own, _ in pairs)[place], sorted(other for _, other in pairs)[place]
    return own / max(other, 1e-12)


def interleaved(
    measure: Callable[[], float],
    baseline: Callable[[], float],
    *,
    granted: float,
    seconds: float,
    early: int = _FEWEST,
    fewest: int = _FEWEST,
    most: int = _MOST,
) -> Ratio:
    """Measure both in turn, in alternating order, for about so many seconds; at least the fewest pairs.

    It is over after the `early` ones if their interval is far below what is granted: more are for those that
    may fail.
    """
    pairs: list[tuple[float, float]] = []
    until = time.monotonic() + seconds
    while len(pairs) < most and (len(pairs) < fewest or time.monotonic() < until):
        if len(pairs) % 2:
            other, own = baseline(), measure()
        else:
            own, other = measure(), baseline()
        pairs.append((own, other))
        if len(pairs) == early and ratio_of(pairs).highest * _CLEARLY < granted:
            break
    return ratio_of(pairs)


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes, its device included."""
    was_on = gc.isenabled()
    gc.disable()
    synchronise()
    began = time.perf_counter()
    try:
        result = call()
        synchronise()
        return time.perf_counter() - began
    finally:
        del result
        if was_on:
            gc.enable()


def peak_of(call: Callable[[], Any], device: str) -> int:
    """Return the most bytes that tensors of a call take at a time, on top of what was there before it."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    with tempfile.TemporaryDirectory(prefix="torchrepro-memory-") as directory:
        path = Path(directory) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    taken = highest = 0
    for event in sorted((each for each in events if each.get("name") == "[memory]"), key=lambda e: e["ts"]):
        taken += event["args"]["Bytes"]
        highest = max(highest, taken)
    return highest


INSTRUCTIONS = "instructions"
"""The unit of `Work` where the system counts them."""
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_DISABLE, _ENABLE, _RESET = 0x2401, 0x2400, 0x2403
_ATTRIBUTES = 112


class Work:
    """Counts the instructions of this thread in user space; or the CPU time of the process, by `unit`."""

    def __init__(self) -> None:
        self._descriptor = _instruction_counter()
        self.unit = INSTRUCTIONS if self._descriptor is not None else "seconds of CPU time"

    def of(self, call: Callable[[], Any]) -> float:
        """Return what a call takes."""
        if self._descriptor is None:
            began = time.process_time()
            call()
            return time.process_time() - began
        import fcntl

        fcntl.ioctl(self._descriptor, _RESET, 0)
        fcntl.ioctl(self._descriptor, _ENABLE, 0)
        try:
            call()
        finally:
            fcntl.ioctl(self._descriptor, _DISABLE, 0)
        return float(struct.unpack("Q", os.read(self._descriptor, 8))[0])

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


@contextmanager
def counted_work() -> Iterator[Work]:
    work = Work()
    try:
        yield work
    finally:
        work.close()


def _instruction_counter() -> int | None:
    """Return the descriptor of a counter of instructions; None where the system does not give one."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return None
    # type: hardware; config: instructions; flags: disabled, without the kernel and the hypervisor.
    attributes = struct.pack("=IIQQQQQ", 0, _ATTRIBUTES, 1, 0, 0, 0, 0b1 | 1 << 5 | 1 << 6)
    buffer = ctypes.create_string_buffer(attributes.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, buffer, 0, -1, -1, 8)
    return descriptor if descriptor >= 0 else None
