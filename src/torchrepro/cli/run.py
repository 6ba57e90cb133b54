"""`torchrepro run`: run the user's program and catch what fails in it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchrepro.cli.options import Traceback, failures_as_lines

if TYPE_CHECKING:
    from torchrepro.catch.settings import WatchSettings

CONTEXT = {"allow_interspersed_args": False}
"""What comes after the script belongs to the program."""


def run(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]...", help="The program and its arguments.")
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as `python -m` does.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            metavar="1|2|3|4",
            help="1, 2: a bundle for an exception. 3: written before the call, so that a crash or a hang "
            "leaves it. 4: every call compared with eager (default: 2).",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="auto|dynamo|aot", help="Which graphs: captured ones or those after AOT."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where bundles and summary.json go (default: torchrepro-out).")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Also compare each whole compiled call with plain Python.")
    ] = False,
    every: Annotated[str | None, typer.Option(metavar="N", help="Level 4: check one call of N.")] = None,
    first: Annotated[
        str | None, typer.Option(metavar="N", help="Level 4: check only the first N calls of a graph.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="5%", help="Level 4: at most this share of the run time.")
    ] = None,
    on_mismatch: Annotated[
        str | None, typer.Option(metavar="warn|raise", help="Level 4: what a mismatch does to the program.")
    ] = None,
    size_cap: Annotated[
        str | None, typer.Option(metavar="1G", help="Bytes of tensors that a bundle may hold.")
    ] = None,
    limit: Annotated[
        str | None, typer.Option(metavar="N", help="Bundles that one process may write.")
    ] = None,
    rank_timeout: Annotated[
        str | None, typer.Option(metavar="S", help="Seconds that a rank waits for the others.")
    ] = None,
    hang_after: Annotated[
        float, typer.Option(metavar="S", help="Levels 3, 4: a call that takes longer counts as a hang.")
    ] = 20.0,
    crash_safe: Annotated[
        bool,
        typer.Option(
            "--crash-safe",
            help="Level 4: write the bundle before every call, as level 3 does, not only before the first.",
        ),
    ] = False,
    minify: Annotated[
        bool, typer.Option("--minify", help="Minify the first failure, where it happens if possible.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain/--no-explain", help="With --minify: find out what of the result matters."),
    ] = True,
    locate: Annotated[
        bool, typer.Option("--locate", help="Locate the first failure, where it happens if possible.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Do not let the program wait while its failure is searched.")
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Run a program and watch every torch.compile in it: each failure leaves a bundle, without a rerun.

    The program behaves as with plain `python`: exit code, signals, arguments, standard input. Options of
    torchrepro come before the script. Each has an environment variable (TORCHREPRO_LEVEL, ...), and torch's
    own TORCHDYNAMO_REPRO_LEVEL and TORCHDYNAMO_REPRO_AFTER are read too.
    """
    from torchrepro.bundle.archive import new_run_id
    from torchrepro.catch.caught import closing_lines
    from torchrepro.catch.launcher import leave_like, run_program
    from torchrepro.catch.settings import WatchSettings, torch_aliases
    from torchrepro.nouns.errors import TorchReproError, say

    with failures_as_lines(as_json=False, show_traceback=traceback):
        arguments = ["-m", module, *(program or [])] if module else list(program or [])
        if not arguments:
            raise TorchReproError("no program to run", next_step="torchrepro run SCRIPT [ARGS]...")
        if not module and not os.path.exists(arguments[0]):
            raise TorchReproError(f"{arguments[0]} does not exist", next_step="check the path of the script")
        settings = WatchSettings.from_environ().changed(**torch_aliases(os.environ))
        settings = settings.changed(
            level=level,
            after=after,
            out=out,
            whole=whole or None,
            every=every,
            first=first,
            budget=budget,
            on_mismatch=on_mismatch,
            size_cap=size_cap,
            limit=limit,
            rank_timeout=rank_timeout,
            crash_safe=crash_safe or None,
            minify=minify or None,
            explain=None if explain else False,
            locate=locate or None,
            go_on=go_on or None,
            run_id=new_run_id(),
        )
        settings = settings.changed(out=settings.directory)
        ended = run_program(arguments, settings, hang_after=hang_after)
    with suppress(OSError, ValueError):  # standard error may be a file on the full disk, or closed
        for line in closing_lines(ended.caught):
            print(line, file=sys.stderr)
        if not ended.caught and (settings.minify or settings.locate):
            say(str(ended.watched))
        complete = [caught.path for caught in ended.caught if not caught.missing]
        for bundle in complete[:1]:
            _search(bundle, settings, show_traceback=traceback)
    leave_like(ended.exit_code)


def _search(bundle: Path, settings: WatchSettings, *, show_traceback: bool) -> None:
    """Print the answers about a bundle of this run: those that the program left, else from a fresh process.

    Whatever they are, the exit code is the program's own.
    """
    from torchrepro import pipeline
    from torchrepro.cli.locate import print_located
    from torchrepro.cli.minify import print_minified
    from torchrepro.cli.progress import progress
    from torchrepro.minify.run_directory import MinifySettings

    with suppress(typer.Exit), failures_as_lines(as_json=False, show_traceback=show_traceback):
        if settings.minify:
            chosen = MinifySettings(explain=settings.explain)
            with progress(quiet=False) as shown:
                minified = pipeline.minify_bundle(bundle, chosen, on_message=shown.show)
            print_minified(minified, file=sys.stderr)
        if settings.locate:
            with progress(quiet=False) as shown:
                located = pipeline.locate_bundle(bundle, on_message=shown.show)
            print_located(located, file=sys.stderr)
