"""`torchrepro compare`: is the compiled model as close to the truth as eager is?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from torchrepro.cli.options import (
    Json,
    ModelTarget,
    TimeLimit,
    Traceback,
    failures_as_lines,
    model_request,
    takes_model_options,
)
from torchrepro.nouns.errors import visible


@takes_model_options(before="stride")
def compare(
    target: ModelTarget,
    stride: Annotated[bool, typer.Option("--stride", help="Compare the strides of outputs too.")] = False,
    check_ops: Annotated[
        bool,
        typer.Option("--check-ops", help="Check first what the custom operators promise that it calls."),
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="DIR", help="Save the failing graph as a bundle there.")
    ] = None,
    size_cap: Annotated[
        int, typer.Option("--size-cap", metavar="MIB", min=0, help="Keep larger tensors as recipes.")
    ] = 1024,
    time_limit: TimeLimit = 300.0,
    json_: Json = False,
    traceback: Traceback = False,
    **model: Any,
) -> None:
    """Compare a model with its compiled self: outputs, gradients, mutated inputs, buffers, raised errors.

    FUNCTION takes no arguments and returns model, (model, inputs) or (model, args, kwargs).
    Exit code: 0 the same, 1 they differ or the compiled one fails, 125 it cannot be tested.
    """
    import msgspec

    from torchrepro import pipeline
    from torchrepro.cli.progress import progress
    from torchrepro.nouns.sections import of_operators, of_verdict
    from torchrepro.nouns.verdict import as_data
    from torchrepro.report.text import print_section

    with failures_as_lines(as_json=json_, show_traceback=traceback):
        request = model_request(target, **model, stride=stride)
        with progress(quiet=json_) as shown:
            compared = pipeline.compare_model(
                request,
                save_to=save,
                size_cap=size_cap << 20,
                time_limit=time_limit,
                check_ops=check_ops,
                on_phase=shown.phase,
            )
        if not json_ and not compared.operators.violations:
            compared.verdict.require_testable()
    verdict = compared.verdict
    if json_:
        answer = {
            "verdict": verdict.kind.value,
            "signature": str(compared.signature),
            "worst_error": as_data(verdict.worst_error),
            "blamed": compared.blamed,
            "bundle": None if compared.bundle is None else str(compared.bundle),
            "seconds": round(verdict.seconds, 3),
            "notes": [*compared.notes, *compared.operators.skipped],
            "operators": as_data(msgspec.to_builtins(compared.operators)),
            "details": as_data(verdict.to_dict()),
        }
        print(json.dumps(answer))
    else:
        facts = [("blamed", compared.blamed), ("signature", compared.signature)]
        notes = (*compared.notes, *compared.operators.skipped)
        print_section(of_verdict(verdict.with_notes(*notes), facts))
        if check_ops:
            print_section(of_operators(compared.operators))
        if traceback and verdict.raised is not None:
            print(visible(verdict.raised.traceback))
        if compared.bundle is not None:
            print(f"bundle: {compared.bundle}\nrun it again: torchrepro check {compared.bundle}")
    raise typer.Exit(compared.exit_code)
