"""How long from a failure to its verified script: searched where it failed, against torch's own minifier.

    python -m benchmarks.light --cases c01,c05 --json results.jsonl

`torchrepro run --minify` searches in forks of the failing program. Its clock starts when the search starts,
right after the bundle was written, and stops when the script was seen to fail in a fresh process. Torch's own
minifier is given the launcher that its hook has left, as in `make bench-minify`. "One compile" is what
inductor took for the largest graph of the healthy program, in a process of its own, with an empty cache.

    python -m benchmarks.light --parts growth

The same for chains of equal blocks of about 100, 300, 1,000 and 3,000 operations with one wrong operation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmarks.minify import in_tree
from benchmarks.minify.cases import HERE, Case, chosen
from benchmarks.minify.ours import CATCH_LIMIT, HANG_PATIENCE, LEVEL, VERIFYING
from benchmarks.processes import run_limited
from benchmarks.telling import print_table, tell

BOTH = "c01,c04,c05,c07,c09,c14,c16,c17,191499_big,196570,196570_big,194706,188217,fuzz_acosh"
"""The programs that both tools catch and minify."""
LARGE = 300
"""Operations from which on the search is measured against one compile."""
SIZES = (100, 300, 1000, 3000)
WRONG = "c05"
"""The case whose bug is injected into the compiler of the chains."""
OPS_PER_BLOCK = 12


@dataclass(frozen=True, slots=True)
class Chain(Case):
    """A chain of equal blocks, with the bug of another case."""

    blocks: int = 0

    @property
    def program(self) -> list[str]:
        return [str(HERE / "chain_program.py"), str(self.blocks)]


@dataclass(frozen=True, slots=True)
class Light:
    """One case; None: not known."""

    case: str
    start_ops: int | None = None
    ops: int | None = None
    verified: bool = False
    in_forks: bool = False
    seconds: float | None = None
    """From the failure to the verified script."""
    compiles: int | None = None
    """Beyond that of the program."""
    theirs: float | None = None
    one_compile: float | None = None

    def ratio(self, other: float | None) -> float | None:
        return None if self.seconds is None or not other else self.seconds / other


def measure(case: Case, scratch: Path, limit: float, large: int = LARGE) -> Light:
    """Run the program watched and let it search; then time one healthy compile of more than `large` ops."""
    counted, out = scratch / "compiles", scratch / "out"
    words = [
        "run",
        "--level",
        str(max(case.level, LEVEL)),
        "--minify",
        "--no-explain",
        "--out",
        str(out),
        *case.program,
    ]
    environ = case.environment(scratch, counted)
    patience = limit + (HANG_PATIENCE if case.hangs else CATCH_LIMIT)
    command = [sys.executable, "-m", "torchrepro", *words]
    ended = run_limited(command, environ, scratch, patience, grace=VERIFYING)
    results = sorted(out.glob("*.minified/result.json"))
    if not results:
        return Light(case.name)
    found = json.loads(results[0].read_text())
    return Light(
        case.name,
        found["start_ops"],
        found["ops"],
        bool(found["reproduces"]),
        in_forks="searching in a fresh process" not in ended.errors,
        seconds=found["verified_after"],
        compiles=counted.stat().st_size - 1 if counted.exists() else None,
        one_compile=_one_compile(case, scratch) if found["start_ops"] > large else None,
    )


def _one_compile(case: Case, scratch: Path) -> float | None:
    """Return the seconds of the longest compilation of the healthy program."""
    times = scratch / "times"
    environ = {**case.environment(scratch / "healthy"), "COMPILES_TIMED": str(times)}
    environ.pop("FXBUG", None)
    run_limited([sys.executable, *case.program], environ, scratch, CATCH_LIMIT)
    return max(map(float, times.read_text().split()), default=None) if times.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.light", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", default=BOTH, help="names of cases, with commas")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="one line of JSON a case; what is there is kept"
    )
    parser.add_argument("--ours", action="store_true", help="leave torch's own minifier out")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="to minify one case")
    parser.add_argument("--parts", default="cases", help="cases, growth; with commas")
    options = parser.parse_args()
    known = {"cases": measure_cases, "growth": measure_growth}
    for part in options.parts.split(","):
        if part not in known:
            parser.error(f"no part is called {part!r}; there are: {', '.join(known)}")
        known[part](options)


def measure_cases(options: argparse.Namespace) -> None:
    """Measure both tools on the chosen cases."""
    cases = chosen(options.cases.split(","))
    known = options.json.read_text().splitlines() if options.json and options.json.exists() else []
    found = {one["case"]: Light(**one) for one in map(json.loads, known)}
    for number, case in enumerate(cases, 1):
        if case.name in found:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-light-", ignore_cleanup_errors=True) as scratch:
            (Path(scratch) / "ours").mkdir()
            one = measure(case, Path(scratch) / "ours", options.time_limit)
            if not options.ours:
                (Path(scratch) / "theirs").mkdir()
                theirs = in_tree.measure(case, Path(scratch) / "theirs", options.time_limit)
                one = replace(one, theirs=theirs.seconds if theirs.finished else None)
        found[case.name] = one
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        tell(f"[{number}/{len(cases)}] {one}")
    show([found[case.name] for case in cases])


def measure_growth(options: argparse.Namespace) -> None:
    """Measure the search on graphs of growing size."""
    (wrong,) = chosen([WRONG])
    known = {field.name: getattr(wrong, field.name) for field in fields(wrong)}
    rows = []
    for size in SIZES:
        chain = Chain(**{**known, "name": f"{size} ops"}, blocks=size // OPS_PER_BLOCK)
        with tempfile.TemporaryDirectory(prefix="bench-light-", ignore_cleanup_errors=True) as scratch:
            one = measure(chain, Path(scratch), options.time_limit, large=0)
        tell(f"{one}")
        rows.append(
            (
                _shown(one.start_ops),
                "yes" if one.verified else "**no**",
                _shown(one.compiles),
                _shown(one.one_compile),
                _shown(one.seconds),
                _shown(one.ratio(one.one_compile)),
            )
        )
    headings = ("ops", "verified", "compiles beyond the first", "one compile", "seconds", "of one compile")
    print_table("growth: from a failure to its verified script", headings, rows, "")


def show(found: Sequence[Light]) -> None:
    headings = (
        *("case", "ops", "verified", "in forks", "compiles beyond the first", "seconds"),
        *("torch's own tool", "of its time", "one compile", "of that"),
    )
    rows = [
        (
            one.case,
            f"{_shown(one.start_ops)} -> {_shown(one.ops)}",
            "yes" if one.verified else "**no**",
            "yes" if one.in_forks else "no",
            _shown(one.compiles),
            _shown(one.seconds),
            _shown(one.theirs),
            _shown(one.ratio(one.theirs)),
            _shown(one.one_compile),
            _shown(one.ratio(one.one_compile)),
        )
        for one in found
    ]
    against = [ratio for one in found if (ratio := one.ratio(one.theirs)) is not None]
    large = [ratio for one in found if (ratio := one.ratio(one.one_compile)) is not None]
    told = [f"faster in {sum(ratio < 1 for ratio in against)} of {len(against)}"] if against else []
    told += [f"median {statistics.median(against):.2f} of its time"] if against else []
    told += (
        [f"graphs of more than {LARGE} ops: {min(large):.2f} to {max(large):.2f} of one compile"]
        if large
        else []
    )
    print_table("from a failure to its verified script", headings, rows, "; ".join(told))


def _shown(value: float | None) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.2f}" if value < 10 else f"{value:.0f}"


if __name__ == "__main__":
    main()
