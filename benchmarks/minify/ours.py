"""torchrepro on a case, by its command line alone: caught, minified, and the script it leaves run again."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.minify.cases import Case
from benchmarks.minify.fresh_run import ATTEMPTS, run_again
from benchmarks.minify.measured import Measured
from benchmarks.processes import Ended, json_of, last_line_of, run_limited

CATCH_LIMIT = 300.0
HANG_PATIENCE = 45.0
LEVEL = 3
"""For compile errors, crashes and hangs alike: nobody knows beforehand which it is."""
VERIFYING = 60.0
"""Seconds that an interrupted search is given to verify the best it has."""


@dataclass(frozen=True, slots=True)
class Caught:
    """A bundle in `run`'s summary or `compare`'s answer."""

    bundle: str
    verdict: str
    signature: str


def measure(case: Case, scratch: Path, limit: float, options: Sequence[str] = ()) -> Measured:
    """`options` are words of `torchrepro minify`, such as --no-explain."""
    ended, caught = catch(case, scratch)
    failed = caught is not None or ended.exit_code not in (0, 125) or not ended.in_time
    found = Measured(case.name, "ours", failed=failed, caught=caught.verdict if caught else "")
    if caught is None or not caught.bundle:
        return replace(found, note=last_line_of(ended))
    ended, answer, compiles = _minify(case, caught, scratch, limit, options)
    found = replace(
        found,
        compiles=compiles,
        seconds=round(ended.seconds, 1),
        finished=ended.in_time and ended.exit_code == 0,
        stopped=not ended.in_time,
    )
    if not answer.get("script"):
        return replace(found, note=last_line_of(ended))
    script = Path(answer["script"])
    fresh = run_again(case, script, scratch)
    return replace(
        found,
        start_ops=answer["start_ops"],
        ops=answer["ops"],
        inputs=answer["inputs"],
        elements=answer["elements"],
        queries=answer["queries"],
        explaining=(answer.get("explanation") or {}).get("queries"),
        lines=len(script.read_text().splitlines()),
        reproduces=bool(answer["reproduces"]) and fresh.fails,
        same_failure=answer["signature"] == caught.signature and fresh.as_the_case,
        script=script.read_text(),
        note=fresh.said,
    )


def catch(case: Case, scratch: Path) -> tuple[Ended, Caught | None]:
    """Run the program once, watched or by `compare`, and return the bundle that its failure left."""
    return _compare(case, scratch) if _has_build(case) else _run(case, scratch)


def _has_build(case: Case) -> bool:
    """`compare` takes what has a `build()`, and only a whole call shows what capture did wrong."""
    return not case.injected and not case.of_capture


def _compare(case: Case, scratch: Path) -> tuple[Ended, Caught | None]:
    words = ["compare", f"{case.path}:build", "--json", "--save", str(scratch / "bundles")]
    ended = _torchrepro(words, case, scratch, CATCH_LIMIT)
    answer = json_of(ended)
    if ended.exit_code != 1:
        return ended, None
    return ended, Caught(answer.get("bundle") or "", answer["verdict"], answer["signature"])


def _run(case: Case, scratch: Path) -> tuple[Ended, Caught | None]:
    """Run the program watched; what fails now and then is run until it does."""
    limit = HANG_PATIENCE if case.hangs else CATCH_LIMIT
    if case.warm_cache:
        run_limited([sys.executable, *case.program], case.environment(scratch), scratch, limit)
    whole = ["--whole"] if case.of_capture else []
    for attempt in range(ATTEMPTS if case.flaky else 1):
        out = scratch / f"caught-{attempt}"
        words = ["run", "--level", str(max(case.level, LEVEL)), *whole, "--out", str(out), *case.program]
        ended = _torchrepro(words, case, scratch, limit)
        summary = out / "summary.json"
        bundles = json.loads(summary.read_text())["bundles"] if summary.exists() else []
        if bundles:
            return ended, Caught(bundles[0]["path"], bundles[0]["verdict"], bundles[0]["signature"])
    return ended, None


def _minify(
    case: Case, caught: Caught, scratch: Path, limit: float, options: Sequence[str]
) -> tuple[Ended, dict[str, Any], int]:
    counted = scratch / "compiles"
    trust = ["--trust", "source"] if case.of_capture else []  # a whole call is code of its user
    words = ["minify", caught.bundle, "--json", "--out", str(scratch / "minified"), *trust, *options]
    ended = _torchrepro(words, case, scratch, limit, {"COMPILES_COUNTED": str(counted)}, grace=VERIFYING)
    return ended, json_of(ended), counted.stat().st_size if counted.exists() else 0


def _torchrepro(
    words: list[str],
    case: Case,
    scratch: Path,
    limit: float,
    more: Mapping[str, str] | None = None,
    grace: float = 20.0,
) -> Ended:
    environ = {**case.environment(scratch), **(more or {})}
    return run_limited([sys.executable, "-m", "torchrepro", *words], environ, scratch, limit, grace=grace)
