"""Catch and minify every failing program of `tests/cases` with torchrepro and with torch's own tool.

    python -m benchmarks.minify --cases c01,191499_big --json results.jsonl --markdown

Each side of each case has compiler caches of its own. What is measured is written down at once: a run that
was interrupted goes on with `--resume`, and a run with nothing left to do prints its table.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.minify import in_tree, ours
from benchmarks.minify.cases import Case, chosen
from benchmarks.minify.measured import SIDES, Measured, Side, append, latest, read
from benchmarks.minify.table import HEADINGS, cells, markdown, rows, summary
from benchmarks.telling import print_table, tell

TYPICAL_SECONDS: dict[Side, float] = {"ours": 60.0, "theirs": 120.0}
"""To catch and to minify one case, on two cores: for the estimate that is printed first."""


def main() -> None:
    options = _options()
    # A shell that starts us in the background has interrupts ignored, which the programs would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cases = chosen([word for word in options.cases.split(",") if word])
    sides: Sequence[Side] = [options.only] if options.only else SIDES
    if options.json and not options.resume:
        options.json.unlink(missing_ok=True)
    known = read(options.json) if options.json else []
    done = latest(known)
    todo = [(case, side) for case in cases for side in sides if (case.name, side) not in done]
    _say_how_long(todo, options.time_limit)
    for number, (case, side) in enumerate(todo, start=1):
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-minify-", ignore_cleanup_errors=True) as scratch:
            measured = _measure(case, side, Path(scratch), options)
        if options.json:
            append(options.json, measured)
        done[case.name, side] = measured
        tell(f"[{number}/{len(todo)}] {_one_line(measured)} [{time.monotonic() - started:.0f} s in all]")
    found = rows(cases, done)
    if options.markdown:
        print(markdown(found))
    else:
        print_table("minifying: torchrepro / torch's own tool", HEADINGS, map(cells, found), summary(found))


def _measure(case: Case, side: Side, scratch: Path, options: argparse.Namespace) -> Measured:
    if side == "ours":
        return ours.measure(case, scratch, options.time_limit, options.minify_options.split())
    return in_tree.measure(case, scratch, options.time_limit)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.minify", description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="", help="names of cases: c01,c05,191499_big (default: all)")
    parser.add_argument("--only", choices=SIDES, help="torchrepro alone, or torch's own tool alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="one line of JSON a case and tool")
    parser.add_argument("--resume", action="store_true", help="leave out what --json FILE has already")
    parser.add_argument("--markdown", action="store_true", help="print the section for docs/benchmarks.md")
    parser.add_argument("--time-limit", type=float, default=300.0, metavar="S", help="to minify one case")
    parser.add_argument("--minify-options", default="", metavar="WORDS", help="such as =--no-explain")
    return parser.parse_args()


def _say_how_long(todo: Sequence[tuple[Case, Side]], limit: float) -> None:
    if not todo:
        return
    expected = sum(TYPICAL_SECONDS[side] for _, side in todo) / 60
    tell(f"{len(todo)} searches, about {expected:.0f} minutes; each is stopped after {limit:.0f} s")


def _one_line(measured: Measured) -> str:
    said = f"{measured.case} {measured.side}: {measured.caught or 'nothing caught'}"
    if measured.seconds is None:
        return f"{said}; {measured.note}" if measured.note else said
    sizes = f"{measured.start_ops} -> {measured.ops} ops, {measured.elements} elements"
    cost = f"{measured.compiles} compiles, {measured.seconds:.0f} s"
    ended = "" if measured.finished else ", not finished"
    return f"{said}; {sizes}; {cost}{ended}; fails as the original: {measured.same_failure}"


if __name__ == "__main__":
    main()
