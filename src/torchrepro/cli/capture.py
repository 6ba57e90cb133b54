"""`torchrepro capture`: how Python becomes graphs, and what prevents one graph."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from torchrepro.cli.options import (
    Amp,
    CompileOption,
    Device,
    Json,
    Mode,
    ModelTarget,
    TimeLimit,
    Traceback,
    failures_as_lines,
    model_request,
)


def capture(
    target: ModelTarget,
    backend: Annotated[
        str,
        typer.Option("--backend", "-b", help="What compiles the graphs; eager runs them as captured."),
    ] = "eager",
    fullgraph: Annotated[
        bool, typer.Option("--fullgraph", help="Exit with 1 if it does not become one graph.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also run it in plain Python; exit with 1 if results differ.")
    ] = False,
    dynamo: Annotated[
        bool,
        typer.Option(
            "--dynamo",
            help="Compare with TorchDynamo; exit with 1 if any result differs.",
        ),
    ] = False,
    guards: Annotated[bool, typer.Option("--guards", help="Show the guards of each region.")] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Show the graphs and their inputs.")] = False,
    code: Annotated[bool, typer.Option("--code", help="Show the generated code around each graph.")] = False,
    mode: Mode = None,
    option: CompileOption = None,
    amp: Amp = None,
    device: Device = None,
    time_limit: TimeLimit = 300.0,
    json_: Json = False,
    traceback: Traceback = False,
) -> None:
    """Show how Python becomes graphs: what each graph holds, what broke it, what to write instead.

    FUNCTION takes no arguments and returns model, (model, inputs) or (model, args, kwargs), as for compare.
    The model is called once, forward, and captured by torchrepro's own front end (static shapes).
    Exit code: 0 captured, in any number of graphs; 1 not as --fullgraph, --verify or --dynamo ask, or it
    fails and plain Python does not; 125 it cannot be tested.
    """
    from rich.console import Console

    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.nouns.repro import Frontend
    from torchrepro.report.text import print_lines

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        request = model_request(
            target,
            backend=backend,
            mode=mode,
            option=option,
            amp=amp,
            device=device,
            frontend=Frontend.TORCHREPRO,
            fullgraph=fullgraph,
        )
        with progress(quiet=json_) as shown:
            explained = pipeline.explain_model(
                request, verify=verify, dynamo=dynamo, time_limit=time_limit, on_phase=shown.phase
            )
    verified = explained.verified
    if json_:
        told = None if verified is None else {"same": verified.same, "detail": verified.detail}
        answer = {**explained.explanation.to_dict(), "verified": told, "failed": list(explained.failed)}
        print(json.dumps(answer))
    else:
        console = Console(highlight=False)
        print_lines(explained.explanation.lines(console.width, guards=guards, graphs=graphs, code=code))
        if verified is not None and verified.same:
            console.print("verified: it gives what plain Python gives", markup=False)
        for line in explained.failed:
            console.print("[bold red]failed[/]: ", end="")
            console.print(line, markup=False, soft_wrap=True)
    raise typer.Exit(explained.exit_code)
