"""`torchrepro bisect`: which version broke it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import Json, On, OptionalTimeLimit, Quiet, Traceback, Trust, failures_as_lines
from torchrepro.nouns.errors import visible

_SERIES = "What varies: one of these has several values"
_HOW = "How"


def bisect(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE|SCRIPT.py",
            help="A bundle, or a script that fails with an exit code other than 0.",
            show_default=False,
        ),
    ],
    torch: Annotated[
        str,
        typer.Option(
            metavar="VERSIONS",
            help="2.11..2.15, or 2.11.0,2.13.0; environments are made.",
            rich_help_panel=_SERIES,
            show_default=False,
        ),
    ] = "",
    python: Annotated[
        list[Path] | None,
        typer.Option(help="An interpreter with torch (repeatable).", rich_help_panel=_SERIES),
    ] = None,
    wheel: Annotated[
        list[Path] | None, typer.Option(help="A wheel of torch (repeatable).", rich_help_panel=_SERIES)
    ] = None,
    triton: Annotated[
        str,
        typer.Option(metavar="A,B", help="Versions of Triton.", rich_help_panel=_SERIES, show_default=False),
    ] = "",
    cxx: Annotated[
        str, typer.Option(metavar="A,B", help="C++ compilers.", rich_help_panel=_SERIES, show_default=False)
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B", help="Values of an environment variable.", rich_help_panel=_SERIES),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Another package index, of CPU builds or nightlies for example (repeatable).",
            rich_help_panel=_HOW,
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PACKAGE",
            help="A package for the environments that are made (repeatable).",
            rich_help_panel=_HOW,
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Also run the versions between two of the same state.", rich_help_panel=_HOW
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where the result goes (default: TARGET.bisected).", rich_help_panel=_HOW
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Settings at a time (default: one per core, at most 4).",
            rich_help_panel=_HOW,
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Run again what an earlier command has run.", rich_help_panel=_HOW),
    ] = False,
    on: On = "",
    time_limit: OptionalTimeLimit = None,
    trust: Trust = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Find which version broke it: the last good setting, the first bad one, and how the code differs.

    Each run is a fresh process with fresh compile caches, and both sides of a change are run twice.
    Ctrl-C ends it with what is known; the same command continues.
    Exit code: 0 a change was found, 1 none, 125 nothing could be tested, 130 interrupted.
    """
    from torchrepro import pipeline
    from torchrepro.bisect.bisect import BisectSettings
    from torchrepro.bisect.bisect import bisect as run_bisect
    from torchrepro.bisect.bisected import of_bisected
    from torchrepro.bisect.series import Wanted
    from torchrepro.cli.progress import progress
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback), progress(quiet=quiet) as shown:
        wanted = Wanted(
            torch=torch,
            pythons=tuple(python or ()),
            wheels=tuple(wheel or ()),
            triton=triton,
            cxx=cxx,
            environ=tuple(env or ()),
            more=tuple(with_ or ()),
            indexes=tuple(index or ()),
        )
        settings = BisectSettings(
            every=every, jobs=jobs, time_limit=time_limit, trusted=tuple(trust or ()), fresh=fresh, out=out
        )
        with pipeline.cluster_at(on) as cluster:
            executor = None if cluster is None else cluster.executor(f"bisect {Path(target).name}")
            found = run_bisect(
                target, wanted, settings, executor=executor, on_step=lambda step: shown.show({"step": step})
            )
    if json_:
        print(json.dumps(found.to_dict()))
    else:
        print_section(of_bisected(found))
        print(visible(Path(found.directory) / "result.json"))
    raise typer.Exit(found.exit_code)
