"""Locate the guilty of every failing program of `tests/cases`, and compare with who is known to be.

    python -m benchmarks.locate --cases 191499,192985 --json results.jsonl --markdown

What is measured is written down at once: a run that was interrupted goes on with `--resume`, and a run with
nothing left to do prints its table.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.locate.measured import Measured, append, latest, measure, read
from benchmarks.locate.table import HEADINGS, cells, markdown, rows, summary
from benchmarks.minify.cases import Case, chosen
from benchmarks.telling import print_table, tell

TYPICAL_SECONDS = 60.0
"""To catch and to locate one case, on two cores: for the estimate that is printed first."""


def main() -> None:
    options = _options()
    # A shell that starts us in the background has interrupts ignored, which the programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cases = _cases([word for word in options.cases.split(",") if word], injected=options.injected)
    if options.json and not options.resume:
        options.json.unlink(missing_ok=True)
    done = latest(read(options.json)) if options.json else {}
    todo = [case for case in cases if case.name not in done]
    if todo:
        minutes, limit = len(todo) * TYPICAL_SECONDS / 60, options.time_limit
        tell(f"{len(todo)} cases, about {minutes:.0f} minutes; each is stopped after {limit:.0f} s")
    for number, case in enumerate(todo, start=1):
        with tempfile.TemporaryDirectory(prefix="bench-locate-", ignore_cleanup_errors=True) as scratch:
            one = measure(case, Path(scratch), options.time_limit)
        if options.json:
            append(options.json, one)
        done[case.name] = one
        tell(f"[{number}/{len(todo)}] {_one_line(one)}")
    found = rows(cases, done)
    if options.markdown:
        print(markdown(found))
    else:
        print_table("locating: found against known", HEADINGS, map(cells, found), summary(found))
    if any(row.fails_here and not row.right for row in found):
        sys.exit(1)


def _cases(words: Sequence[str], *, injected: bool) -> list[Case]:
    """Those that are named; else the bugs that torch has by itself, with `injected` the others as well."""
    return [case for case in chosen(words) if words or injected or not case.injected]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.locate", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="", help="names of cases: 191499,192985 (default: all real ones)")
    parser.add_argument("--injected", action="store_true", help="the bugs injected into inductor as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one line of JSON a case")
    parser.add_argument("--resume", action="store_true", help="leave out what --json FILE has already")
    parser.add_argument("--markdown", action="store_true", help="print the section for docs/benchmarks.md")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="to locate one case")
    return parser.parse_args()


def _one_line(one: Measured) -> str:
    told = one.stage or f"no answer ({one.note})"
    cost = f", {one.compiles} compiles, {one.seconds:.0f} s" if one.seconds is not None else ""
    return f"{one.case}: {told}{f', {one.part}' if one.part else ''}{f', {one.op}' if one.op else ''}{cost}"


if __name__ == "__main__":
    main()
