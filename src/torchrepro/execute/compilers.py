"""The compilers under test, by name, at the two places where a graph can be passed to them.

Effect tokens: outputs of a graph that only keep effects in order, and that no compiler has to return.
"""

from __future__ import annotations

import difflib
import functools
import operator
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import torch
from torch.fx.node import Node

from torchrepro.judge.execute import call_as_it_asks
from torchrepro.nouns.errors import UnknownCompilerError
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Frontend, Place
from torchrepro.torch_api import dynamo
from torchrepro.torch_api import pytree as pytree
from torchrepro.torch_api.fake import set_calling_convention
from torchrepro.torch_api.ops import effects_operator


def without_tokens(graph: torch.fx.GraphModule, outputs: Any) -> Any:
    """Return the outputs of a run with None in place of tokens, which Inductor does not return."""
    returned = graph.graph.output_node().args[0]
    if not isinstance(returned, tuple | list) or not isinstance(outputs, tuple | list):
        return outputs
    if not any(map(_is_token, returned)) or len(returned) != len(outputs):
        return outputs
    return type(outputs)(
        None if _is_token(node) else value for node, value in zip(returned, outputs, strict=True)
    )


def _is_token(output: Any) -> bool:
    """Return whether this is the first result of `with_effects`. Checked on torch 2.11 to 2.15."""
    match output:
        case Node(target=operator.getitem, args=(Node(target=target), 0)):
            return target is effects_operator()
    return False


CompilerFn = Callable[..., Callable[..., Any]]
"""`(graph_module, example_inputs) -> callable`, what torch calls a backend."""

_OWN_CAPTURE = "torchrepro.second_opinion.api:compile_with_own_capture"
"""Named as a job is, because the front end is built on this module."""

# The backends that only rearrange the graph: at the AOT level the graph itself is what they would run.
_AOT_EAGER = frozenset({"eager", "aot_eager", "eager_noexcept"})


def compile_model(
    compiler: Compiler, model: Callable[..., Any], *, backend: CompilerFn | None = None
) -> Callable[..., Any]:
    """Compile a user's model through the public API, capture included; `backend` replaces the compiler."""
    given = backend or _backend_for_public_api(compiler)
    if compiler.frontend is Frontend.TORCHREPRO:
        captured: Callable[..., Any] = resolve_name(_OWN_CAPTURE)(
            compiler, model, backend or backend_function(compiler)
        )
        return captured
    options = dict(compiler.options) or None
    mode = None if options else compiler.mode
    return torch.compile(
        model,
        backend=given,
        mode=mode,
        options=options,
        dynamic=compiler.dynamic,
        fullgraph=compiler.fullgraph,
    )


def compile_graph(
    compiler: Compiler,
    place: Place,
    graph: torch.fx.GraphModule,
    fake_mode: Any,
    example_inputs: Sequence[Any],
) -> Callable[..., Any]:
    """Pass a graph directly to the compiler under test, as the stage before it would have done."""
    if compiler.recapture and place is Place.AFTER_CAPTURE:
        return compile_model(compiler, graph)
    if place is Place.AFTER_AOT:
        compile_fn = _aot_level(compiler)
    else:
        compile_fn = backend_function(compiler)
    with _as_if_captured(fake_mode):
        if place is Place.EXPORT:
            return _without_constants(compile_fn, graph, example_inputs)
        return compile_fn(graph, list(example_inputs))


def known_compilers() -> list[str]:
    """Return every backend that torch registers here, debugging ones included."""
    return sorted(dynamo.list_backends(exclude_tags=()))


def require_known(compiler: Compiler) -> None:
    """Raise early, and with the nearest name, for a compiler or a mode that does not exist."""
    if compiler.function is not None:
        return
    if ":" in compiler.name:
        imported(compiler.name)
        return
    known = [*known_compilers(), AOT_INDUCTOR]
    if compiler.name not in known:
        near = difflib.get_close_matches(compiler.name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}"
        raise UnknownCompilerError(
            f"no backend is called {compiler.name!r}",
            next_step=f"{hint} (a function of yours is written package.module:function)",
        )
    if compiler.name == "inductor" and compiler.mode is not None:
        from torchrepro.torch_api.inductor import list_mode_options

        modes = list(list_mode_options())
        if compiler.mode not in modes:
            known_here = f"known here: {', '.join(modes)}"
            raise UnknownCompilerError(f"inductor has no mode {compiler.mode!r}", next_step=known_here)


def backend_function(compiler: Compiler) -> CompilerFn:
    """Return the function to which `torch.compile` would pass a captured graph."""
    require_known(compiler)
    if compiler.function is not None or ":" in compiler.name:
        return _with_options(compiler, compiler.function or imported(compiler.name))
    if compiler.name == AOT_INDUCTOR:
        return _aot_inductor(compiler)
    if compiler.name == "inductor":
        wrapper: CompilerFn = dynamo.InductorWrapper(compiler.mode, dict(compiler.options), compiler.dynamic)
        return wrapper
    looked_up: CompilerFn = dynamo.lookup_backend(compiler.name)
    return looked_up


def _backend_for_public_api(compiler: Compiler) -> str | CompilerFn:
    require_known(compiler)
    if compiler.name == AOT_INDUCTOR:
        raise UnknownCompilerError(
            f"{AOT_INDUCTOR} compiles exported programs, not models",
            next_step="export the model with torch.export.export and save a repro of that",
        )
    if compiler.function is not None:
        return compiler.function
    return imported(compiler.name) if ":" in compiler.name else compiler.name


def _with_options(compiler: Compiler, function: CompilerFn) -> CompilerFn:
    """Return the function with the mode and options that `torch.compile` passes to a backend."""
    given: dict[str, Any] = {"mode": compiler.mode} if compiler.mode else {}
    given |= {"options": dict(compiler.options)} if compiler.options else {}
    return functools.partial(function, **given) if given else function


def _aot_level(compiler: Compiler) -> CompilerFn:
    require_known(compiler)
    if compiler.name in _AOT_EAGER:
        return lambda graph, inputs: graph
    if compiler.name == "aot_eager_decomp_partition":
        return _decomposed
    if compiler.name == "inductor":
        return _inductor_inner(compiler)
    return backend_function(compiler)


def _inductor_inner(compiler: Compiler) -> CompilerFn:
    """Return Inductor's own entry below AOT. Checked on torch 2.11 to 2.15 (`compile_fx_inner`)."""
    from torchrepro.torch_api.inductor import compile_fx_inner, config, list_mode_options

    def compile_fn(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        options = list_mode_options(compiler.mode, compiler.dynamic) if compiler.mode else {}
        with config.patch({**options, **compiler.options}):
            compiled: Callable[..., Any] = compile_fx_inner(graph, inputs)
            return compiled

    return compile_fn


def _decomposed(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """Return the graph after Inductor's decompositions, to run eagerly."""
    from torchrepro.torch_api.fake import make_fx
    from torchrepro.torch_api.inductor import select_decomp_table

    traced: Callable[..., Any] = make_fx(
        torch.fx.Interpreter(graph).run, decomposition_table=select_decomp_table(), tracing_mode="fake"
    )(*inputs)
    return traced


def _without_constants(
    compile_fn: CompilerFn, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """Compile without the arguments that export has turned into constants: no compiler ever gets them."""
    placeholders = graph.graph.find_nodes(op="placeholder")
    kept = [
        index
        for index, (node, value) in enumerate(zip(placeholders, example_inputs, strict=True))
        if node.users or isinstance(value, torch.Tensor)
    ]
    for index in set(range(len(placeholders))) - set(kept):
        graph.graph.erase_node(placeholders[index])
    graph.recompile()
    compiled = compile_fn(graph, [example_inputs[index] for index in kept])
    return lambda *args: call_as_it_asks(compiled, [args[index] for index in kept], {})


def _aot_inductor(compiler: Compiler) -> CompilerFn:
    """Compile a library ahead of time, pack it, and load it again."""
    from torchrepro.torch_api.inductor import aot_compile, aoti_load_package, package_aoti

    def compile_fn(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        directory = tempfile.TemporaryDirectory(prefix="torchrepro-aoti-")
        outputs: Any = graph.graph.output_node().args[0]
        set_calling_convention(graph, tuple(inputs), outputs)
        options = {
            **compiler.options,
            "aot_inductor.package": True,
            "aot_inductor.output_path": f"{directory.name}/model",
        }
        with torch.no_grad():
            files: Any = aot_compile(graph, tuple(inputs), options=options)
            package = package_aoti(f"{directory.name}/model.pt2", {"model": files})
        function = aoti_load_package(package)

        def call(*args: Any, until: object = directory) -> Any:
            """Run the library; `until` keeps its directory as long as this function."""
            with torch.no_grad():
                found = function(*args)
            return tuple(_as_in_graph(value, node) for value, node in zip(found, outputs, strict=True))

        return call

    return compile_fn


def _as_in_graph(value: Any, output: Any) -> Any:
    """Return a library's result, which is tensors alone, as the graph returns it: numbers as well."""
    if not isinstance(output, torch.fx.Node):
        return output
    number = isinstance(output.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
    return value.item() if number and isinstance(value, torch.Tensor) else value


@contextmanager
def _as_if_captured(fake_mode: Any) -> Iterator[None]:
    """Enter the context in which capture calls a backend. Checked on torch 2.11 to 2.15."""
    from torchrepro.torch_api.inductor import V

    if fake_mode is None:
        yield
        return
    with dynamo.tracing(dynamo.TracingContext(fake_mode)), V.set_fake_mode(fake_mode):
        yield


def imported(name: str) -> CompilerFn:
    """Return the function `package.module:function`; UnknownCompilerError if there is none."""
    try:
        found: Any = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise UnknownCompilerError(
            f"cannot import the compiler {name!r} ({exc})",
            next_step="write package.module:function, importable from the working directory",
        ) from exc
    if not callable(found):
        raise UnknownCompilerError(f"{name!r} is a {type(found).__name__}, not a compiler function")
    return found  # type: ignore[no-any-return]
