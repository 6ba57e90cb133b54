"""Train healthy programs under a level 4 watch and count alarms; plant errors and count those found.

    python -m benchmarks.false_alarms --programs gan,experts --steps 50

An alarm about a healthy program is the judge's fault. The second table is its power: in how many checked
calls an error of 2, 8, 32 and 1,000 units in the last place, in one op in the middle, was found.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

import torchrepro
from benchmarks.false_alarms.planting import planted
from benchmarks.false_alarms.programs import PROGRAMS, steps_of
from torchrepro.catch.hook import Checker
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

SIZES = (2, 8, 32, 1000)


@dataclass
class Outcome:
    """What the watch said about the calls of one program."""

    program: str
    device: str
    planted_ulp: float = 0.0
    planted_in: str = ""
    steps: int = 0
    checks: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    alarms: int = 0
    explained: int = 0
    """Calls that differ by more than the rule grants, explained by rounding."""
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0
    loss: float = 0.0


@contextmanager
def verdicts(outcome: Outcome) -> Iterator[None]:
    """Count the verdicts of every check in the body."""
    original = Checker.check

    def check(self: Checker, repro: Repro, outputs: Any, after: tuple[Any, ...]) -> tuple[Repro, Verdict]:
        repro, verdict = original(self, repro, outputs, after)
        outcome.checks += 1
        outcome.kinds[verdict.kind.value] = outcome.kinds.get(verdict.kind.value, 0) + 1
        rounding = [note for note in verdict.notes if note.startswith("explained by rounding")]
        outcome.explained += bool(rounding) and not verdict.fails
        outcome.alarms += verdict.fails
        if (verdict.fails or rounding) and len(outcome.examples) < 3:
            said = [str(verdict), *verdict.notes] if verdict.fails else rounding[:1]
            outcome.examples.append("; ".join(said))
        return repro, verdict

    Checker.check = check  # type: ignore[method-assign]
    try:
        yield
    finally:
        Checker.check = original  # type: ignore[method-assign]


def train(name: str, device: str, steps: int, ulp: float = 0.0) -> Outcome:
    """Train one program for some steps under the watch."""
    outcome = Outcome(name, device, planted_ulp=ulp)
    torch._dynamo.reset()
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as directory,
        torchrepro.watch(level=4, out=directory),
        verdicts(outcome),
        planted(ulp) if ulp else nullcontext([]) as ops,
    ):
        losses = [float(loss) for loss in islice(steps_of(name, device), steps)]
        outcome.steps, outcome.loss = len(losses), losses[-1]
    outcome.planted_in = ", ".join(dict.fromkeys(ops))
    outcome.seconds = round(time.perf_counter() - began, 1)
    return outcome


def health_table(outcomes: list[Outcome]) -> Table:
    table = Table(title="healthy programs, every call checked at level 4")
    table.add_column("program", no_wrap=True)
    for column in ("steps", "checked calls", "not comparable", "explained by rounding", "alarms"):
        table.add_column(column)
    for one in outcomes:
        numbers = (one.steps, one.checks, one.kinds.get("not_comparable", 0), one.explained, one.alarms)
        table.add_row(_name(one), *map(str, numbers))
    return table


def _name(outcome: Outcome) -> str:
    return outcome.program if outcome.device == "cpu" else f"{outcome.program} ({outcome.device})"


def power_table(outcomes: list[Outcome]) -> Table:
    table = Table(
        title="planted errors: share of the checked calls in which the error is found (explained by rounding)"
    )
    table.add_column("program", no_wrap=True)
    for column in ("op", *(f"{size} ulp" for size in SIZES)):
        table.add_column(column, overflow="fold")
    for name in dict.fromkeys(map(_name, outcomes)):
        mine = {one.planted_ulp: one for one in outcomes if _name(one) == name}
        table.add_row(name, next(iter(mine.values())).planted_in, *(share(mine.get(s)) for s in SIZES))
    return table


def share(outcome: Outcome | None) -> str:
    """Return the share of calls in which the error was found, and of those that rounding explains away."""
    if outcome is None:
        return "–"
    found, explained = (count / max(outcome.checks, 1) for count in (outcome.alarms, outcome.explained))
    return f"{found:.0%}" + (f" ({explained:.0%})" if explained else "")


def wanted(name: str, options: argparse.Namespace) -> list[tuple[int, float]]:
    """Return steps and size of the planted error of each run of a program that is still to be made."""
    known = outcomes_in(options.json)
    runs = [(options.steps, 0.0), *((options.planted_steps, float(size)) for size in SIZES)]
    done = {
        (one.steps, one.planted_ulp) for one in known if (one.program, one.device) == (name, options.device)
    }
    return [run for run in runs if run[0] and run not in done]


def run_in_process(name: str, options: argparse.Namespace) -> None:
    """Train one program in a process of its own, with its share of the cores: several run at a time."""
    words = ["--programs", name, "--json", str(options.json), "--device", options.device, "--jobs", "1"]
    sizes = ["--steps", str(options.steps), "--planted-steps", str(options.planted_steps)]
    command = [sys.executable, "-m", "benchmarks.false_alarms", *words, *sizes]
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    environment = os.environ | {"OMP_NUM_THREADS": threads, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False)
    if wanted(name, options):
        raise SystemExit(f"{name} ended with exit code {ended.returncode} before all of its runs")


def outcomes_in(file: Path) -> list[Outcome]:
    """Return the outcomes that a file has."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Outcome) for line in lines]


def say(outcome: Outcome) -> None:
    """Print an outcome in a line, and what the healthy program was accused of."""
    what = f"{outcome.planted_ulp:g} ulp in {outcome.planted_in}" if outcome.planted_ulp else "healthy"
    checked = f"{outcome.alarms} alarms in {outcome.checks} checked calls"
    counts = f"{checked}, {outcome.explained} explained by rounding"
    lines = [f"{outcome.program}, {what}: {counts}, {outcome.seconds:.0f} s"]
    lines += [f"    {example}" for example in outcome.examples if not outcome.planted_ulp]
    print("\n".join(lines), file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.false_alarms", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--programs", help=f"a list with commas of {', '.join(PROGRAMS)}")
    parser.add_argument("--steps", type=int, default=300, help="of healthy training")
    parser.add_argument("--planted-steps", type=int, default=10, help="with a planted error; 0: none planted")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="programs at a time")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="one line of JSON an outcome; what it has already is not run again",
    )
    options = parser.parse_args()
    names = options.programs.split(",") if options.programs else list(PROGRAMS)
    if unknown := set(names) - PROGRAMS.keys():
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)

    with tempfile.TemporaryDirectory() as directory:
        options.json = options.json or Path(directory) / "outcomes.jsonl"
        if options.jobs == 1 or len(names) == 1:
            for name in names:
                for steps, ulp in wanted(name, options):
                    outcome = train(name, options.device, steps, ulp)
                    say(outcome)
                    with options.json.open("a") as file:
                        file.write(msgspec.json.encode(outcome).decode() + "\n")
        else:
            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(lambda name: run_in_process(name, options), names))
        found = outcomes_in(options.json)
    console = Console()
    healthy = [one for one in found if not one.planted_ulp]
    wrong = [one for one in found if one.planted_ulp]
    for outcomes, table in ((healthy, health_table), (wrong, power_table)):
        if outcomes:
            console.print(table(outcomes))
    return 1 if any(one.alarms for one in healthy) else 0


if __name__ == "__main__":
    raise SystemExit(main())
