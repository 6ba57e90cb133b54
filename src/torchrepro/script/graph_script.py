"""A captured graph as a script: a plain function, its inputs, a call by `torch.compile`, an assertion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.graph_text.printer import GraphText, overloads_of
from torchrepro.graph_text.resolver import needs_trust
from torchrepro.judge.compare import tensors_in, weights_like
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Place
from torchrepro.nouns.verdict import Kind, LeafPath
from torchrepro.script.assertions import worst_leaf
from torchrepro.script.body import Body, BodyWriter
from torchrepro.script.document import Entry, compile_arguments
from torchrepro.script.expressions import Unwritable
from torchrepro.script.inputs import SIDE_FILE, Inputs, dimensions_of_inputs, sizes_of_inputs
from torchrepro.script.layout import indented, laid_out
from torchrepro.script.spelling import SameCall, Speller
from torchrepro.script.writer import RAISING, CompiledCall, Manner, ScriptWriter, parameter_text
from torchrepro.state.fake_run import FakeRun, OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.names import (
    COMPILE_AHEAD,
    DRAW_AS_EAGER,
    DYNAMO,
    IMPORT_COMPILE_FX,
    IMPORT_COMPILE_FX_INNER,
    IMPORT_MAKE_FX,
    INDUCTOR,
    LOAD_PACKAGE,
)
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.user_code.closure.origin import is_installed_module
from torchrepro.user_code.graph_source import write_with_source
from torchrepro.user_code.operators import OPERATORS, Operators, operators_of, registration_name

_NOT_PUBLIC = "# torch.compile(f) does not show it: this is inductor's own entry point."
_BUNDLES = "torchrepro_"
"""How the functions that register operators begin in a bundle."""


class GraphScript(ScriptWriter):
    """Writes the graph as a function `f`, or as a `Model` where it has state."""

    @property
    def entry(self) -> Entry:
        return {Manner.OPERATORS: Entry.OPERATORS, Manner.INTERNAL: Entry.INTERNAL}.get(
            self.manner, Entry.PUBLIC
        )

    @property
    def callee(self) -> str:
        return "model" if self.is_module else "f"

    @property
    def fresh(self) -> str:
        return "Model()" if self.is_module else "f"

    @property
    def made(self) -> list[str]:
        return ["model = Model()"] if self.is_module else []

    @cached_property
    def is_module(self) -> bool:
        """Whether there is state, which belongs to a module; export takes nothing else."""
        reads = any(
            node.op == "get_attr" and isinstance(self._attribute(str(node.target)), torch.Tensor)
            for node in self.repro.graph.graph.nodes
        )
        return reads or self.repro.compiler.name == AOT_INDUCTOR

    @cached_property
    def traced(self) -> FakeRun:
        """The graph run on fakes: the value of each node, and which inputs it writes to."""
        return run_on_fakes(self.repro, log=OperatorLog(), user_code=True, symbols=False)

    @cached_property
    def body(self) -> Body:
        repro = self.repro
        lowered = repro.place is Place.AFTER_AOT and repro.compiler.name == "inductor"
        speller = Speller(
            self.traced,
            SameCall(self.traced, inductor_decompositions() if lowered else None),
            self.manner in (Manner.PLAIN, Manner.EXACT),
            self.modules,
            frozenset(
                entry.op.partition(".")[0]
                for entry in self.operators.entries
                if entry.in_source or entry.library or is_installed_module(entry.module or "__main__")
            ),
        )
        owner = "self" if self.is_module else ""
        return BodyWriter(repro.graph, speller, sizes=sizes_of_inputs(repro.graph), owner=owner).write()

    def _attribute(self, path: str) -> Any:
        value: Any = self.repro.graph
        for part in path.split("."):
            value = getattr(value, part, None)
        return value

    # The user's code: operators, and the compiler where it is the user's.

    @cached_property
    def operators(self) -> Operators:
        """The operators of the user that the graph calls."""
        targets = [
            node.target
            for module in self.repro.graph.modules()
            if isinstance(module, GraphModule)
            for node in module.graph.nodes
            if isinstance(node.target, OpOverload | OpOverloadPacket) and needs_trust(node.target)
        ]
        return operators_of(overloads_of(targets), {})

    @cached_property
    def _written(self) -> tuple[GraphText, Compiler] | None:
        """The compiler as the script finds it: one that a script of the user defines is taken along."""
        return write_with_source(self.repro) if ":" in self.repro.compiler.name else None

    def _source(self) -> list[str]:
        lines = self.source_lines(self._written[0]) if self._written and self._written[0].source else []
        registering = self._operator_lines() if self.operators.entries else []
        return [*lines, *(["", ""] if lines and registering else []), *registering]

    def _operator_lines(self) -> list[str]:
        """Code that registers the user's operators; the import of a module registers the others."""
        entries = self.operators.entries
        self.modules |= {entry.module for entry in entries if not entry.in_source and entry.module}
        loading = [
            f'torch.ops.load_library("{entry.library}")'
            for entry in entries
            if entry.library and not entry.module
        ]
        own = [f"{registration_name(entry)}()" for entry in entries if entry.in_source]
        if not own:
            return loading
        # The tables at the end are for the bundle.
        lines = self.without_imports(self.operators.text.partition(f"\n{OPERATORS} = ")[0])
        while lines and not lines[-1]:
            lines.pop()
        # An operator is unregistered when its registration is garbage-collected.
        lines += ["", "", *loading, f"operators = [{', '.join(own)}]"]
        return [line.replace(_BUNDLES, "") for line in lines]

    # The function.

    def definitions(self) -> list[list[str]]:
        body = self.body
        names = list(body.parameters.values())
        if not self.is_module:
            function = [*laid_out(f"def f({', '.join(names)}):"), *indented(body.lines)]
            return [self._source(), function]
        lines = []
        if body.state:
            lines += ["def __init__(self):", *indented(["super().__init__()", *self._state()]), ""]
        lines += laid_out(f"def forward({', '.join(['self', *names])}):", margin=1)
        model = ["class Model(torch.nn.Module):", *indented([*lines, *indented(body.lines)])]
        return [self._source(), model]

    def _state(self) -> list[str]:
        lines = []
        for name, path in self.body.state.items():
            value = self._attribute(path)
            expression = self.inputs.expression(name, value.detach())
            if isinstance(value, torch.nn.Parameter):
                lines += laid_out(f"self.{name} = {parameter_text(expression, value)}", margin=2)
            else:
                lines += laid_out(f'self.register_buffer("{name}", {expression})', margin=2)
        return lines

    # The calls.

    @cached_property
    def is_plain_call(self) -> bool:
        """Whether one call leaves nothing behind that the next would see."""
        if self.verdict.kind is Kind.COMPILE_ERROR and self.manner is Manner.PLAIN:
            return not self.repro.earlier  # what a call leaves behind hardly changes how the next compiles
        gradients = self._runs_backward and self.verdict.kind not in RAISING
        changes = bool(self.traced.mutated) or self.traced.random or bool(self.repro.earlier)
        return not (gradients or changes or self._where.part in ("inputs", "state", "grad"))

    def compiled(self, arguments: str) -> CompiledCall:
        if self.repro.compiler.name == AOT_INDUCTOR:
            return self._ahead_of_time(arguments)
        if self.manner is Manner.INTERNAL:
            return self._internal(arguments)
        dynamic = bool(self.repro.symbols) and not self._marks
        compiler = self._written[1] if self._written else self.repro.compiler
        given = compile_arguments(compiler, dynamic=dynamic)
        return CompiledCall(
            f"torch.compile({self.callee}{given})({arguments})", f"torch.compile({self.fresh}{given})"
        )

    def _ahead_of_time(self, arguments: str) -> CompiledCall:
        if self.repro.symbols:
            raise Unwritable("an exported program with dynamic sizes")
        given = f"({arguments},)" if arguments else "()"
        lines = (
            f"program = torch.export.export(model, {given})",
            f"package = {COMPILE_AHEAD}(program)",
        )
        self.modules.add(INDUCTOR)
        return CompiledCall(f"{LOAD_PACKAGE}(package)({arguments})", lines=lines)

    def _internal(self, arguments: str) -> CompiledCall:
        """Inductor's own entry points. Checked on torch 2.11 to 2.15 (`compile_fx`, `compile_fx_inner`)."""
        repro, compiler = self.repro, self.repro.compiler
        asked = compiler.options or compiler.mode or compiler.recapture
        if compiler.name != "inductor" or asked or repro.symbols:
            raise Unwritable("a compiler with settings, called directly")
        if self.is_module or not self.is_plain_call:
            raise Unwritable("a call that changes its inputs, handed to the compiler directly")
        if repro.place is Place.AFTER_AOT:
            self.modules.add(IMPORT_COMPILE_FX_INNER)
            self.modules.add(IMPORT_MAKE_FX)
            # It takes a list of inputs, and only graphs that return several values or a list.
            alone = len(self.body.results) == 1
            listed = "lambda *inputs: [f(*inputs)]" if alone else "f"
            call = f"compile_fx_inner(graph, [{arguments}])([{arguments}]){'[0]' if alone else ''}"
            return CompiledCall(call, lines=(_NOT_PUBLIC, f"graph = make_fx({listed})({arguments})"))
        self.modules.add(IMPORT_COMPILE_FX)
        call = f"compile_fx(graph, [{arguments}])({arguments})"
        return CompiledCall(call, lines=(_NOT_PUBLIC, "graph = torch.fx.symbolic_trace(f)"))

    def around(self, calls: Sequence[str]) -> list[str]:
        return list(calls) if self.repro.place is Place.AFTER_AOT else super().around(calls)

    # Inputs and seed.

    @cached_property
    def _placeholders(self) -> list[Node]:
        return [node for node in self.repro.graph.graph.nodes if node.op == "placeholder"]

    def _value_of(self, node: Node) -> Any:
        """An input as the script makes it. Below AOT autograd has done its work."""
        value = self.repro.inputs[self._placeholders.index(node)]
        if self.repro.place is Place.AFTER_AOT and isinstance(value, torch.Tensor) and value.requires_grad:
            return value.detach()
        return value

    def arguments(self) -> str:
        values = {name: self._value_of(node) for node, name in self.body.parameters.items()}
        return ", ".join(self.inputs.add(values).values())

    def input_lines(self) -> list[str]:
        return [*self.inputs.lines, *self._marks]

    @cached_property
    def _marks(self) -> list[str]:
        """Marks on dimensions, where some of them are dynamic and others are not."""
        repro, parameters = self.repro, self.body.parameters
        if not repro.symbols or repro.compiler.dynamic is not None:
            return []
        if any(not isinstance(value, torch.Tensor) for value in map(self._value_of, parameters)):
            return []  # a number of its own is dynamic only if everything is
        symbolic, fixed = [], 0
        for node, dim, size in dimensions_of_inputs(repro.graph):
            if node not in parameters:
                continue
            if isinstance(size, str):
                symbolic.append(f"{DYNAMO}.mark_dynamic({parameters[node]}, {dim})")
            else:
                fixed += self._value_of(node).shape[dim] > 1
        return symbolic if fixed else []

    def before_inputs(self) -> list[str]:
        """The calls that came before the failing one."""
        lines = []
        for inputs in self.repro.earlier:
            given = dict(zip(self._placeholders, inputs, strict=False))
            texts = [self._earlier_value(name, given[node]) for node, name in self.body.parameters.items()]
            lines += self.around([f"{self.callee}({', '.join(texts)})"])
        return lines

    def _earlier_value(self, name: str, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.inputs.expression(f"earlier_{name}{len(self.inputs.kept)}", value)
        return Inputs().add({name: value})[name]

    def seed(self) -> list[str]:
        """Both sides draw the same numbers."""
        if not self.traced.random:
            return []
        asked = "fallback_random" in self.repro.compiler.options
        chosen = asked or DRAW_AS_EAGER.partition("  #")[0] in self.settings
        if self.repro.compiler.name == "inductor" and not chosen:
            self.settings.append(DRAW_AS_EAGER)
        state = self.repro.ambient.rng.get("cpu")
        if self.manner is Manner.PLAIN or state is None:
            return ["torch.manual_seed(0)"]
        self.inputs.kept["random_state"] = state
        return [f'torch.set_rng_state(torch.load(Path(__file__).with_name("{SIDE_FILE}"))["random_state"])']

    # What is compared.

    @cached_property
    def _where(self) -> LeafPath:
        """Where the results differ; the empty path where nothing was compared."""
        leaf = worst_leaf(self.verdict)
        where = LeafPath() if leaf is None else leaf.where
        if where.part == "python":
            raise Unwritable("a side effect on Python objects")
        return where

    @cached_property
    def _runs_backward(self) -> bool:
        if self.repro.place is Place.AFTER_AOT or self.repro.backward is False:
            return False
        if self.verdict.kind not in RAISING and self._where.part != "grad":
            return False
        if not self.traced.complete and self._where.text:
            raise Unwritable("gradients of a graph whose sizes depend on data")
        return any(tensor.requires_grad for _, tensor in tensors_in(self.traced.output))

    def loss(self) -> str:
        if not self._runs_backward:
            return ""
        outputs = tensors_in(self.traced.output, "out")
        wanting = [(path, found) for path, found in outputs if found.requires_grad]
        if len(wanting) != 1 or wanting[0][0] not in self.body.results:
            raise Unwritable("several outputs that ask for gradients")
        path, tensor = wanting[0]
        where = self.body.results[path]
        if tensor.dim() == 0 and not tensor.is_complex():
            return f"{where}.backward()"
        if self.manner is Manner.PLAIN or tensor.is_complex():
            return f"{where}{'.abs()' if tensor.is_complex() else ''}.sum().backward()"
        weights = weights_like(torch.empty(tensor.shape, dtype=tensor.dtype))
        return f"{where}.backward({self.inputs.expression('gradient', weights)})"

    def result_suffix(self) -> str:
        path, results = str(self._where), self.body.results
        best = max((known for known in results if path.startswith(known)), key=len, default=None)
        return "" if best is None else results[best] + path[len(best) :]

    def observed(self) -> str:
        where = self._where
        end = ".grad" if where.part == "grad" else ""
        if where.input is not None:
            name = self.body.parameters.get(self._placeholders[where.input])
            if name is None:
                raise Unwritable("an input that the graph does not use")
            return f"{name}{where.rest}{end}"
        if where.part in ("grad", "state") and where.name and not where.rest:
            known = {place: name for name, place in self.body.state.items()}
            return f"model.{known.get(where.name, where.name)}{end}"
        return f"out{self.result_suffix()}"

    def compared_dtype(self) -> torch.dtype | None:
        """An input and its gradient have the same."""
        if self._where.input is not None:
            value = self.repro.inputs[self._where.input]
            return value.dtype if isinstance(value, torch.Tensor) else None
        tensor = dict(tensors_in(self.traced.output, "out")).get(str(self._where))
        return None if tensor is None else tensor.dtype

    def may_be_nan(self) -> bool:
        return self.manner is not Manner.PLAIN or super().may_be_nan()
