"""Options that several verbs share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Frontend

Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
ModelTarget = Annotated[
    str, typer.Argument(metavar="FILE.py:FUNCTION", help="Or package.module:FUNCTION.", show_default=False)
]
Strict = Annotated[bool, typer.Option("--strict", help="Any bitwise difference counts.")]
Tolerance = Annotated[
    float | None,
    typer.Option(
        "--tol", help="|compiled - eager| <= TOL + TOL * |eager| instead of the rule of docs/judging.md."
    ),
]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", min=1.0, help="Seconds after which a run counts as a hang.")
]
OptionalTimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        min=1.0,
        help="Seconds after which a run counts as a hang (default: 300; less for a recorded hang).",
    ),
]
FrontendOption = Annotated[
    Frontend | None,
    typer.Option(
        "--frontend",
        help="What captures Python: dynamo, or torchrepro's own front end, for a second opinion.",
        show_default=False,
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust", metavar="MODULE", help="A module that the bundle may import and run (repeatable)."
    ),
]


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """`name=value` pairs, the values as Python literals where they are ones, else as text."""
    import ast

    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise TorchReproError(f"{text!r} is not a setting", next_step="write --option name=value")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings
