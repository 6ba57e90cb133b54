"""The standalone `repro.py` of a bundle: plain torch, from any directory, exits 1 exactly if it reproduces.

It is made for a maintainer without torchrepro. Tensors come from the file beside it; what a line of plain
code cannot make (sparse, quantised, nested tensors) comes from `values.pt`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torchrepro.bundle.entries import (
    BoolEntry,
    Constant,
    FloatEntry,
    IntEntry,
    NoneEntry,
    OpaqueEntry,
    RandomFloats,
    SameEntry,
    StridedEntry,
    SymbolEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.manifest import Manifest
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Frontend, Place
from torchrepro.nouns.trust import SOURCE_TRUST
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.bundle_main import main_function
from torchrepro.script.executable import executable_call, executable_modules
from torchrepro.user_code.closure.scopes import bound_names


def standalone_script(manifest: Manifest, graph_text: str, verdict: Verdict | None, source: str = "") -> str:
    """The text of `repro.py`. Where it cannot be made, a script that says why and where to go instead."""
    if manifest.compiler.frontend is not Frontend.DYNAMO:
        return _no_script("it was captured by torchrepro's own front end, which plain torch does not have")
    hints = {symbol.name: symbol.hint for symbol in manifest.symbols}
    try:
        write = executable_call if manifest.place is Place.BEFORE_CAPTURE else executable_modules
        modules, imports = write(graph_text, hints)
    except TorchReproError as exc:
        return _no_script(str(exc))
    makers = {name: _maker(name, entry, manifest) for name, entry in manifest.values.items()}
    kind = manifest.expected.kind if manifest.expected is not None else Kind.PASS
    script: str = _template().render(
        title=_title(manifest, verdict),
        facts=_facts(manifest),
        kind=kind.value,
        environ=_environment(manifest),
        imports=sorted({*imports, *_operator_modules(manifest)}),
        libraries=sorted({entry.library for entry in manifest.custom_ops if entry.library}),
        own_operators=any(entry.in_source for entry in manifest.custom_ops),
        settings=_settings(manifest, verdict),
        makers=makers,
        generated=any(maker.startswith("generated(") for maker in makers.values()),
        kept_apart=bool(kept_apart(manifest)),
        modules=modules,
        before_capture=manifest.place is Place.BEFORE_CAPTURE,
        source=source,
        source_names=_global_names(source),
        after_aot=manifest.place is Place.AFTER_AOT and manifest.compiler.name == "inductor",
        ahead_of_time=manifest.compiler.name == "aot_inductor",
        dynamic=bool(manifest.symbols),
        marks=_dynamic_dimensions(graph_text) if manifest.symbols else [],
        compile_arguments=_compile_arguments(manifest),
        inputs=manifest.inputs,
        earlier=manifest.earlier,
        rng="rng.cpu" in manifest.values,
        backward=manifest.place is not Place.AFTER_AOT and manifest.backward is not False,
        contexts=_contexts(manifest),
        verdict_functions=main_function(manifest.expected, verdict),
    )
    return script


def _no_script(reason: str) -> str:
    text = f"no standalone script: {reason}; run torchrepro check on this bundle"
    return f"raise SystemExit({text!r})\n"


def values_for_script(manifest: Manifest, values: Mapping[str, Any]) -> Callable[[Path], None] | None:
    """Writes the values that the script cannot make by itself; None where there are none."""
    names = kept_apart(manifest)
    if not names:
        return None
    import torch

    kept = {
        name: values[name].detach() if isinstance(values[name], torch.Tensor) else values[name]
        for name in names
        if not isinstance(manifest.values[name], OpaqueEntry)
    }
    return lambda path: torch.save(kept, path)


@cache
def _template() -> Any:
    import jinja2

    source = (Path(__file__).parent / "templates" / "repro.py.j2").read_text()
    return jinja2.Environment(keep_trailing_newline=True, autoescape=False).from_string(source)


def _title(manifest: Manifest, verdict: Verdict | None) -> str:
    if verdict is not None and verdict.fails:
        sentence = f"{manifest.compiler}: {verdict}"
    else:
        sentence = f"A graph for {manifest.compiler}, not known to fail."
    one_line = " ".join(sentence.split()).replace("\\", "/").replace('"""', "'''")
    return textwrap.shorten(one_line, 400, placeholder=" ...").rstrip('"')


def _facts(manifest: Manifest) -> list[str]:
    environment = manifest.environment
    lines = [
        f"Seen with torch {environment.torch}, Python {environment.python}, "
        f"{environment.cpu or environment.platform}."
    ]
    lines += [f"Note: {note}" for note in manifest.notes]
    return [line.replace("\\", "/").replace('"""', "'''") for line in lines]


def _environment(manifest: Manifest) -> dict[str, str]:
    """Set before torch is imported. Caches of whole graphs are off: a hit would hide the failure."""
    return {
        **manifest.ambient.environ,
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    }


def _settings(manifest: Manifest, verdict: Verdict | None) -> list[str]:
    ambient = manifest.ambient
    lines = []
    if ambient.default_dtype != "float32":
        lines.append(f"torch.set_default_dtype(torch.{ambient.default_dtype})")
    if ambient.matmul_precision != "highest":
        lines.append(f"torch.set_float32_matmul_precision({ambient.matmul_precision!r})")
    if ambient.deterministic != "off":
        lines.append(f"torch.use_deterministic_algorithms(True, warn_only={ambient.deterministic == 'warn'})")
    for module, values in ambient.configs.items():
        lines.append(f"import torch._{module}.config")
        lines += [f"torch._{module}.config.{name} = {value!r}" for name, value in values.items()]
    if verdict is not None and any(note.startswith("random") for note in verdict.notes):
        lines.append("import torch._inductor.config")
        lines.append(
            "torch._inductor.config.fallback_random = True  # draw as eager does, so that they compare"
        )
    return lines


def _contexts(manifest: Manifest) -> list[str]:
    ambient = manifest.ambient
    contexts = []
    if ambient.inference_mode:
        contexts.append("torch.inference_mode()")
    if not ambient.grad_enabled or manifest.place is Place.AFTER_AOT:
        contexts.append("torch.no_grad()")
    for cast in ambient.autocast:
        contexts.append(
            f"torch.autocast({cast.device!r}, dtype=torch.{cast.dtype}, enabled={cast.enabled}, "
            f"cache_enabled={cast.cache_enabled})"
        )
    return contexts


def _compile_arguments(manifest: Manifest) -> str:
    compiler = manifest.compiler
    if ":" in compiler.name:
        module, _, function = compiler.name.partition(":")
        found = f"getattr(__import__({module!r}, fromlist=['_']), {function!r})"
        arguments = [f"backend={function if module == SOURCE_TRUST else found}"]
    else:
        arguments = [f"backend={compiler.name!r}"]
    if compiler.options:
        arguments.append(f"options={dict(compiler.options)!r}")
    elif compiler.mode:
        arguments.append(f"mode={compiler.mode!r}")
    if compiler.fullgraph and manifest.place is Place.BEFORE_CAPTURE:
        arguments.append("fullgraph=True")
    if compiler.dynamic is not None:
        arguments.append(f"dynamic={compiler.dynamic}")
    elif manifest.symbols:
        arguments.append("dynamic=True")
    return ", ".join(arguments)


def _operator_modules(manifest: Manifest) -> set[str]:
    """Modules whose import registers operators that the graph calls and that the bundle cannot register."""
    entries = (entry for entry in manifest.custom_ops if not entry.in_source and entry.module != "__main__")
    return {entry.module for entry in entries if entry.module}


def _global_names(source: str) -> list[str]:
    """What the user's code binds at its top level: where its state may be."""
    return list(dict.fromkeys(bound_names(ast.parse(source).body)))


def _dynamic_dimensions(graph_text: str) -> list[tuple[int, int]]:
    """(input, dimension) of every size of an input that is an expression over symbols."""
    (graph,) = (node for node in ast.parse(graph_text).body if isinstance(node, ast.ClassDef))
    (forward,) = (node for node in graph.body if isinstance(node, ast.FunctionDef))
    found = []
    for position, argument in enumerate(forward.args.args[1:]):
        note = argument.annotation
        while isinstance(note, ast.Call) and isinstance(note.func, ast.Attribute):
            note = note.func.value
        if isinstance(note, ast.Subscript):
            sizes = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            found += [(position, dim) for dim, size in enumerate(sizes) if not isinstance(size, ast.Constant)]
    return found


def kept_apart(manifest: Manifest) -> list[str]:
    """The values that the script cannot make by itself and reads from a file beside it."""
    return [
        name for name, entry in manifest.values.items() if _maker(name, entry, manifest).startswith("kept(")
    ]


def _maker(name: str, entry: ValueEntry, manifest: Manifest) -> str:
    """The expression that makes one value."""
    match entry:
        case NoneEntry():
            return "None"
        case BoolEntry(value=value) | IntEntry(value=value):
            return str(value)
        case SymbolEntry(value=value, type="int"):
            return str(value)
        case FloatEntry(value=text) if not text.startswith("nan"):
            return f"float({text!r})"
        case SameEntry(number=number):
            return f"value({_by_number(number, manifest)!r})"
        case ZeroTensorEntry(size=size, dtype=dtype, device=device):
            return f"torch._efficientzerotensor({list(size)}, dtype=torch.{dtype}, device={device!r})"
        case StridedEntry() if entry.quantizer is None and not entry.inference:
            made = _strided(entry)
            if made:
                return made
    return f"kept({name!r})"


def _strided(entry: StridedEntry) -> str:
    storage, size, stride = entry.storage, tuple(entry.size), tuple(entry.stride)
    dtype = f"torch.{entry.dtype}"
    match storage.recipe:
        case None:
            import torch

            offset = entry.offset - storage.start // getattr(torch, entry.dtype).itemsize
            arguments = [repr(storage.name), dtype, repr(size), repr(stride)]
            arguments += [repr(offset)] if offset or storage.device != "cpu" else []
            arguments += [repr(storage.device)] if storage.device != "cpu" else []
            text = f"strided({', '.join(arguments)})"
        case RandomFloats() as recipe:
            elements = storage.nbytes // getattr(__import__("torch"), entry.dtype).itemsize
            drawn = (
                f"generated({elements}, {dtype}, {recipe.mean!r}, {recipe.std!r}, {recipe.minimum!r}, "
                f"{recipe.maximum!r}, {recipe.seed})"
            )
            text = f"{drawn}.as_strided({size}, {stride}, {entry.offset})"
        case Constant(element=element):
            text = (
                f"torch.frombuffer(bytearray({element!r}), dtype={dtype})"
                f".as_strided({size}, {(0,) * len(size)}).clone().as_strided({size}, {stride})"
            )
        case _:
            return ""
    if entry.conj:
        text += ".conj()"
    if entry.neg:
        text = f"torch._neg_view({text})"
    if entry.parameter:
        return f"torch.nn.Parameter({text}, requires_grad={entry.requires_grad})"
    if entry.requires_grad:
        text += ".requires_grad_()"
        if not entry.leaf:
            text += ".clone()"
    return text


def _by_number(number: int, manifest: Manifest) -> str:
    return next(name for name, entry in manifest.values.items() if getattr(entry, "number", -1) == number)
