"""Hook torch at the two places at which a graph is passed to a compiler.

After capture it is `OutputGraph.call_user_compiler`, which every `torch.compile` calls, with any backend
and however early it was made. After AOT it is `wrap_compiler_debug` in inductor, which torch calls around its
own compiler for this purpose, and for other backends the compilers that AOT is given.
Both are hooked when their modules are imported: a program that compiles nothing imports nothing. Whole calls
are hooked where `torch.compile` makes something to call. `enable` and `watch` turn the hooks on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import torch

from torchrepro.catch.autoload import when_imported
from torchrepro.catch.hook import WatchedGraph, deferred_for_real_inputs, watch_compiler
from torchrepro.catch.session import Session, current_session, disable, open_session
from torchrepro.catch.settings import After, WatchSettings
from torchrepro.catch.snapshot import Snapshot
from torchrepro.execute.backends import compiler_of, watches_itself
from torchrepro.nouns.repro import Compiler, Place
from torchrepro.torch_api.fake import with_flat_values
from torchrepro.torch_api.names import BACKENDS_COMMON, COMPILE_FX, CONTEXT_CLASS, EVAL_FRAME, OUTPUT_GRAPH

_here = threading.local()
_installed = False


def install() -> None:
    """Hook torch once; the hooks check at each compilation whether there is a session."""
    global _installed
    if _installed:
        return
    _installed = True
    hooks = (_hook_capture, _hook_inductor, _hook_aot, _hook_calls)
    for name, hook in zip((OUTPUT_GRAPH, COMPILE_FX, BACKENDS_COMMON, EVAL_FRAME), hooks, strict=True):
        when_imported(name, hook)


def enable(settings: WatchSettings | None = None, **options: Any) -> Session:
    """Watch every `torch.compile` of this process from now on; options as in `WatchSettings`.

    Code compiled earlier is not watched: call `torch.compiler.reset()` first to have it watched too.
    """
    session = open_session((settings or WatchSettings.from_environ()).changed(**options), current=True)
    install()
    return session


@contextmanager
def watch(settings: WatchSettings | None = None, **options: Any) -> Iterator[Session]:
    """Watch what the body compiles and calls. The yielded session has the bundles in `kept`."""
    session = enable(settings, **options)
    try:
        yield session
    finally:
        disable(session)


def _hook_capture(module: ModuleType) -> None:
    """Hook captured graphs, except for export and packages, which need the compiler's own result.

    Checked on torch 2.11 to 2.15 (`OutputGraph.call_user_compiler`, `compiler_fn`, `export`, `package`).
    """
    original = module.OutputGraph.call_user_compiler

    def call_user_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        session = current_session()
        given = self.compiler_fn
        if session is None or self.export or self.package is not None or watches_itself(given):
            return original(self, gm, example_inputs)
        self.compiler_fn = watched_backend(given, session)
        try:
            return original(self, gm, example_inputs)
        finally:
            self.compiler_fn = given

    module.OutputGraph.call_user_compiler = call_user_compiler


def watched_backend(
    backend: Callable[..., Any], session: Session, compiler: Compiler | None = None
) -> Callable[..., Any]:
    """Return a backend of `torch.compile`, watched after capture and, as the settings say, after AOT.

    `compiler` describes the backend, if that cannot be read from the object.
    """
    after = session.settings.after

    def backend_inside(graph: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        with _inside(backend, session):
            return backend(graph, example_inputs, **kwargs)

    if after is After.AOT:
        return _named_like(backend, backend_inside)

    def take(graph: torch.fx.GraphModule, kwargs: Mapping[str, Any]) -> Snapshot:
        found, notes = (compiler, ()) if compiler else compiler_of(backend)
        return Snapshot.take(graph, Place.AFTER_CAPTURE, found, origins=session.origins, notes=notes)

    return _named_like(backend, watch_compiler(backend_inside, session, take))


def _hook_inductor(module: Any) -> None:
    """Hook inductor below AOT. Checked on torch 2.11 to 2.15 (`compile_fx.wrap_compiler_debug`)."""
    original = module.wrap_compiler_debug

    def wrap(compiler_fn: Callable[..., Any], compiler_name: str) -> Callable[..., Any]:
        wrapped: Callable[..., Any] = original(compiler_fn, compiler_name)
        session = _session_of_graph()
        if session is None:
            return wrapped
        return _watched_after_aot(wrapped, session, Compiler(compiler_name))

    module.wrap_compiler_debug = wrap


def _hook_aot(module: Any) -> None:
    """Hook AOT for backends other than inductor. Checked on torch 2.11 to 2.15 (`aot_module_simplified`)."""
    original = module.aot_module_simplified

    def aot_module_simplified(gm: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
        session, backend = _session_of_graph(), getattr(_here, "backend", None)
        if session is not None and backend is not None:
            compiler, _ = compiler_of(backend)
            if compiler.name != "inductor":
                for name in ("fw_compiler", "bw_compiler", "inference_compiler"):
                    if callable(kwargs.get(name)):
                        backward = name == "bw_compiler"
                        kwargs[name] = _watched_after_aot(kwargs[name], session, compiler, backward=backward)
        return original(gm, args, *more, **kwargs)

    module.aot_module_simplified = aot_module_simplified


def _hook_calls(module: Any) -> None:
    """Hook whole calls of what is compiled while `whole` is on; each method of a module or class, too."""
    context_class = getattr(module, CONTEXT_CLASS)
    original = context_class.__call__

    def compile_callable(self: Any, fn: Any) -> Any:
        compiled = original(self, fn)
        session = current_session()
        # Only functions that the user calls: not those of export, and not torch's own.
        wanted = isinstance(self, module.OptimizeContext) and not self.export
        own = isinstance(fn, FunctionType) and (fn.__module__ or "").startswith("torch.")
        wanted = wanted and isinstance(compiled, FunctionType) and (not own or hasattr(fn, "__wrapped__"))
        if session is None or not session.settings.whole or not wanted:
            return compiled
        from torchrepro.catch.whole_calls import compared_with_python

        module.skip_code(compared_with_python.__code__)
        return compared_with_python(compiled, module.innermost_fn(fn), self)

    # Compiled autograd compiles inside a frame that Dynamo follows: it would capture these frames, too.
    for ours in (compile_callable, current_session):
        module.skip_code(ours.__code__)
    context_class.__call__ = compile_callable


def _watched_after_aot(
    compiler_fn: Callable[..., Any],
    session: Session,
    compiler: Compiler,
    *,
    backward: bool = False,
) -> Callable[..., Any]:
    """Watch a compiler below AOT: all graphs, or only backward ones, which the hook of capture misses."""

    def take(graph: torch.fx.GraphModule, kwargs: Mapping[str, Any]) -> Snapshot:
        of_backward = backward or bool(kwargs.get("is_backward"))
        place, origins = Place.AFTER_AOT, session.origins
        # AOTInductor describes arguments and results of the whole program with the graph.
        flat = with_flat_values(graph)
        return Snapshot.take(flat, place, compiler, backward=of_backward, origins=origins)

    watched = watch_compiler(compiler_fn, session, take)
    if session.settings.after is After.AOT:
        return watched

    def only_backward(graph: torch.fx.GraphModule, example_inputs: Any, **kwargs: Any) -> Any:
        captured = getattr(_here, "backend", None) is not None
        if not (backward or kwargs.get("is_backward")):
            compile_fn = partial(compiler_fn, graph, example_inputs, **kwargs)
            if captured:
                return compile_fn()
            # Of a program that is compiled ahead of time: no hook above sees a failure.
            alone = session.shielded(
                "keep a graph", lambda: WatchedGraph(session, take(graph, kwargs), example_inputs)
            )
            return compile_fn() if alone is None else alone.compile(compile_fn)
        if not captured:
            return watched(graph, example_inputs, **kwargs)
        # Compiled together with its forward: the hook after capture sees a failure, with real inputs.
        watched_graph = session.shielded(
            "keep a graph", lambda: WatchedGraph(session, take(graph, kwargs), example_inputs)
        )
        compiled = compiler_fn(graph, example_inputs, **kwargs)
        return compiled if watched_graph is None else deferred_for_real_inputs(compiled, watched_graph)

    return only_backward


def _session_of_graph() -> Session | None:
    """Return the session for the graph being compiled, if it watches graphs after AOT, else None."""
    session: Session | None = getattr(_here, "session", None) or current_session()
    return None if session is None or session.settings.after is After.DYNAMO else session


@contextmanager
def _inside(backend: Any, session: Session) -> Iterator[None]:
    """Mark the backend as active in this thread, and turn off AOT's cache of whole results in the body.

    A hit there would return compiled graphs that bypass the hook below AOT. Inductor's caches of compiled
    code stay on.

    Checked on torch 2.11 to 2.15 (`enable_autograd_cache`).
    """
    from torchrepro.torch_api.inductor import functorch_config as functorch

    former = getattr(_here, "backend", None), getattr(_here, "session", None)
    _here.backend, _here.session = backend, session
    with ExitStack() as stack:
        if session.settings.after is not After.DYNAMO:
            stack.enter_context(functorch.patch(enable_autograd_cache=False))
        try:
            yield
        finally:
            _here.backend, _here.session = former


def _named_like(backend: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Set the function's `__name__` to the backend's, by which torch's errors name it."""
    name = getattr(backend, "__name__", None) or getattr(backend, "compiler_name", None)
    function.__name__ = str(name or type(backend).__name__)
    return function
