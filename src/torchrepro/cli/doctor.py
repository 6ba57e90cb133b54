"""`torchrepro doctor`: is this machine fit?"""

from __future__ import annotations

import json
from dataclasses import asdict

import typer

from torchrepro.cli.options import Json, Quiet, Traceback, failures_as_lines


def doctor(json_: Json = False, quiet: Quiet = False, traceback: Traceback = False) -> None:
    """Check whether this machine is fit: torch, the C++ compiler, a compilation, forks, the sandbox, a GPU.

    One line each: ok, missing, broken or not needed, and the remedy.
    Exit code: 0 it is fit, 1 something that torchrepro needs is missing or broken.
    """
    from torchrepro.cli.progress import progress
    from torchrepro.engine.doctor import Status, examine
    from torchrepro.nouns.sections import Section, Table, Tone
    from torchrepro.report.text import print_section

    with (
        failures_as_lines(as_json=json_, show_traceback=traceback),
        progress(quiet=json_ or quiet) as shown,
    ):
        findings = examine(lambda step: shown.show({"step": step}))
    unfit = [found for found in findings if found.unfit]
    if json_:
        print(json.dumps({"fit": not unfit, "checks": [asdict(found) for found in findings]}))
    else:
        rows = []
        for found in findings:
            remedy = f"; remedy: {found.remedy}" if found.remedy and found.status is not Status.OK else ""
            rows.append((found.status.value, found.name, f"{found.detail}{remedy}"))
        names = ", ".join(found.name for found in unfit)
        title = f"this machine is not fit: {names}" if unfit else "this machine is fit"
        marked = [place for place, found in enumerate(findings) if found.unfit]
        table = Table.of(("status", "check", "what was seen"), rows, limit=len(rows), marked=marked)
        print_section(Section(title, (table,), Tone.BAD if unfit else Tone.GOOD))
    raise typer.Exit(1 if unfit else 0)
