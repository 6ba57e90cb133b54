"""Who catches what: torch's own tool and `torchrepro run` on the same failing programs.

    python -m benchmarks.catching --only c01,c09

Every run has compiler caches of its own; the program that is about a warm cache fills it first. One that
hangs is interrupted, as a person would do.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.processes import GRACE, Ended, run_limited

CASES = Path(__file__).resolve().parents[1] / "tests" / "cases" / "injected"

TIME_LIMIT = 600.0
PATIENCE = 60.0
"""Seconds until a program that is known to hang is interrupted."""
ATTEMPTS = 8
"""Runs of a program that fails only now and then, until it does."""


@dataclass(frozen=True, slots=True)
class Case:
    """A failing program, and how torch's own tool is to be set up for it."""

    name: str
    kind: str
    after: str
    level: int

    @classmethod
    def read(cls, path: Path) -> Case:
        known = json.loads(path.read_text())
        return cls(known["name"], known["kind"], known["after"], known["level"])

    @property
    def program(self) -> list[str]:
        return [str(CASES / self.name / "model.py")]

    @property
    def our_level(self) -> int:
        """Level 3 is for compile errors, crashes and hangs alike: nobody knows beforehand which it is."""
        return max(self.level, 3)

    @property
    def patience(self) -> float:
        return PATIENCE if "hang" in self.kind else TIME_LIMIT


Found = TypeVar("Found")
Run = Callable[[Case, Mapping[str, str], Path], tuple[Ended, Found | None]]
"""Runs a case in an environment and a directory; what it finds there afterwards is what was caught."""


@dataclass(frozen=True, slots=True)
class Row:
    """One program under both tools."""

    case: str
    kind: str
    torch_level: int
    torch_caught: bool
    """Whether there is a `minifier_launcher.py` afterwards."""
    torch_seconds: float
    level: int
    caught: str
    """The verdict of our bundle; empty if there is none."""
    seconds: float
    reproduces: bool
    """Whether `torchrepro check` of the bundle fails as recorded."""
    check_seconds: float


def rows(cases: Sequence[Case]) -> Iterator[Row]:
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="catching-") as scratch:
            yield _row(case, Path(scratch))


def _row(case: Case, scratch: Path) -> Row:
    theirs, launcher = _until_it_fails(case, scratch / "torch", _under_torchs_tool)
    ours, bundle = _until_it_fails(case, scratch / "ours", _under_ours)
    check, answer = _checked(case, bundle, scratch) if bundle else (None, {})
    return Row(
        case=case.name,
        kind=case.kind,
        torch_level=case.level,
        torch_caught=launcher is not None,
        torch_seconds=round(theirs.seconds, 1),
        level=case.our_level,
        caught=bundle["verdict"] if bundle else "",
        seconds=round(ours.seconds, 1),
        reproduces=bool(answer.get("reproduces")) and check is not None and check.exit_code == 1,
        check_seconds=round(check.seconds, 1) if check else 0.0,
    )


def _until_it_fails(case: Case, scratch: Path, run: Run[Found]) -> tuple[Ended, Found | None]:
    """Run a program in a fresh directory; one that is flaky until it fails."""
    for attempt in range(ATTEMPTS if "flaky" in case.kind else 1):
        directory = scratch / str(attempt)
        directory.mkdir(parents=True)
        environ = _environment(case, directory)
        if "warm cache" in case.kind:
            run_limited([sys.executable, *case.program], environ, directory, case.patience)
        ended, found = run(case, environ, directory)
        if ended.exit_code != 0:
            break
    return ended, found


def _under_torchs_tool(case: Case, environ: Mapping[str, str], directory: Path) -> tuple[Ended, Path | None]:
    asked = {
        "TORCHDYNAMO_REPRO_AFTER": case.after,
        "TORCHDYNAMO_REPRO_LEVEL": str(case.level),
        "TORCH_COMPILE_DEBUG_DIR": str(directory),
    }
    ended = run_limited([sys.executable, *case.program], {**environ, **asked}, directory, case.patience)
    return ended, next(directory.rglob("minifier_launcher.py"), None)


def _under_ours(
    case: Case, environ: Mapping[str, str], directory: Path
) -> tuple[Ended, dict[str, Any] | None]:
    options = ["--level", str(case.our_level), "--out", str(directory / "out")]
    command = [sys.executable, "-m", "torchrepro", "run", *options, *case.program]
    ended = run_limited(command, environ, directory, case.patience)
    summary = directory / "out" / "summary.json"
    bundles = json.loads(summary.read_text())["bundles"] if summary.exists() else []
    return ended, bundles[0] if bundles else None


def _checked(case: Case, bundle: Mapping[str, Any], scratch: Path) -> tuple[Ended, dict[str, Any]]:
    directory = scratch / "check"
    directory.mkdir()
    limit = PATIENCE if "hang" in case.kind else TIME_LIMIT
    options = ["--json", "--time-limit", str(limit)]
    command = [sys.executable, "-m", "torchrepro", "check", bundle["path"], *options]
    found: dict[str, Any] = {}
    # What is flaky may pass when it is checked, and says so; one failure as recorded is enough.
    for _ in range(ATTEMPTS if "flaky" in case.kind else 1):
        ended = run_limited(command, _environment(case, directory), directory, limit + GRACE)
        with suppress(json.JSONDecodeError):
            found = json.loads(ended.output)
        if ended.exit_code == 1:
            break
    return ended, found


def _environment(case: Case, directory: Path) -> dict[str, str]:
    """The bug in the compiler, and caches that nobody else uses."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHREPRO_")}
    path = [str(CASES / "_site"), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "FXBUG": str(CASES / case.name / "inject.py"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TORCHREPRO_CACHE_DIR": str(directory / "torchrepro"),
    }


def chosen(only: str) -> list[Case]:
    """All cases, or those whose names begin with one of the given words."""
    found = [Case.read(path) for path in sorted(CASES.glob("c*/case.json"))]
    wanted = tuple(filter(None, only.split(",")))
    return [case for case in found if case.name.startswith(wanted)] if wanted else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="names of cases, or how they begin: c01,c09")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    # A shell that starts us in the background has interrupts ignored, which the programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    found = []
    for row in rows(chosen(options.only)):
        found.append(row)
        print(json.dumps(asdict(row)), file=sys.stderr, flush=True)  # the next case may take minutes
    if options.json:
        print(json.dumps([asdict(row) for row in found]))
        return
    _print_table(found)


def _print_table(found: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="caught in a running program")
    for heading in ("case", "kind", "torch's tool", "s", "torchrepro", "s", "check reproduces", "s"):
        table.add_column(heading, justify="right" if heading == "s" else "left")
    for row in found:
        table.add_row(
            row.case,
            row.kind,
            f"{'caught' if row.torch_caught else 'nothing'} (level {row.torch_level})",
            f"{row.torch_seconds:.0f}",
            f"{row.caught or 'nothing'} (level {row.level})",
            f"{row.seconds:.0f}",
            "yes" if row.reproduces else "no",
            f"{row.check_seconds:.0f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
