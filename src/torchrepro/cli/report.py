"""`torchrepro report`: what is known of a failure as a page, text, JSON or an issue."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from torchrepro.cli.options import Json, OptionalTimeLimit, Quiet, Traceback, Trust, failures_as_lines
from torchrepro.nouns.errors import TorchReproError, visible
from torchrepro.report.formats import Format

_STANDARD_OUTPUT = Path("-")
_ANOTHER = "choose another file with -o FILE"
_ENDINGS = {".txt": Format.TEXT, ".json": Format.JSON, ".md": Format.MARKDOWN}


def report(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE", help="A bundle, the directory that `minify` made, or the minimal bundle in it."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write it; - is standard output (default: NAME.report.html next to the bundle, "
            "for other formats standard output).",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="html: one self-contained page. github: an issue for PyTorch's tracker "
            "(default: by the name of FILE, else html).",
            show_default=False,
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the default browser.")] = False,
    against: Annotated[
        str,
        typer.Option(
            metavar="OTHER",
            help="Show how the environment differs from another one: that of a bundle, of a report in JSON, "
            "or `here`, this machine.",
            show_default=False,
        ),
    ] = "",
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Run the bundle, to show where in its tensors it is wrong.")
    ] = True,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Run the minimal repro, and write the code that is generated for it next to the report, to "
            "be attached to an issue.",
        ),
    ] = False,
    trust: Trust = None,
    time_limit: OptionalTimeLimit = None,
    json_: Json = False,
    quiet: Quiet = False,
    traceback: Traceback = False,
) -> None:
    """Show what is known of a failure: the verdict, the minimal script, the culprit, the wrong values.

    Nothing is searched for: what is missing is left out, and the command that adds it is named.
    Exit code: 0 the report was written, 125 it cannot be.
    """
    import webbrowser

    from torchrepro import pipeline
    from torchrepro.bundle.archive import write_in_one_step
    from torchrepro.cli.progress import progress
    from torchrepro.report.formats import rendered
    from torchrepro.report.text import print_lines, report_lines

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        chosen = format_ or (_ENDINGS.get(output.suffix) if output is not None else None) or Format.HTML
        target = _target(bundle, output, chosen, to_file=json_ or open_)
        with progress(quiet=quiet or json_ or not (run or trace)) as shown:
            contents = pipeline.report_on(
                bundle,
                run=run,
                against=against,
                trusted=tuple(trust or ()),
                time_limit=time_limit,
                on_phase=shown.phase,
            )
            if trace:
                attached = _trace_file(bundle, target, chosen)
                text = pipeline.trace_of(
                    bundle, trusted=tuple(trust or ()), time_limit=time_limit, on_phase=shown.phase
                )
                write_in_one_step(attached, text, _ANOTHER)
                contents = replace(contents, trace=attached.name)
        if trace and not json_:
            print(visible(f"torchrepro: the trace is in {attached}"), file=sys.stderr)
        if target != _STANDARD_OUTPUT:
            write_in_one_step(target, rendered(contents, chosen), _ANOTHER)
        elif chosen is Format.TEXT and sys.stdout.isatty():
            print_lines(report_lines(contents))  # in colour
            return
        else:
            with suppress(AttributeError):  # what a test puts there has no encoding
                sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
            print(rendered(contents, chosen), end="")
            return
    if json_:
        verdict = contents.verdict.kind.value if contents.verdict is not None else None
        told = {"path": str(target), "format": chosen.value, "verdict": verdict}
        print(json.dumps({**told, **({"trace": str(attached)} if trace else {})}))
    else:
        print(visible(target))
    if open_ and not webbrowser.open(target.absolute().as_uri()):
        print(f"torchrepro: no browser was found; open {target} yourself", file=sys.stderr)


def _trace_file(bundle: Path, target: Path, format_: Format) -> Path:
    """Return where the trace goes: next to the report, or to the bundle for one on standard output."""
    place = _target(bundle, None, format_, to_file=True) if target == _STANDARD_OUTPUT else target
    return place.with_name(f"{place.name.removesuffix(place.suffix)}.trace.txt")


def _target(bundle: Path, output: Path | None, format_: Format, *, to_file: bool) -> Path:
    """Return where the report goes: as asked; else a page next to the bundle, and text to standard output."""
    if output == _STANDARD_OUTPUT and to_file:
        raise TorchReproError(
            "a report on standard output has no path to tell or to open",
            next_step="leave out --json and --open, or write to a file with -o FILE",
        )
    if output is not None:
        return output
    if format_ is not Format.HTML and not to_file:
        return _STANDARD_OUTPUT
    where = bundle if bundle.name else bundle.absolute()  # `.` has no name of its own
    name = where.stem if where.suffix in (".zip", ".minified") else where.name
    return where.with_name(name + format_.ending)
