"""The standalone `repro.py` of a bundle: plain torch, from any directory, exits 1 exactly if it reproduces.

It is made for a maintainer without torchrepro, from the manifest and the graph's text alone: the device that
the values came from may just have failed. Tensors come from the file next to it; what a line of plain code
cannot make (sparse, quantised, nested tensors) comes from `values.pt`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch

from torchrepro.bundle.entries import (
    BoolEntry,
    Constant,
    FloatEntry,
    IntEntry,
    NoneEntry,
    RandomFloats,
    SameEntry,
    StridedEntry,
    SymbolEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.manifest import Manifest
from torchrepro.graph_text.syntax import dynamic_dimensions
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, Frontend, Place
from torchrepro.nouns.verdict import Difference, Kind, LeafComparison, Verdict
from torchrepro.script import standalone_runtime as runtime
from torchrepro.script.assertions import sentence
from torchrepro.script.document import (
    compile_arguments,
    compiler_module,
    config_modules,
    contexts,
    docstring,
    document,
    environment_lines,
    setting_lines,
    within,
)
from torchrepro.script.executable import Executable, executable_graph
from torchrepro.script.expressions import Unwritable
from torchrepro.script.layout import indented
from torchrepro.torch_api.names import (
    COMPILE_AHEAD,
    DRAW_AS_EAGER,
    DYNAMO,
    IMPORT_COMPILE_FX_INNER,
    IMPORT_MAKE_FX,
    LOAD_PACKAGE,
    NEG_VIEW,
    ZERO_TENSOR,
)
from torchrepro.user_code.closure.user_modules import bound_names

_TENSOR_FILE = """\
with open(HERE / "tensors.safetensors", "rb") as file:
    HEADER = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    DATA = bytearray(file.read())
MADE = {}"""
_OWN_OPERATORS = """\
# The user's operators, registered by the file next to this one.
sys.path.insert(0, str(HERE))
from operators import torchrepro_operators

OPERATORS = [register() for register in torchrepro_operators.values()]"""
_END = """\
    print("reproduced" if reproduced else "not reproduced", flush=True)
    sys.exit(1 if reproduced else 0)"""


def standalone_script(manifest: Manifest, graph_text: str, verdict: Verdict | None, source: str = "") -> str:
    """Return the text of `repro.py`; where it cannot be made, a script that says why."""
    if manifest.compiler.frontend is not Frontend.DYNAMO:
        return no_script("it was captured by torchrepro's own front end, which plain torch does not have")
    hints = {symbol.name: symbol.hint for symbol in manifest.symbols}
    whole_call = manifest.place is Place.BEFORE_CAPTURE
    try:
        graph = executable_graph(graph_text, hints, whole_call=whole_call)
        return _Standalone(manifest, graph, verdict, source).text()
    except (TorchReproError, Unwritable) as exc:
        return no_script(str(exc))


def no_script(reason: str) -> str:
    """Return a script that says why there is none."""
    text = f"no standalone script: {reason}; run torchrepro check on this bundle"
    return f"raise SystemExit({text!r})\n"


@dataclass(frozen=True, eq=False)
class _Standalone:
    manifest: Manifest
    graph: Executable
    verdict: Verdict | None
    source: str

    def text(self) -> str:
        manifest = self.manifest
        call, failure = self._failure()
        settings = self._settings()
        libraries = sorted({entry.library for entry in manifest.custom_ops if entry.library})
        loading = [f"torch.ops.load_library({library!r})" for library in libraries]
        if any(entry.in_source for entry in manifest.custom_ops):
            loading += _OWN_OPERATORS.split("\n")
        makers = {name: _maker(name, entry, manifest) for name, entry in manifest.values.items()}
        made = [f"    {name!r}: lambda: {maker}," for name, maker in makers.items()]
        texts = "\n".join(made)
        needed = [name for name in ("generated", "kept") if f"{name}(" in texts]
        needed += ["_tensor"] if self.source else []
        definitions = [
            ["inf, nan = math.inf, math.nan", "HERE = Path(__file__).resolve().parent", *loading],
            _TENSOR_FILE.split("\n"),
            *_copied("storage", "strided", "value", "reach", "attach", *needed),
            ["MAKERS = {", *made, "}"],
            *([self.source.rstrip("\n").split("\n")] if self.source else []),
            *self.graph.classes,
            self._compiled_from(),
            *_copied("weights", "run_backward", "leaves"),
            *self._run(),
            *_copied(*failure),
        ]
        return document(
            docstring(self._title(), self._facts()),
            environ=environment_lines(_without_caches(manifest)),
            modules=self._modules(settings),
            settings=settings,
            definitions=definitions,
            statements=["\n".join(['if __name__ == "__main__":', f"    reproduced = {call}", _END])],
        )

    def _title(self) -> str:
        if self.verdict is not None and self.verdict.fails:
            return sentence(self.manifest.compiler, self.verdict)
        return f"A graph for {self.manifest.compiler}, not known to fail"

    def _facts(self) -> list[str]:
        environment, expected = self.manifest.environment, self.manifest.expected
        seen = environment.cpu or environment.platform
        signal = expected is not None and expected.kind in (Kind.CRASH, Kind.HANG)
        return [
            f"Seen with torch {environment.torch}, Python {environment.python}, {seen}.",
            "Plain torch, nothing of torchrepro:   python repro.py",
            f"Exits with {'a signal or 1' if signal else '1'} if the failure shows again, else with 0.",
            "Running it runs the graph below.",
            *(f"Note: {note}" for note in self.manifest.notes),
        ]

    def _settings(self) -> list[str]:
        settings = setting_lines(self.manifest.ambient)
        if self.verdict is not None and any(note.startswith("random") for note in self.verdict.notes):
            settings.append(DRAW_AS_EAGER)
        return settings

    def _modules(self, settings: list[str]) -> set[str]:
        """Imports; those of operators that the bundle cannot register register them."""
        entries = (entry for entry in self.manifest.custom_ops if not entry.in_source)
        operators = {entry.module for entry in entries if entry.module and entry.module != "__main__"}
        own = {compiler_module(self.manifest.compiler)} - {""}
        return {
            *("json", "math", "operator", "sys", "Path"),
            *(self.graph.imports | operators | config_modules(settings) | own),
        }

    # Compiling and running.

    def _compiled_from(self) -> list[str]:
        manifest, compiler = self.manifest, self.manifest.compiler
        marks = dynamic_dimensions(self.graph.syntax) if manifest.symbols else []
        if manifest.place is Place.AFTER_AOT and compiler.name == "inductor":
            tracing = "symbolic" if manifest.symbols else "real"
            lines = [
                "# Below AOT there is no public entry: this is inductor's own.",
                IMPORT_COMPILE_FX_INNER,
                IMPORT_MAKE_FX,
                "",
                f"graph = make_fx(module, tracing_mode={tracing!r})(*inputs)",
                "function = compile_fx_inner(graph, list(inputs))",
                "return lambda *args: function(list(args))",
            ]
        elif compiler.name == AOT_INDUCTOR:
            lines = [
                "shapes = [{} if isinstance(item, torch.Tensor) else None for item in inputs]",
                *(f"shapes[{position}][{dim}] = torch.export.Dim.AUTO" for position, dim in marks),
                "program = torch.export.export(module, tuple(inputs), dynamic_shapes=tuple(shapes))",
                f"package = {COMPILE_AHEAD}(program)",
                f"return {LOAD_PACKAGE}(package)",
            ]
        else:
            fullgraph = compiler.fullgraph and manifest.place is Place.BEFORE_CAPTURE
            given = compile_arguments(replace(compiler, fullgraph=fullgraph), dynamic=bool(manifest.symbols))
            lines = [
                *(f"{DYNAMO}.maybe_mark_dynamic(inputs[{position}], {dim})" for position, dim in marks),
                f"return torch.compile(module{given})",
            ]
        return ["def compiled_from(module, inputs):", *indented(lines)]

    def _run(self) -> list[list[str]]:
        """The function that returns all that can be seen of one run."""
        manifest = self.manifest
        whole_call = manifest.place is Place.BEFORE_CAPTURE
        after_aot = manifest.place is Place.AFTER_AOT
        called = "module(call, {})" if whole_call else "function({})"
        inputs = f'inputs = [value(f"input.{{index}}") for index in range({manifest.inputs})]'
        if whole_call:
            body = ["function = module.function()"]
            body.append("call = compiled_from(function, inputs) if compile_it else function")
        else:
            body = ["function = compiled_from(module, inputs) if compile_it else module"]
        if after_aot and manifest.compiler.name == "inductor":
            body += ["MADE.clear()  # tracing has run the graph: its inputs may be changed", inputs]
        if manifest.earlier:
            body += [
                f"for number in range({manifest.earlier}):  # the calls that came before the failing one",
                f'    names = [f"earlier.{{number}}.input.{{index}}" for index in range({manifest.inputs})]',
                f"    {called.format('*map(value, names)')}",
                "    MADE.clear()",
                inputs,
            ]
        if "rng.cpu" in manifest.values:
            body.append('torch.set_rng_state(value("rng.cpu"))')
        body += ['before = dict(leaves(inputs, "inputs"))', f"outputs = {called.format('*inputs')}"]
        around = [*contexts(manifest.ambient), *(["torch.no_grad()"] if after_aot else [])]
        lines = [
            *(["MADE.clear()"] if not whole_call else []),
            f"{DYNAMO}.reset()",
            "module = Graph()" if whole_call else "module = Graph().eval()",
            inputs,
            *within(around, body),
            'seen = dict(leaves(outputs, "out"))',
        ]
        if not after_aot and manifest.backward is not False:
            lines += [
                "run_backward(seen)",
                "for path, tensor in {**before, **dict(module.named_parameters())}.items():",
                "    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.is_leaf:",
                "        seen[f'grad[\"{path}\"]'] = tensor.grad",
            ]
        lines.append("seen.update(before)")
        if whole_call:
            lines += [
                "seen.update({f'state[\"{name}\"]': tensor for name, tensor in module.state_dict().items()})",
                'seen.update(leaves(python_state(function, module), "python"))',
            ]
        name = "observe" if whole_call else "run"
        told = '"""All that can be seen of one run: outputs, inputs afterwards, gradients, state."""'
        defined = [f"def {name}(compile_it):", *indented([told, *lines, "return seen"])]
        if not whole_call:
            return [defined]
        names = list(dict.fromkeys(bound_names(ast.parse(self.source).body)))
        return [[f"SOURCE_NAMES = {names}"], *_copied("plain", "python_state", "run"), defined]

    def _failure(self) -> tuple[str, tuple[str, ...]]:
        """The call that says whether the recorded failure shows again, and the functions that it needs."""
        expected, verdict = self.manifest.expected, self.verdict
        match None if expected is None else expected.kind:
            case Kind.CRASH | Kind.OUT_OF_MEMORY:
                return "crashes()", ("crashes",)
            case Kind.HANG:
                seconds = verdict.seconds if verdict is not None else 60.0
                return f"hangs({max(60.0, round(seconds))!r})", ("hangs",)
            case Kind.COMPILE_ERROR | Kind.RUN_ERROR if expected is not None:
                return f"raises({expected.exception!r}, {_fixed_words(expected.message)!r})", ("raises",)
            case Kind.MISSING_ERROR:
                return "misses_error()", ("misses_error",)
            case Kind.MISMATCH | Kind.NON_FINITE:
                comparison = None if verdict is None else verdict.comparison
                limits = (
                    {} if comparison is None else {leaf.path: _limit(leaf) for leaf in comparison.differing}
                )
                return f"mismatches({limits!r})", ("differs", "mismatches")
        return "only_runs()", ("only_runs",)


@cache
def _source_of(name: str) -> list[str]:
    return inspect.getsource(getattr(runtime, name)).rstrip().split("\n")


def _copied(*names: str) -> list[list[str]]:
    return [_source_of(name) for name in names]


def _without_caches(manifest: Manifest) -> Mapping[str, str]:
    """Environment of the script. Caches of whole graphs are off: a hit would hide the failure."""
    off = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
    return {**manifest.ambient.environ, **off}


def _limit(leaf: LeafComparison) -> float:
    """Half of the error that was seen, so that rounding of another machine does not count."""
    by_value = leaf.difference in (Difference.VALUE, Difference.NON_FINITE)
    finite = leaf.max_abs == leaf.max_abs and leaf.max_abs != float("inf")
    return leaf.max_abs / 2 if by_value and finite else 0.0 if not by_value else 1e300


def _fixed_words(message: str) -> list[str]:
    """The pieces of a normalised message between its placeholders."""
    pieces = re.split(r"<\w+>(?:, \.\.\.)?", message)
    return [piece.strip() for piece in pieces if len(piece.strip()) > 3][:5]


# Values.


def kept_apart(manifest: Manifest) -> list[str]:
    """The values that the script cannot make by itself and reads from a file next to it."""
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
            return f"{ZERO_TENSOR}({list(size)}, dtype=torch.{dtype}, device={device!r})"
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
            offset = entry.offset - storage.start // getattr(torch, entry.dtype).itemsize
            arguments = [repr(storage.name), dtype, repr(size), repr(stride)]
            arguments += [repr(offset)] if offset or storage.device != "cpu" else []
            arguments += [repr(storage.device)] if storage.device != "cpu" else []
            text = f"strided({', '.join(arguments)})"
        case RandomFloats() as recipe:
            elements = storage.nbytes // getattr(torch, entry.dtype).itemsize
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
        text = f"{NEG_VIEW}({text})"
    if entry.parameter:
        return f"torch.nn.Parameter({text}, requires_grad={entry.requires_grad})"
    if entry.requires_grad:
        text += ".requires_grad_()"
        if not entry.leaf:
            text += ".clone()"
    return text


def _by_number(number: int, manifest: Manifest) -> str:
    return next(name for name, entry in manifest.values.items() if getattr(entry, "number", -1) == number)
