"""Generate the code of a bundle without compiling or running it: a job for a separate process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from torchrepro.execute.judge_repro import load_for_job, repro_common
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.inductor import generating_only, seeing_code


def reporting_code(repro: Repro, phase: Any) -> AbstractContextManager[None]:
    """Send the code of each graph that inductor generates in the body to the parent process."""
    return taking_code(repro, lambda code: phase.send(code=code))


def taking_code(repro: Repro, take: Callable[[str], None]) -> AbstractContextManager[None]:
    """Call `take` with the code of each graph that inductor generates in the body."""
    if repro.compiler.name not in ("inductor", AOT_INDUCTOR):
        return nullcontext()  # it is known for inductor only
    from torchrepro.torch_api import inductor

    assert inductor.GraphLowering  # imported now: `seeing_code` imports nothing
    return seeing_code(take)


def generate(payload: dict[str, Any], phase: Any) -> bool:
    """Report the code of all graphs of a bundle, backward included; raise if that is not possible.

    A failure of the compiler ends it: there is no code, or not all, and the bundle has to be run.
    """
    return generate_for(load_for_job(payload, phase), phase, lambda code: phase.send(code=code))


def generate_for(repro: Repro, phase: Phase, take: Callable[[str], None]) -> bool:
    """Generate the code of all graphs of a repro; return whether the compiler finished."""
    if repro.compiler.name != "inductor" or repro.compiler.recapture or repro.place is Place.BEFORE_CAPTURE:
        raise TorchReproError(
            "its code is known only after a run: it is compiled while it runs, or not by inductor"
        )
    prepared = repro_common(repro)
    generated, backward = False, not prepared.only_fwd
    with applied_settings(repro.ambient), generating_only(backward=backward), taking_code(repro, take):
        phase("compile")
        with suppress(Exception):
            prepared.compile()
            generated = True
    return generated
