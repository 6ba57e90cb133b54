"""How many programs does a hunt judge, and what does it find?

    python -m benchmarks.hunt --parts throughput     # joint compilation against one program a compilation
    python -m benchmarks.hunt --parts hunt --minutes 30 --out DIR [--torch 2.15.0]

`throughput`: both sides judge programs of the same seeds, in forks of a warm process, in turns. Processor
time is of the hunt's process and all that it has started; it is what a
busy machine does not change much. Importing and warming up are not counted in the minutes, but in the
processor time. Failures are not sorted: that takes minutes each, however they were found.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torchrepro.hunt.buckets import buckets_in
from torchrepro.hunt.directory import HuntDirectory
from torchrepro.hunt.hunt import OtherTorch, hunt
from torchrepro.hunt.settings import Hunted, HuntSettings


@dataclass(frozen=True)
class Cost:
    """What it took to judge programs."""

    programs: int
    seconds: float
    processor: float

    @property
    def rate(self) -> float:
        return 60 * self.programs / self.seconds

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.programs + other.programs, self.seconds + other.seconds, self.processor + other.processor
        )


def cost_of(batch: int, programs: int, seed: int, jobs: int) -> tuple[Cost, Hunted]:
    """Hunt among so many seeds in a new directory."""
    settings = HuntSettings(
        programs=programs, batch=batch, generators=("operators",), jobs=jobs, sort_seconds=0
    )
    with tempfile.TemporaryDirectory() as directory:
        before = _processor_seconds()
        found = hunt(Path(directory), settings, seed=seed)
        spent = _processor_seconds() - before
    return Cost(found.judged_now, found.seconds, spent), found


def throughput(batch: int, programs: int, turns: int, jobs: int) -> None:
    """Print programs per minute of both ways, and their ratio."""
    # What importing and warming up take: a hunt among no seeds that lead to anything worth a compilation.
    start, _ = cost_of(1, 1, 0xFFFF, jobs)
    totals = {"one by one": Cost(0, 0.0, 0.0), f"batches of {batch}": Cost(0, 0.0, 0.0)}
    one, many = totals
    for turn in range(turns):
        for name, size, count in ((one, 1, max(8, programs // 8)), (many, batch, programs)):
            cost, found = cost_of(size, count, 0xB0 + turn, jobs)
            totals[name] += Cost(cost.programs, cost.seconds, max(0.0, cost.processor - start.processor))
            print(
                f"turn {turn}: {name}: {cost.programs} programs, {len(found.failures)} failures", flush=True
            )
    for name, cost in totals.items():
        each = cost.processor / cost.programs
        print(f"{name}: {cost.rate:.0f} programs/min, {each:.3f} s of processor time each")
    ratio, cheaper = totals[many].rate / totals[one].rate, _each(totals[one]) / _each(totals[many])
    print(f"ratio: {ratio:.1f} times the programs per minute, {cheaper:.1f} times less processor time each")


def _each(cost: Cost) -> float:
    return cost.processor / cost.programs


def whole_hunt(minutes: float, out: Path, jobs: int, other: OtherTorch) -> None:
    """Hunt with all generators, and print what was found."""
    before = _processor_seconds()
    found = hunt(out, HuntSettings(seconds=60 * minutes, jobs=jobs), other=other)
    took, spent = found.seconds / 60, (_processor_seconds() - before) / 60
    print(f"{found.judged_now} programs in {took:.1f} min ({spent:.1f} min of processor time),", end=" ")
    print(f"{len(found.failures)} failures,", end=" ")
    print(f"{len(found.buckets)} buckets; kinds: {dict(found.kinds)}")
    buckets = list(buckets_in(HuntDirectory(Path(found.directory)).buckets))
    how = Counter(member.recognised.value for bucket in buckets for member in bucket.members())
    print(f"recognised: {dict(how)}; {took / max(1, len(buckets)):.1f} min for each bucket")
    for bucket in buckets:
        about = bucket.about
        assert about is not None
        print(f"  {about.seed}  {about.bucket}  {about.seconds:.0f} s  {about.signature}  {about.culprit}")
    for failure in found.failures:
        print(f"  {failure.seed}  {failure.bucket}  {failure.signature}  {failure.summary}")


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="throughput,hunt")
    parser.add_argument("--batch", type=int, default=HuntSettings().batch)
    parser.add_argument("--programs", type=int, default=256, help="seeds of a turn in batches")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("hunt"))
    parser.add_argument("--python", type=Path, help="hunt the torch of this interpreter")
    parser.add_argument("--torch", default="", help="hunt this version of torch")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if "throughput" in parts:
        throughput(options.batch, options.programs, options.turns, options.jobs)
    if "hunt" in parts:
        other = OtherTorch(options.python, options.torch)
        whole_hunt(options.minutes, options.out, options.jobs, other)


if __name__ == "__main__":
    main()
