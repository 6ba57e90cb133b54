"""Record and number the graphs that capture makes of a model, each with its real inputs, in an eager run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.provenance import owners
from torchrepro.bundle.user_calls import callee_of, run_call
from torchrepro.execute.compilers import compile_model
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.graph_text.source_lines import source_of
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import CannotSerialise, GraphTextError
from torchrepro.nouns.repro import Compiler, Origin, Place, Repro
from torchrepro.script.save_bundle import save_bundle
from torchrepro.state.ambient import applied_modes, applied_settings, capture_ambient
from torchrepro.torch_api.dynamo import CompileContext

ANY_SIZE = 1 << 62


class Origins:
    """The graphs of one program so far."""

    def __init__(self) -> None:
        self.seen = 0
        self._numbers: dict[str, int] = {}

    def of(self, graph: torch.fx.GraphModule, *, below_aot: bool = False, backward: bool = False) -> Origin:
        """Return the origin of the graph being compiled. What AOT makes of a graph is no new one."""
        # A backward graph that is compiled late has the numbers of its forward; without Dynamo they are None.
        compile_id = CompileContext.current_compile_id()
        code = None if compile_id is None else compile_id.frame_id
        compilation = 0 if compile_id is None else compile_id.frame_compile_id or 0
        key = f"{code}/{compilation}"
        if code is None or not below_aot or key not in self._numbers:
            self._numbers[key] = self.seen
            self.seen += 1
        return Origin(
            number=self._numbers[key],
            seen=self.seen,
            compilation=compilation,
            backward=backward,
            source=_beginning_of(graph),
        )


def _beginning_of(graph: torch.fx.GraphModule) -> str:
    """Return the first line of the user in a graph: `model.py:12 in forward`."""
    calls = (node for node in graph.graph.nodes if node.op not in ("placeholder", "get_attr", "output"))
    return next((found.partition(": ")[0] for found in map(source_of, calls) if found), "")


def record_graphs(
    call: Callable[[Callable[..., Any]], Any], compiler: Compiler, *, environ: Mapping[str, str]
) -> tuple[list[Repro], list[str]]:
    """Return every graph that `call(backend)` runs, in order of first call, and notes on what was not kept.

    `call` compiles with the given backend and runs the model once. An exception on the way ends the
    recording, not the caller: the graph that raised is among those recorded. `environ` is the user's
    environment: that of this process has been changed since.
    """
    repros: list[Repro] = []
    origins = Origins()
    problems: list[str] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        origin = origins.of(graph)

        def record_first_call(*args: Any) -> Any:
            if not recorded:
                recorded.append(True)
                try:
                    found = as_repro(graph, args, compiler, environ)
                    repros.append(replace(found, origin=origin))
                except (CannotSerialise, GraphTextError) as exc:
                    problems.append(str(exc))
            return graph.forward(*args)

        recorded: list[bool] = []
        return record_first_call

    try:
        call(backend)
    except Exception as exc:
        problems.append(f"the recording ended early: {type(exc).__name__}: {exc}")
    # Only now is the number of graphs known.
    return [
        replace(found, origin=found.origin and replace(found.origin, seen=origins.seen)) for found in repros
    ], problems


def graphs_of_call(repro: Repro) -> tuple[list[Repro], list[str]]:
    """Return every graph that capture makes of a whole call of the user, and notes on what was not kept."""

    def call(backend: Callable[..., Any]) -> None:
        plain = replace(repro.compiler, options={}, mode=None)
        with applied_modes(repro.ambient):
            compiled = compile_model(plain, callee_of(repro.graph), backend=backend)
            run_call(repro.graph, repro.inputs, compiled)

    with applied_settings(repro.ambient):
        return record_graphs(call, repro.compiler, environ=repro.ambient.environ)


def record_call(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> dict[str, list[str]]:
    """Write a bundle for every graph that capture makes of a whole call, in the folder `directory`.

    A job for a separate process: it runs the user's code.
    """
    phase("record")
    repros, problems = graphs_of_call(repro)
    return {"bundles": save_graphs(repros, Path(payload["directory"])), "problems": problems}


def save_graphs(repros: Sequence[Repro], directory: Path, *, size_cap: int = ANY_SIZE) -> list[str]:
    """Write recorded graphs, a bundle each, and return their paths."""
    return [
        str(save_bundle(repro, directory / f"graph_{index}", size_cap=size_cap, script=False))
        for index, repro in enumerate(repros)
    ]


def as_repro(
    graph: torch.fx.GraphModule, inputs: tuple[Any, ...], compiler: Compiler, environ: Mapping[str, str]
) -> Repro:
    """Return a captured graph as a bundle gives it back, with clones of its inputs and its state."""
    written = write_graph(graph)
    return Repro(
        graph=read_graph(
            written.text,
            written.constants,
            trusted=owners(written.needs_trust),
            kernels=written.kernels,
        ),
        inputs=clone_inputs(inputs),
        place=Place.AFTER_CAPTURE,
        compiler=compiler,
        ambient=replace(capture_ambient(), environ=environ),
        symbols=symbols_of(graph),
    )


def record_bundle(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle for every graph that capture makes of a whole call, next to the call's own bundle."""
    phase("load")
    from torchrepro.bundle.load import load_verified

    bundle = Path(payload["bundle"])
    repro = load_verified(bundle, trusted=tuple(payload["trusted"]))
    return record_call(repro, {"directory": bundle.parent}, phase)
