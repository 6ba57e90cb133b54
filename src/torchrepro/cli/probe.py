"""`torchrepro probe`: does anything change that must not, and what does it cost?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torchrepro.cli.options import (
    Json,
    TimeLimit,
    Traceback,
    Trust,
    failures_as_lines,
    model_request,
    parse_settings,
    takes_model_options,
)
from torchrepro.nouns.errors import TorchReproError, visible
from torchrepro.nouns.probe import ProbeAnswer, exit_code_of
from torchrepro.nouns.repro import Compiler

_WORD = 12


def _print_list(wanted: bool) -> None:
    if wanted:
        from torchrepro.execute.probes.table import ROWS

        for row in ROWS:
            print(f"{row.kind.value:<{_WORD}} {row.description}")
        raise typer.Exit


@takes_model_options(before="trust")
def probe(
    target: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|FILE.py:FUNCTION",
            help="A bundle, or a function as for `compare`.",
            show_default=False,
        ),
    ],
    only: Annotated[
        str, typer.Option("--only", metavar="NAME,...", help="These probes alone.", show_default=False)
    ] = "",
    list_: Annotated[
        bool,
        typer.Option(
            "--list", callback=_print_list, is_eager=True, help="List the probes and what each asks."
        ),
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Save a bundle of each failure there.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="NAME=VALUE",
            help="The baseline of a cost: `backend=NAME`, `mode=NAME`, or an option of torch.compile "
            "(repeatable; default: eager).",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold",
            min=1.0,
            help="How many times the cost of the baseline is granted.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=1.0, help="Begin no further variation of a probe after this.")
    ] = 60.0,
    trust: Trust = None,
    time_limit: TimeLimit = 300.0,
    json_: Json = False,
    traceback: Traceback = False,
    **model: Any,
) -> None:
    """Look for failures that need no reference: vary what must not matter, and measure what it costs.

    Exit code: 0 nothing found, 1 something found, 125 nothing could be asked.
    """
    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.execute.probes.table import chosen_rows

    answers: list[ProbeAnswer] = []
    with failures_as_lines(as_json=json_, show_traceback=traceback):
        kinds = [row.kind for row in chosen_rows(filter(None, only.split(",")))]
        request = model_request(target, **model)
        try:
            with progress(quiet=json_) as shown:
                found = pipeline.probe(
                    request,
                    kinds,
                    against=_baseline(against or []),
                    threshold=threshold,
                    seconds=seconds,
                    save_to=save,
                    trusted=tuple(trust or ()),
                    time_limit=time_limit,
                    on_phase=shown.phase,
                )
                for answer in found:
                    answers.append(answer)
                    if not json_:
                        _print_row(answer)
        finally:
            if json_ and answers:
                print(json.dumps({"probes": [answer.to_dict() for answer in answers]}))
    if not json_:
        for answer in answers:
            if answer.bundle is not None:
                print(f"bundle: {answer.bundle}\nrun it again: torchrepro check {answer.bundle}")
    raise typer.Exit(exit_code_of(answers))


def _print_row(answer: ProbeAnswer) -> None:
    """Print a row as soon as it is known: nothing is lost when the others are interrupted."""
    place = f" ({answer.place})" if answer.place else ""
    summary = answer.verdict.summary.removeprefix("not asked: ").removeprefix(f"{answer.kind.value}: ")
    row = f"{answer.kind.value:<{_WORD}} {answer.word:<{_WORD}} {summary}{place}"
    print(visible(row).rstrip(), flush=True)
    for note in answer.verdict.notes:
        print(visible(f"{'':<{_WORD}} {'':<{_WORD}} note: {note}"), flush=True)


def _baseline(texts: list[str]) -> Compiler | None:
    """Return the compiler that `--against` describes."""
    settings = parse_settings(texts, "--against")
    if not settings:
        return None
    name, mode = settings.pop("backend", "inductor"), settings.pop("mode", None)
    if not isinstance(name, str) or not isinstance(mode, str | None):
        raise TorchReproError("--against backend= and mode= take a name", next_step="write backend=aot_eager")
    return Compiler(name, mode, settings)
