"""The vocabulary of those who write compilers: wrap one, or write a graph and its inputs down by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.values import DEFAULT_SIZE_CAP
from torchrepro.catch.enable import current_session, open_session
from torchrepro.catch.hook import CompilerFn, watch_compiler
from torchrepro.catch.session import CHECKPOINT_CAP
from torchrepro.catch.settings import After, WatchSettings
from torchrepro.catch.snapshot import Snapshot
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, Place
from torchrepro.nouns.verdict import Verdict
from torchrepro.script.save_bundle import save_bundle

_PLACES = {After.DYNAMO: Place.AFTER_CAPTURE, After.AOT: Place.AFTER_AOT}


def wrap_compiler_debug(
    unconfigured_compiler_fn: CompilerFn,
    compiler_name: str,
    *,
    repro_after: str = "aot",
    settings: WatchSettings | None = None,
    **options: Any,
) -> CompilerFn:
    """A compiler function `(graph, example_inputs, **kwargs) -> callable`, watched.

    `compiler_name` is what a bundle calls the compiler: a backend that torch knows, or
    `package.module:function`. `repro_after` says what its graphs are: captured ("dynamo") or as handed to a
    backend by AOT ("aot"). Without settings and options it joins the watch of the process, if there is one.
    """
    joined = current_session() if settings is None and not options else None
    session = joined or open_session((settings or WatchSettings.from_environ()).changed(**options))
    place = _place(repro_after)

    def take(graph: torch.fx.GraphModule, kwargs: Mapping[str, Any]) -> Snapshot:
        return Snapshot.take(
            graph,
            place,
            Compiler(compiler_name),
            backward=bool(kwargs.get("is_backward", False)),
            origins=session.origins,
        )

    return watch_compiler(unconfigured_compiler_fn, session, take)


def save_graph_repro(
    path: Path | str,
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compiler_name: str,
    *,
    repro_after: str = "aot",
    verdict: Verdict | None = None,
    size_cap: int = DEFAULT_SIZE_CAP,
    run_id: str = "",
) -> Path:
    """Write a graph with its inputs and the state around it as a bundle, never over one that exists.

    Inputs may be fake: then their data is generated on loading, and the bundle says so.
    """
    repro = Snapshot.take(graph, _place(repro_after), Compiler(compiler_name)).repro(inputs)
    return save_bundle(repro, Path(path), verdict=verdict, size_cap=size_cap, run_id=run_id)


def dump_compiler_graph_state(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compiler_name: str,
    *,
    repro_after: str = "aot",
    out: Path | str | None = None,
) -> Path:
    """A checkpoint of a graph: a small bundle, in which large tensors are recipes."""
    path = _under(out, "checkpoint")
    return save_graph_repro(
        path, graph, inputs, compiler_name, repro_after=repro_after, size_cap=CHECKPOINT_CAP
    )


def dump_to_minify(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compiler_name: str,
    *,
    repro_after: str = "aot",
    out: Path | str | None = None,
) -> Path:
    """A bundle that is ready to be minified: all of the inputs' data is in it."""
    path = _under(out, "minify")
    return save_graph_repro(path, graph, inputs, compiler_name, repro_after=repro_after)


def _under(out: Path | str | None, ending: str) -> Path:
    session = current_session()
    settings = session.settings if session is not None else WatchSettings.from_environ()
    return settings.changed(out=out).directory / f"{new_run_id()}-{ending}"


def _place(repro_after: str) -> Place:
    try:
        return _PLACES[After(repro_after)]
    except (ValueError, KeyError):
        raise TorchReproError(
            f"repro_after is {repro_after!r}", next_step='choose "dynamo" or "aot"'
        ) from None
