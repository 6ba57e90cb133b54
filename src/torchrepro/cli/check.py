"""`torchrepro check`: run a bundle and say whether it still fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import (
    FrontendOption,
    Json,
    OptionalTimeLimit,
    Strict,
    Tolerance,
    Traceback,
    Trust,
    failures_as_lines,
)
from torchrepro.nouns.errors import visible

_IN_WORDS = {
    0: "no, it does not fail",
    1: "yes, it fails as recorded",
    2: "no, it fails in another way",
    125: "cannot be tested",
}


def check(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle: a directory or a zip of it.")],
    json_: Json = False,
    strict: Strict = False,
    tol: Tolerance = None,
    time_limit: OptionalTimeLimit = None,
    trust: Trust = None,
    frontend: FrontendOption = None,
    traceback: Traceback = False,
) -> None:
    """Run a bundle in a process of its own and compare its failure with the recorded one.

    Exit code: 0 it does not fail, 1 it fails as recorded, 2 it fails in another way, 125 it cannot be tested.
    That is what `git bisect run torchrepro check BUNDLE` expects.
    """
    from torchrepro.cli.progress import progress
    from torchrepro.nouns.sections import of_verdict
    from torchrepro.nouns.verdict import as_data
    from torchrepro.pipeline import check_bundle
    from torchrepro.report.text import print_section

    with (
        failures_as_lines(as_json=json_, show_traceback=traceback),
        progress(quiet=json_) as shown,
    ):
        checked = check_bundle(
            bundle,
            time_limit=time_limit,
            strict=strict,
            tolerance=tol,
            trusted=tuple(trust or ()),
            frontend=frontend,
            on_phase=shown.phase,
        )
        if not json_:
            checked.verdict.require_testable()
    code = checked.exit_code
    if json_:
        answer = {
            "verdict": checked.verdict.kind.value,
            "signature": str(checked.signature),
            "reproduces": checked.reproduces,
            "seconds": round(checked.verdict.seconds, 3),
            "expected": None if checked.expected is None else str(checked.expected),
            "sandbox": checked.sandbox,
            "details": as_data(checked.verdict.to_dict()),
        }
        print(json.dumps(answer))
    else:
        facts = [("reproduces", _IN_WORDS[code]), ("signature", checked.signature)]
        facts += [("recorded", checked.expected)] if code == 2 and checked.expected is not None else []
        facts += [("sandbox", checked.sandbox)] if checked.sandbox else []
        print_section(of_verdict(checked.verdict, facts))
        if traceback and checked.verdict.raised is not None:
            print(visible(checked.verdict.raised.traceback))
    raise typer.Exit(code)
