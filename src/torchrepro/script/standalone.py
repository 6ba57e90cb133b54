"""The standalone `repro.py` of a bundle: plain torch, from any directory, exits 1 exactly if it reproduces.

It is made for a maintainer without torchrepro, from the manifest and the graph's text alone: the device that
the values came from may just have failed. The text of a graph is nearly Python already: lines are copied,
its words are replaced or defined as functions (`standalone_runtime.py`). Values are read from the bundle's
files; those that are not plain memory (sparse, quantised, nested tensors) come from `values.pt`.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import torch

from torchrepro.bundle import manifest as entries
from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.storage_entries import RandomFloats
from torchrepro.graph_text.syntax import dynamic_dimensions
from torchrepro.nouns.errors import GraphTextError, TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, Frontend, Place
from torchrepro.nouns.verdict import Difference, Kind, LeafComparison, LeafPath, Verdict
from torchrepro.script import document as parts
from torchrepro.script import standalone_runtime as runtime
from torchrepro.script.assertions import Compared, assertion, sentence, worst_leaf
from torchrepro.script.executable import GraphClasses
from torchrepro.script.expressions import Unwritable
from torchrepro.script.layout import indented
from torchrepro.torch_api import names as private
from torchrepro.user_code.closure.scopes import bound_names

_TENSOR_FILE = """\
with open(HERE / "tensors.safetensors", "rb") as file:
    HEADER = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    DATA = bytearray(file.read())
MADE = {}"""
_CACHES = ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE")
_OWN_OPERATORS = """\
# The user's operators, registered by the file next to this one.
sys.path.insert(0, str(HERE))
from operators import torchrepro_operators

OPERATORS = [register() for register in torchrepro_operators.values()]"""
_END = """\
    print("reproduced" if reproduced else "not reproduced", flush=True)
    sys.exit(1 if reproduced else 0)"""


class Ending(StrEnum):
    """What a script does with its graph and values."""

    JUDGE = "judge"
    """Run eager and compiled, and exit with 1 if the recorded failure shows again."""
    RUN_REPRO = "run_repro"
    """Hand them to torch's own tool for repros, as an `fx_graph_runnable` does."""


def standalone_script(
    manifest: Manifest,
    graph_text: str,
    verdict: Verdict | None,
    source: str = "",
    ending: Ending = Ending.JUDGE,
) -> str:
    """Return the text of `repro.py`; where it cannot be made, a script that says why."""
    if manifest.compiler.frontend is not Frontend.DYNAMO:
        return no_script("it was captured by torchrepro's own front end, which plain torch does not have")
    if manifest.probe is not None:
        return no_script(f"it compares eager and compiled, and passes: see the probe {manifest.probe}")
    try:
        return _Standalone(manifest, graph_text, verdict, source, ending).text()
    except (TorchReproError, Unwritable) as exc:
        return no_script(str(exc))


def no_script(reason: str) -> str:
    """Return a script that says why there is none."""
    text = f"no standalone script: {reason}; run torchrepro check on this bundle"
    return f"raise SystemExit({text!r})\n"


@dataclass(frozen=True, eq=False)
class _Standalone:
    manifest: Manifest
    graph_text: str
    verdict: Verdict | None
    source: str
    ending: Ending

    @cached_property
    def whole_call(self) -> bool:
        return self.manifest.place is Place.BEFORE_CAPTURE

    @cached_property
    def graph(self) -> GraphClasses:
        hints = {symbol.name: symbol.hint for symbol in self.manifest.symbols}
        return GraphClasses(self.graph_text, hints, whole_call=self.whole_call)

    def text(self) -> str:
        manifest = self.manifest
        settings = parts.setting_lines(manifest.ambient)
        if self.verdict is not None and any(note.startswith("random") for note in self.verdict.notes):
            settings.append(private.DRAW_AS_EAGER)
        groups = {"torch.distributed", private.FAKE_GROUPS} if manifest.groups is not None else set()
        settings += [] if manifest.groups is None else parts.group_lines(manifest.groups)
        # The import of a module registers the operators that the bundle cannot register.
        imported = [entry.module for entry in manifest.custom_ops if not entry.in_source]
        operators = {module for module in imported if module and module != "__main__"}
        libraries = sorted({entry.library for entry in manifest.custom_ops if entry.library})
        loading = [f"torch.ops.load_library({library!r})" for library in libraries]
        if any(entry.in_source for entry in manifest.custom_ops):
            loading += _OWN_OPERATORS.split("\n")
        made = [
            f"    {name!r}: lambda: {_maker(name, entry, manifest)},"
            for name, entry in _values(manifest).items()
        ]
        source = self.source.rstrip("\n").split("\n")
        modules: set[str] = set()
        applied = parts.user_setting_lines(manifest.user_settings, modules)
        own = [
            *([["source = sys.modules[__name__]", "", *source]] if self.source else []),
            *([applied] if applied else []),
            *self.graph.classes(self.graph.syntax),
            *([self._compiled_from(), self._run()] if self.ending is Ending.JUDGE else [self._load_args()]),
        ]
        main = "\n".join(['if __name__ == "__main__":', *indented(self._main()), _END])
        if self.ending is Ending.RUN_REPRO:
            main = "\n".join(self._run_repro())
        return parts.document(
            self._docstring(),
            compiler=manifest.compiler,
            # Caches of whole graphs are off: a hit would hide the failure.
            environ={**manifest.ambient.environ, **dict.fromkeys(_CACHES, "0")},
            modules={*_MODULES, *self.graph.imports, *operators, *groups, *modules},
            settings=settings,
            definitions=[
                ["inf, nan = math.inf, math.nan", "HERE = Path(__file__).resolve().parent", *loading],
                _TENSOR_FILE.split("\n"),
                ["MAKERS = {", *made, "}"],
                *_runtime_for("\n".join([main, *made, *(line for block in own for line in block)])),
                *own,
            ],
            statements=[main],
        )

    def _docstring(self) -> list[str]:
        manifest, verdict, expected = self.manifest, self.verdict, self.manifest.expected
        title = f"A graph for {manifest.compiler}, not known to fail"
        if verdict is not None and verdict.fails:
            title = sentence(manifest.compiler, verdict)
        environment = manifest.environment
        seen = environment.cpu or environment.platform
        signal = expected is not None and expected.kind in (Kind.CRASH, Kind.HANG)
        facts = [
            f"Seen with torch {environment.torch}, Python {environment.python}, {seen}.",
            "Plain torch, nothing of torchrepro:   python repro.py",
            f"Exits with {'a signal or 1' if signal else '1'} if the failure shows again, else with 0.",
            "Running it runs the graph below.",
        ]
        if self.ending is Ending.RUN_REPRO:
            facts[1:3] = ["Torch's own tool runs it: python FILE run, or minify, analyze (--help lists all)."]
        return parts.docstring(title, [*facts, *(f"Note: {note}" for note in manifest.notes)])

    # Compiling and running.

    def _compiled_from(self) -> list[str]:
        manifest, compiler = self.manifest, self.manifest.compiler
        marks = dynamic_dimensions(self.graph.syntax) if manifest.symbols else []
        if manifest.place is Place.AFTER_AOT and compiler.name == "inductor":
            tracing = "symbolic" if manifest.symbols else "real"
            lines = [
                "# Below AOT there is no public entry: this is inductor's own.",
                private.IMPORT_COMPILE_FX_INNER,
                private.IMPORT_MAKE_FX,
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
                f"package = {private.COMPILE_AHEAD}(program)",
                f"return {private.LOAD_PACKAGE}(package)",
            ]
        else:
            compiler = parts.with_code_options(compiler, manifest.user_settings)
            plain = replace(compiler, fullgraph=compiler.fullgraph and self.whole_call)
            given = parts.compile_arguments(plain, dynamic=bool(manifest.symbols))
            mark = f"{private.DYNAMO}.maybe_mark_dynamic"
            lines = [
                *(f"{mark}(inputs[{position}], {dim})" for position, dim in marks),
                f"return torch.compile(module{given})",
            ]
        return ["def compiled_from(module, inputs):", *indented(lines)]

    def _run(self) -> list[str]:
        """Return the function that runs the graph and returns what is compared."""
        manifest, whole_call = self.manifest, self.whole_call
        after_aot = manifest.place is Place.AFTER_AOT
        inputs = f'inputs = [value_of(f"input.{{index}}") for index in range({manifest.inputs})]'
        call = "call = compiled_from({0}, inputs) if compile_it else {0}"
        body = ["function = module.function()"] if whole_call else []
        body.append(call.format("function" if whole_call else "module"))
        called = "module(call, {})" if whole_call else "call({})"
        if after_aot and manifest.compiler.name == "inductor":
            body += ["MADE.clear()  # tracing has run the graph: its inputs may be changed", inputs]
        if manifest.earlier:
            body += [
                f"for number in range({manifest.earlier}):  # the calls that came before the failing one",
                f'    names = [f"earlier.{{number}}.input.{{index}}" for index in range({manifest.inputs})]',
                f"    {called.format('*map(value_of, names)')}",
                "    MADE.clear()",
                inputs,
            ]
        if "rng.cpu" in manifest.values:
            body.append('torch.set_rng_state(value_of("rng.cpu"))')
        body.append(f"out = {called.format('*inputs')}")
        around = [*parts.contexts(manifest.ambient), *(["torch.no_grad()"] if after_aot else [])]
        lines = [
            *(["MADE.clear()"] if not whole_call else []),
            f"{private.DYNAMO}.reset()",
            "module = Graph()" if whole_call else "module = Graph().eval()",
            inputs,
            *parts.within(around, body),
        ]
        if not after_aot and manifest.backward is not False:
            lines.append("run_backward(out)")
        if manifest.environment.gpus and self._leaf is None:
            lines.append("torch.accelerator.synchronize()  # a fault of a kernel shows only then")
        if self._leaf is not None:
            lines.append(f"return {self._observed(self._leaf.where)}")
        return [f"def {'observe' if whole_call else 'run'}(compile_it):", *indented(lines)]

    def _load_args(self) -> list[str]:
        """Return the function by which torch's tool gets the inputs."""
        inputs = (
            f'reader.args.extend(value_of(f"input.{{index}}") for index in range({self.manifest.inputs}))'
        )
        body = [
            'if hasattr(reader, "args"):  # torch counts inputs first, by a reader that takes none',
            f"    {inputs}",
        ]
        return ["def load_args(reader):", *indented(body)]

    def _run_repro(self) -> list[str]:
        """Return the lines that hand the graph to torch's tool."""
        manifest, expected = self.manifest, self.manifest.expected
        accuracy = expected is not None and expected.kind in (Kind.MISMATCH, Kind.NON_FINITE)
        given = f"mod, load_args, accuracy={accuracy}, command='run', save_dir=None"
        if manifest.place is Place.AFTER_AOT:
            tracing = "symbolic" if manifest.symbols else "real"
            call = [
                "with torch.no_grad():",
                f"    run_repro({given}, tracing_mode={tracing!r}, check_str=None)",
            ]
        else:
            cast = any(one.enabled for one in manifest.ambient.autocast)
            call = [f"run_repro({given}, autocast={cast}, backend={manifest.compiler.name!r})"]
        lines = [f"from {_place_of_tool(manifest)} import run_repro", "", *call]
        main = ['if __name__ == "__main__":', *indented(lines)]
        return ["load_args._version = 0", "mod = Graph().eval()", "", *main]

    def _observed(self, where: LeafPath) -> str:
        """Return the expression of what is compared."""
        end = ".grad" if where.part == "grad" else ""
        if where.input is not None:
            return f"comparable(inputs[{where.input}]{where.rest}{end})"
        match where.part:
            case "grad":
                return f"module.get_parameter({where.name!r}).grad{where.rest}"
            case "state":
                return f"comparable(module.state_dict()[{where.name!r}]{where.rest})"
            case "python":
                names = list(dict.fromkeys(bound_names(ast.parse(self.source).body)))
                return f"python_state(function, module, {names}).get({where.name!r}){where.rest}"
        return f"comparable({where})"

    @cached_property
    def _leaf(self) -> LeafComparison | None:
        """Where the results differ; None where nothing was compared."""
        expected = self.manifest.expected
        compared = expected is not None and expected.kind in (Kind.MISMATCH, Kind.NON_FINITE)
        return worst_leaf(self.verdict) if compared and self.verdict is not None else None

    def _main(self) -> list[str]:
        """Return the lines that determine whether the recorded failure reproduces."""
        expected, verdict, leaf = self.manifest.expected, self.verdict, self._leaf
        run = "run_in_copy" if self.whole_call else "run"
        eager, compiled = f"{run}(compile_it=False)", f"{run}(compile_it=True)"
        if leaf is not None:
            compared = Compared(leaf, not_numbers=True, limits=(0.0, _limit(leaf)))
            check = f'fails(lambda: {assertion(compared, "compiled", "eager")}, "AssertionError")'
            if leaf.where.part == "python" or leaf.difference is Difference.TYPE:
                check = "type(compiled) is not type(eager) or compiled != eager"
            asked = [f"eager, compiled = {eager}, {compiled}", f"reproduced = {check}"]
            return [*asked, "if reproduced:", f"    print({f'{leaf.path} differs'!r})"]
        match None if expected is None else expected.kind:
            case Kind.CRASH | Kind.OUT_OF_MEMORY:
                told = "if the next line is missing, the process has crashed: reproduced"
                return [eager, f'print("{told}", flush=True)', compiled, "reproduced = False"]
            case Kind.HANG:
                limit = 60.0 if verdict is None else max(60.0, round(verdict.seconds))
                return [eager, f"reproduced = hangs(lambda: {compiled}, {limit!r})"]
            case Kind.COMPILE_ERROR | Kind.RUN_ERROR if expected is not None:
                wanted = f"{expected.exception!r}, {_fixed_words(expected.message)!r}"
                return [eager, f"reproduced = fails(lambda: {compiled}, {wanted})"]
            case Kind.MISSING_ERROR:
                return [
                    f"raised = fails(lambda: {eager})",
                    'print(end="" if raised else "eager does not raise any more\\n")',
                    f"reproduced = raised and not fails(lambda: {compiled})",
                ]
        return [eager, compiled, "reproduced = False"]


def _place_of_tool(manifest: Manifest) -> str:
    if manifest.place is Place.BEFORE_CAPTURE:
        raise GraphTextError(
            "a call of the user's code is no graph", next_step="export it as a test: --as pytest"
        )
    return private.AFTER_AOT_TOOL if manifest.place is Place.AFTER_AOT else private.AFTER_DYNAMO_TOOL


def _runtime_for(text: str) -> list[list[str]]:
    """Return the functions that a text calls, directly or not, each above those that call it."""
    needed: list[list[str]] = []
    called = set(re.findall(r"(\w+)\(", text))
    for name, item in reversed(vars(runtime).items()):
        if inspect.isfunction(item) and name in called:
            source = inspect.getsource(item)
            needed.insert(0, source.rstrip().split("\n"))
            called.update(re.findall(r"(\w+)\(", source))
    return needed


def _limit(leaf: LeafComparison) -> float:
    """Return half of the observed error, so that rounding on another machine does not count."""
    by_value = leaf.difference in (Difference.VALUE, Difference.NON_FINITE)
    if not by_value or leaf.max_abs is None:
        return 0.0
    return leaf.max_abs / 2 if math.isfinite(leaf.max_abs) else 1e300


def _fixed_words(message: str) -> list[str]:
    """Return the pieces of a normalised message between its placeholders."""
    pieces = re.split(r"<\w+>(?:, \.\.\.)?", message)
    return [piece.strip() for piece in pieces if len(piece.strip()) > 3][:5]


# Values.


_MODULES = ("json", "math", "operator", "os", "sys", "Path")
_ONLY_IN_A_BUNDLE = (entries.DTensorEntry, entries.MeshEntry, entries.GroupEntry, entries.SourceEntry)
"""Values that no file of tensors can hold."""


def kept_apart(manifest: Manifest) -> list[str]:
    """Return the names of the values that the script cannot make and reads from a file next to it."""
    kept = {
        name: entry for name, entry in _values(manifest).items() if not isinstance(entry, entries.OpaqueEntry)
    }
    return [name for name, entry in kept.items() if _maker(name, entry, manifest).startswith("kept(")]


def _values(manifest: Manifest) -> dict[str, entries.ValueEntry]:
    """Return the values that a script makes: the collectives in it run, in groups that do not communicate."""
    return {name: entry for name, entry in manifest.values.items() if not name.startswith("collective.")}


def _maker(name: str, entry: entries.ValueEntry, manifest: Manifest) -> str:
    """Return the expression that makes one value."""
    match entry:
        case entries.NoneEntry():
            return "None"
        case entries.BoolEntry() | entries.IntEntry() | entries.SymbolEntry(type="int"):
            return str(entry.value)
        case entries.FloatEntry(value=text) if not text.startswith("nan"):
            return f"float({text!r})"
        case entries.SameEntry(number=number):
            named = {
                getattr(other, "number", -1): key
                for key, other in reversed(manifest.values.items())
                if other is not entry
            }
            return f"value_of({named[number]!r})"
        case entries.ZeroTensorEntry(size=size, dtype=dtype, device=device):
            return f"{private.ZERO_TENSOR}({list(size)}, dtype=torch.{dtype}, device={device!r})"
        case entries.StridedEntry(quantizer=None, inference=False, conj=False, neg=False):
            return _strided(entry) or f"kept({name!r})"
    for part in entries.parts_of(entry):
        if isinstance(part, _ONLY_IN_A_BUNDLE) or ":" in str(getattr(part, "type", "")):
            what = type(part).__name__.removesuffix("Entry")
            raise GraphTextError(f"{name} holds a {what}", next_step="use torchrepro check instead")
    return f"kept({name!r})"


def _strided(entry: entries.StridedEntry) -> str:
    storage, size, stride = entry.storage, tuple(entry.size), tuple(entry.stride)
    dtype, itemsize = f"torch.{entry.dtype}", getattr(torch, entry.dtype).itemsize
    if storage.recipe is None:
        place = f"{dtype}, {size}, {stride}, {entry.offset - storage.start // itemsize}, {storage.device!r}"
        text = f"strided({storage.name!r}, {place})"
    elif isinstance(recipe := storage.recipe, RandomFloats):
        spread = f"{recipe.mean!r}, {recipe.std!r}, {recipe.minimum!r}, {recipe.maximum!r}, {recipe.seed}"
        drawn = f"generated({storage.nbytes // itemsize}, {dtype}, {spread})"
        text = f"{drawn}.as_strided({size}, {stride}, {entry.offset})"
    else:
        return ""
    if entry.parameter:
        return f"torch.nn.Parameter({text}, requires_grad={entry.requires_grad})"
    asking = ".requires_grad_()" if entry.requires_grad else ""
    return f"{text}{asking}{'' if entry.leaf else '.clone()'}"
