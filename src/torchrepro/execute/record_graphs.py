"""Record the graphs that capture makes of a model, each with its real inputs, while it runs eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchrepro.bundle.load import owners
from torchrepro.execute.graph_numbers import Origins
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.errors import CannotSerialise, GraphTextError
from torchrepro.nouns.origin import Origin
from torchrepro.nouns.repro import Compiler, Place, Repro
from torchrepro.state.ambient import applied_modes, applied_settings, capture_ambient


def record_graphs(
    call: Callable[[Callable[..., Any]], Any],
    compiler: Compiler,
    *,
    environ: Mapping[str, str],
    backward: bool | None = None,
) -> tuple[list[Repro], list[str]]:
    """Every graph that `call(backend)` runs, in order of their first call, and what could not be kept.

    `call` compiles with the backend it is given and runs the model once. An exception on the way ends the
    recording, not the caller: the graph that raised is among those recorded. `environ` is the user's
    environment: that of this process was changed on the way here.
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
                    repros.append(replace(found, backward=backward, origin=origin))
                except (CannotSerialise, GraphTextError) as exc:
                    problems.append(str(exc))
            return graph.forward(*args)

        recorded: list[bool] = []
        return record_first_call

    try:
        call(backend)
    except Exception as exc:
        problems.append(f"the recording ended early: {type(exc).__name__}: {exc}")
    return [replace(found, origin=_among(found.origin, origins)) for found in repros], problems


def graphs_of_call(repro: Repro) -> tuple[list[Repro], list[str]]:
    """Every graph that capture makes of a whole call of the user's code, and what could not be kept."""
    from torchrepro.bundle.user_calls import call_in
    from torchrepro.execute.compilers import compile_model

    def call(backend: Callable[..., Any]) -> None:
        whole = call_in(repro.graph, repro.inputs)
        plain = replace(repro.compiler, options={}, mode=None)
        with applied_modes(repro.ambient):
            compile_model(plain, whole.function, backend=backend)(*whole.args, **whole.kwargs)

    with applied_settings(repro.ambient):
        return record_graphs(call, repro.compiler, environ=repro.ambient.environ)


def _among(origin: Origin | None, origins: Origins) -> Origin | None:
    """The recording is over: it is known how many there are."""
    return None if origin is None else replace(origin, seen=origins.seen)


def as_repro(
    graph: torch.fx.GraphModule, inputs: tuple[Any, ...], compiler: Compiler, environ: Mapping[str, str]
) -> Repro:
    """A captured graph as it will be read back from a bundle, with clones of its inputs and its state."""
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
