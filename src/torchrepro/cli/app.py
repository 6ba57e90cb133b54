"""The verbs put together, and the exit codes of errors."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from torchrepro.cli import (
    bisect,
    capture,
    check,
    compare,
    corpus,
    doctor,
    hunt,
    interchange,
    locate,
    minify,
    probe,
    report,
    run,
    show,
)
from torchrepro.cli.ci_output import SERVICES, break_commands
from torchrepro.cli.options import CANNOT_BE_TESTED, INTERRUPTED
from torchrepro.nouns import __version__

app = typer.Typer(
    name="torchrepro",
    help="Find out whether a compiled PyTorch model is wrong, where, and keep a repro.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("run", context_settings=run.CONTEXT)(run.run)
app.command("compare")(compare.compare)
app.command("check")(check.check)
app.command("probe")(probe.probe)
app.command("minify")(minify.minify)
app.command("locate")(locate.locate)
app.command("bisect")(bisect.bisect)
app.command("report")(report.report)
app.command("capture")(capture.capture)
app.command("show")(show.show)
app.command("import")(interchange.import_)
app.command("export")(interchange.export)
app.add_typer(corpus.app, name="corpus")
app.add_typer(hunt.app, name="hunt")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from torchrepro.engine.sandbox.chosen import probed

        typer.echo(f"torchrepro {__version__}\nsandbox: {probed()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the version, and which sandbox runs strangers' bundles.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point. A wrong flag exits with 125, "cannot be tested": 2 is a verdict of `check`."""
    if not SERVICES.isdisjoint(os.environ):
        break_commands()
    try:
        result = app(standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone; what is left to flush at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = CANNOT_BE_TESTED
    except Exception as exc:
        shown = getattr(exc, "show", None)
        if shown is None:
            raise
        shown()
        code = CANNOT_BE_TESTED
    sys.exit(code)
