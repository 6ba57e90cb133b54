"""Make a process warm before it is forked: its children then judge in tenths of a second.

A first compilation imports and registers for 2 to 5 s of processor time before the compiler proper begins; a
child of a process that has compiled something starts after that (measured on torch 2.13 with a kernel in the
cache: 2.4 s in a child that inherits imports only, 0.4 s in one that inherits a compilation).

The throwaway compilation may itself run into the bug under test, and be slow to end, or never. So a child
rehearses it, and only what has gone well there is done here. Nothing compiled is ever run here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import torch

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fork_safety import prepare_to_fork, why_not_fork
from torchrepro.execute.judge_repro import judge_repro, repro_common
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Repro
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.names import COMPILE_FX, DYNAMO

_SECONDS = 120.0


class Rehearsal:
    """A throwaway compilation under way in a child, while this process sees to something else.

    The executor is for the rehearsal alone until it is finished.
    """

    def __init__(self, compiler: Compiler, executor: Executor, *, time_limit: float = _SECONDS) -> None:
        self._compiler = compiler
        self._executor = executor
        self._repro = _throwaway(compiler)
        # First what is sure to be needed, so that it is imported once and not twice.
        importlib.import_module(DYNAMO)
        if self._repro.compiler.name == "inductor":
            importlib.import_module(COMPILE_FX)
        executor.start(Task("torchrepro.engine.warm_up:rehearse", self._repro, time_limit=time_limit))

    def finish(self) -> str:
        """Do here what has gone well in the child; why this process has stayed cold, or empty."""
        _, outcome = self._executor.wait()
        if outcome.result is None:
            how = "did not end" if outcome.timed_out else (outcome.error or {}).get("fact") or outcome.signal
            return f"a throwaway compilation failed ({how or f'exit code {outcome.exit_code}'})"
        if outcome.result["unsafe"]:
            return f"after a compilation this process could not be forked: {outcome.result['unsafe']}"
        for name in outcome.result["imported"]:
            _import_if_package_is_here(name)
        if ":" in self._compiler.name:
            return "the compiler is a function of the user, which runs in children alone"
        try:
            with same_randomness(capture_rng_state()):
                repro_common(self._repro).compile()
        except Exception as exc:  # of the compiler under test: it may fail at one time and not at another
            return f"a throwaway compilation failed ({type(exc).__name__})"
        return ""


def rehearse(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Do in a child what `finish` is about to do, then judge; what that has imported and left behind."""
    before = set(sys.modules)
    prepare_to_fork()
    unsafe: list[str] = []

    def compiled(name: str) -> None:
        phase(name)
        if name == "run" and not unsafe:
            unsafe.append(why_not_fork())

    judge_repro(repro, phase=compiled)
    return {"unsafe": "".join(unsafe), "imported": sorted(set(sys.modules) - before)}


def _throwaway(compiler: Compiler) -> Repro:
    """A small repro that takes a compiler through most of its code: pointwise and a reduction.

    With the compiler's defaults: a mode could mean minutes of tuning. A library for an exported program is
    made by inductor like everything else.
    """

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.softmax(x * y, -1) + 1,)

    inputs = (torch.ones(4, 20), torch.ones(4, 20))
    name = "inductor" if compiler.name == AOT_INDUCTOR else compiler.name
    return Repro(torch.fx.symbolic_trace(function), inputs, compiler=Compiler(name))


def _import_if_package_is_here(name: str) -> None:
    """Import a module that a child needed, of a package that is in use already; kernels are in none."""
    if name.partition(".")[0] not in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        return  # made by the child itself: a kernel's wrapper, under the name of a package of torch's
