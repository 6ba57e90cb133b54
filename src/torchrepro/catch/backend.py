"""Watch one compiler: as a backend of `torch.compile`, or wrapped by its author.

For compiler authors, there are also functions that save a graph and its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.values import DEFAULT_SIZE_CAP
from torchrepro.catch.hook import CompilerFn, watch_compiler
from torchrepro.catch.session import CHECKPOINT_CAP, Session, current_session, open_session
from torchrepro.catch.settings import After, WatchSettings
from torchrepro.catch.snapshot import Snapshot
from torchrepro.catch.torch_hooks import install, watched_backend
from torchrepro.execute.backends import WATCHES
from torchrepro.execute.compilers import backend_function
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, Place
from torchrepro.nouns.verdict import Verdict
from torchrepro.script.save_bundle import save_bundle

_WATCH_OPTIONS = frozenset(field.name for field in fields(WatchSettings))


def backend(name: str = "inductor", *, mode: str | None = None, **options: Any) -> Callable[..., Any]:
    """Return a watched backend: `torch.compile(model, backend=torchrepro.backend("inductor", level=3))`.

    Options of the watch are those of `WatchSettings`; `mode`, `options` and `dynamic` are passed to the
    compiler. Without options of the watch it joins the watch of the process, if there is one.
    """
    compiler = Compiler(name, mode, options.pop("options", {}), options.pop("dynamic", None))
    session, inner = _session_for(None, options), backend_function(compiler)
    install()

    def watched(graph: torch.fx.GraphModule, example_inputs: list[Any], **kwargs: Any) -> Any:
        return watched_backend(inner, session, compiler)(graph, example_inputs, **kwargs)

    made: Any = watched
    made.__name__, made.compiler = f"torchrepro({compiler})", compiler
    if hasattr(inner, "reset"):
        made.reset = inner.reset  # called when Dynamo is reset
    setattr(made, WATCHES, True)
    return watched


def _session_for(settings: WatchSettings | None, options: Mapping[str, Any]) -> Session:
    """Open a session; without settings and options, return that of the process if there is one."""
    joined = current_session() if settings is None and not options else None
    return joined or open_session((settings or WatchSettings.from_environ()).changed(**options))


_made: dict[str, Callable[..., Any]] = {}


def torchrepro(
    graph: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a graph for `torch.compile(model, backend="torchrepro", mode=..., options=...)`.

    The options of the watch (`level`, `out`, ...) and `backend` are used here, the others are passed to the
    compiler.
    """
    given = dict(options or {})
    name = given.pop("backend", "inductor")
    ours = {key: given.pop(key) for key in list(given) if key in _WATCH_OPTIONS}
    asked = repr((name, mode, sorted(given.items()), sorted(ours.items())))
    if asked not in _made:
        _made[asked] = backend(name, mode=mode, options=given, **ours)
    compiled: Callable[..., Any] = _made[asked](graph, example_inputs)
    return compiled


setattr(torchrepro, WATCHES, True)


_PLACES = {After.DYNAMO: Place.AFTER_CAPTURE, After.AOT: Place.AFTER_AOT}


def wrap_compiler_debug(
    unconfigured_compiler_fn: CompilerFn,
    compiler_name: str,
    *,
    repro_after: str = "aot",
    settings: WatchSettings | None = None,
    **options: Any,
) -> CompilerFn:
    """Watch a compiler function `(graph, example_inputs, **kwargs) -> callable`.

    `compiler_name` is the compiler's name in a bundle: a registered backend, or `package.module:function`.
    `repro_after` says what its graphs are: captured ("dynamo") or as AOT passes them to a backend ("aot").
    Without settings and options it joins the watch of the process, if there is one.
    """
    session, place = _session_for(settings, options), _place(repro_after)

    def take(graph: torch.fx.GraphModule, kwargs: Mapping[str, Any]) -> Snapshot:
        backward, compiler = bool(kwargs.get("is_backward", False)), Compiler(compiler_name)
        return Snapshot.take(graph, place, compiler, backward=backward, origins=session.origins)

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
    """Save a graph with its inputs and the state around it as a bundle; never overwrite one.

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
    """Save a checkpoint of a graph: a small bundle, in which large tensors are recipes."""
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
    """Save a bundle that can be minified: it has all of the inputs' data."""
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
