"""Explain how a user's own model becomes graphs, and whether it gives what Python gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from torchrepro.execute.compilers import backend_function
from torchrepro.execute.user_model import call_context, load_trial
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import ModelRequest
from torchrepro.second_opinion.dynamo import agreement, outcome_of
from torchrepro.second_opinion.explain_call import explain_call
from torchrepro.torch_api.generators import capture_rng_state, restore_rng_state


def explain_model(request: ModelRequest, *, verify: bool, dynamo: bool, phase: Phase) -> dict[str, Any]:
    """Return the explanation as data, with `verified`: the agreement with a plain run, if asked for."""
    phase("build")
    trial = load_trial(request)
    options, compiler = trial.factory.options, trial.compiler

    def call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with call_context(options, request.amp, trial.device_type):
            return options.call(function, tuple(args)) if options.call else function(*args, **kwargs)

    built = trial.factory.fresh()
    phase("capture")
    state = capture_rng_state()
    explained = explain_call(
        built.model,
        built.args,
        built.kwargs,
        backend=None if compiler.name == "eager" else backend_function(compiler),
        dynamo=dynamo,
        call=call,
    )
    verified = None
    if verify or explained.error is not None:
        phase("eager")
        after = outcome_of(built.model, built.args, built.kwargs, lambda: explained.result)
        plain = trial.factory.fresh()
        restore_rng_state(state)
        eager = outcome_of(
            plain.model, plain.args, plain.kwargs, lambda: call(plain.model, plain.args, plain.kwargs)
        )
        if eager.error is not None and type(eager.error) is type(explained.error):
            raise TorchReproError(
                f"{request.target} fails without capture too ({eager.raised})",
                next_step="make it run in plain Python first",
            ) from eager.error
        verified = agreement("torchrepro", eager, replace(after, error=explained.error))
    return {
        **replace(explained, notes=(*explained.notes, *trial.notes)).to_dict(),
        "fullgraph": compiler.fullgraph,
        "verified": None if verified is None else asdict(verified),
    }


def explain(payload: dict[str, Any], phase: Phase) -> Any:
    """Explain how a user's own model becomes graphs: the job of a fresh process."""
    request = msgspec.convert(payload["request"], ModelRequest)
    return explain_model(request, verify=payload["verify"], dynamo=payload["dynamo"], phase=phase)
