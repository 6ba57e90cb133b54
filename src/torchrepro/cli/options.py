"""What the verbs share: options, and what is printed when one fails, with its exit code."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar, get_origin

import typer

from torchrepro.nouns.errors import HarnessError, TorchReproError, on_one_line, refused_by_system, visible
from torchrepro.nouns.repro import Compiler, Frontend, ModelRequest

Verb = TypeVar("Verb", bound=Callable[..., None])
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
        "--trust",
        metavar="MODULE",
        help="A module that the bundle may import and run (repeatable). Any of them runs a stranger's bundle "
        "without the sandbox.",
    ),
]

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="ray|ray://HOST:PORT",
        help="Run candidates on a Ray cluster: the one of this machine (or of RAY_ADDRESS), or by address.",
        show_default=False,
    ),
]


# How the model of FILE.py:FUNCTION is compiled, run and judged: the same options for every verb.
_OF_A_FUNCTION = "FILE.py:FUNCTION"
Backend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        "-b",
        help="The compiler under test: a backend or package.module:function (default: inductor).",
        rich_help_panel=_OF_A_FUNCTION,
        show_default=False,
    ),
]
Mode = Annotated[
    str | None, typer.Option("--mode", help="Mode of torch.compile.", rich_help_panel=_OF_A_FUNCTION)
]
CompileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of torch.compile (repeatable).",
        rich_help_panel=_OF_A_FUNCTION,
    ),
]
Dynamic = Annotated[
    bool | None,
    typer.Option(
        "--dynamic/--static",
        help="Dynamic or static shapes (default: torch's).",
        rich_help_panel=_OF_A_FUNCTION,
        show_default=False,
    ),
]
Backward = Annotated[
    bool | None,
    typer.Option(
        "--backward/--forward-only",
        help="With or without gradients (default: with, if an output needs them).",
        rich_help_panel=_OF_A_FUNCTION,
        show_default=False,
    ),
]
Amp = Annotated[
    str | None,
    typer.Option("--amp", metavar="DTYPE", help="Run under autocast.", rich_help_panel=_OF_A_FUNCTION),
]
Device = Annotated[
    str | None,
    typer.Option("--device", help="Move model and inputs there.", rich_help_panel=_OF_A_FUNCTION),
]


def model_request(
    target: str,
    *,
    backend: Backend = None,
    mode: Mode = None,
    option: CompileOption = None,
    dynamic: Dynamic = None,
    backward: Backward = None,
    amp: Amp = None,
    device: Device = None,
    frontend: FrontendOption = None,
    strict: Strict = False,
    tol: Tolerance = None,
    stride: bool = False,
    fullgraph: bool = False,
) -> ModelRequest:
    """Return what the options above say about a target."""
    options, frontend = parse_settings(option or []), frontend or Frontend.DYNAMO
    return ModelRequest(
        target,
        Compiler(backend or "inductor", mode, options, dynamic, fullgraph, frontend=frontend),
        backward=backward,
        amp=amp,
        device=device,
        strict=strict,
        tolerance=tol,
        check_stride=stride,
    )


def takes_model_options(*, before: str) -> Callable[[Verb], Verb]:
    """Return a decorator that gives a verb the options of `model_request`, which it takes as `**model`.

    `before`: the option of the verb that follows them in its help.
    """
    return takes_options_of(model_request, before=before)


def takes_options_of(function: Callable[..., Any], *, before: str = "") -> Callable[[Verb], Verb]:
    """Return a decorator that gives a verb the options that a function takes, as its `**rest`.

    They come last in the help of the verb, or `before` one of its own.
    """
    asked = inspect.signature(function, eval_str=True).parameters.values()
    shared = [one for one in asked if get_origin(one.annotation) is Annotated]
    options = [one.replace(kind=one.POSITIONAL_OR_KEYWORD) for one in shared]

    def decorate(verb: Verb) -> Verb:
        own = list(inspect.signature(verb, eval_str=True).parameters.values())[:-1]  # without `**rest`
        place = [one.name for one in own].index(before) if before else len(own)
        listed = inspect.Signature([*own[:place], *options, *own[place:]])
        verb.__signature__ = listed  # type: ignore[attr-defined]
        return verb

    return decorate


def parse_settings(texts: list[str], flag: str = "--option") -> dict[str, Any]:
    """Return the `name=value` pairs of a flag: Python literals as such, other values as text."""
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise TorchReproError(f"{text!r} is not a setting", next_step=f"write {flag} name=value")
        try:
            settings[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[name] = value
    return settings


CANNOT_BE_TESTED = 125
INTERRUPTED = 130
_SHOWN = 300


@contextmanager
def failures_as_lines(*, as_json: bool, show_traceback: bool) -> Iterator[None]:
    """Print an error as one line with the next step; a bug of torchrepro says that it is one."""
    try:
        yield
    except (TorchReproError, OSError) as exc:
        told = exc if isinstance(exc, TorchReproError) else refused_by_system(exc)
        if told is None:
            raise
        if show_traceback:
            print(visible(traceback.format_exc()), file=sys.stderr)
        _report(told.fact, told.next_step, as_json)
        raise typer.Exit(CANNOT_BE_TESTED) from exc
    except HarnessError as exc:
        first, _, rest = str(exc).partition("\n")
        if show_traceback:
            print(visible(rest), file=sys.stderr)
        # An exception of the compiler can be a hundred lines of C++ errors, quoted in one.
        shown = first if len(first) <= _SHOWN else first[: _SHOWN - 3] + "..."
        _report(shown, "this is a bug of torchrepro: report it with the output of --traceback", as_json)
        raise typer.Exit(CANNOT_BE_TESTED) from exc
    except KeyboardInterrupt:
        print("torchrepro: interrupted; no process is left behind", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def _report(fact: str, next_step: str, as_json: bool) -> None:
    line = f"{fact}; {next_step}" if next_step else fact
    print(f"torchrepro: {on_one_line(line)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": fact, "next_step": next_step}))
