"""A captured graph as a script: a plain function, its inputs, a call by `torch.compile`, an assertion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.bundle.process_groups import communicates, is_distributed
from torchrepro.graph_text.printer import GraphText, overloads_of
from torchrepro.graph_text.resolver import needs_trust
from torchrepro.judge.compare import tensors_in, weights_like
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.nouns.verdict import Kind, LeafComparison, LeafPath, Verdict
from torchrepro.script import document as parts
from torchrepro.script.assertions import Compared, assertion, raised_comment, sentence, worst_leaf
from torchrepro.script.body import Body, BodyWriter
from torchrepro.script.expressions import Unwritable
from torchrepro.script.inputs import SIDE_FILE, Inputs, dimensions_of_inputs, sizes_of_inputs
from torchrepro.script.layout import indented, laid_out
from torchrepro.script.spelling import Speller
from torchrepro.script.tensors import Surroundings
from torchrepro.script.user_lines import operator_lines, parameter_text, source_lines
from torchrepro.state.fake_run import FakeRun, OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.names import (
    COMPILE_AHEAD,
    DRAW_AS_EAGER,
    DYNAMO,
    FAKE_GROUPS,
    INDUCTOR,
    LOAD_PACKAGE,
)
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.user_code.closure import is_installed_module
from torchrepro.user_code.graph_source import write_with_source
from torchrepro.user_code.operators import Operators, operators_of
from torchrepro.user_code.settings import code_settings

RAISING = (Kind.COMPILE_ERROR, Kind.RUN_ERROR, Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
"""Failures that the call itself shows: nothing is compared."""

Part = tuple[list[str], list[list[str]]]
"""The lines at the end of a script, and functions that they need."""


@dataclass(eq=False)
class GraphScript:
    """Writes the graph as a function `f`, or as a `Model` where it has state.

    What is to be imported and set grows on the way.
    """

    repro: Repro
    verdict: Verdict
    exact: bool = False
    """As it was judged: the judge's loss, the recorded random state, each call on state of its own. Else what
    a person would write: a sum as the loss, a small seed, one call after the other."""

    def __post_init__(self) -> None:
        self.inputs = Inputs(Surroundings(default_dtype=getattr(torch, self.repro.ambient.default_dtype)))
        self.modules: set[str] = set()
        self.environ = dict(self.repro.ambient.environ)
        plain = self.written[1] if self.written else self.repro
        self.settings = parts.setting_lines(plain.ambient)
        repro = self.repro
        if repro.groups is not None and (communicates(repro.graph) or any(map(is_distributed, repro.inputs))):
            self.modules |= {"torch.distributed", FAKE_GROUPS}
            self.settings += parts.group_lines(repro.groups)

    def script(self) -> parts.Script:
        """Return the script; `Unwritable` where there is none."""
        definitions = self.definitions()
        statements, functions = self._statements()
        repro, compiler = self.repro, (self.written[1] if self.written else self.repro).compiler
        said = sentence(replace(repro.compiler, name=compiler.name), self.verdict)
        text = parts.document(
            parts.docstring(said, [parts.seen_with(repro)]),
            compiler=compiler,
            environ=self.environ,
            modules=self.modules | ({"Path"} if self.inputs.kept else set()),
            settings=self.settings,
            definitions=[*(block for block in definitions if block), *functions],
            statements=statements,
        )
        return parts.Script(text, side_files=self.inputs.side_files)

    # The statements.

    def _statements(self) -> Part:
        arguments, kind = self.arguments(), self.verdict.kind
        ahead_of_time = self.repro.compiler.name == AOT_INDUCTOR
        if kind is not Kind.MISSING_ERROR and self.is_plain_call:
            before: list[str] = []
            compiled = self.call_of(f"torch.compile({self.callee}{self._given})", arguments)
            if ahead_of_time:
                before, compiled = self._ahead_of_time(arguments)
            calls = self._two_calls(self.call_of(self.callee, arguments), before, compiled)
            return [*self.made, *self.input_lines(), *calls], []
        if ahead_of_time:
            raise Unwritable("a call that changes its inputs, with the compiler called directly")
        write_function = self._missing_error if kind is Kind.MISSING_ERROR else self._two_runs
        call = self.call_of(self.callee, arguments)
        return write_function(call, f"torch.compile({self.fresh}{self._given})")

    def _two_calls(self, eager: str, before: Sequence[str], compiled: str) -> list[str]:
        """Return the eager call and the call that fails; or both results and the assertion of equality."""
        if self.verdict.kind in RAISING:
            backward = self.loss()
            failing = f"{compiled}{backward}  # {raised_comment(self.verdict)}"
            calls = [f"{eager}{backward}  # eager is fine", *before, failing]
            return [*self.around(calls), *parts.waiting_lines(self.repro, self.verdict)]
        where = self.result_suffix()
        calls = self.around([f"eager = {eager}", *before, f"compiled = {compiled}"])
        return [*calls, assertion(self._compared(), f"compiled{where}", f"eager{where}")]

    def _two_runs(self, call: str, compiled: str) -> Part:
        """Return a function that recreates everything and returns what is compared, and two calls of it."""
        raising = self.verdict.kind in RAISING
        lines = [*self.before_inputs(), *self.input_lines(), *self.seed()]
        returned, backward = "" if raising else self.observed(), self.loss()
        if backward:
            lines += [*self.around([f"out = {call}"]), f"out{backward}"]
        elif returned.startswith("out"):
            lines += self.around([f"return {call}{returned.removeprefix('out')}"])
        else:
            lines += self.around([call])
        if returned and (backward or not returned.startswith("out")):
            lines.append(f"return {returned}")
        body = [line for statement in lines for line in laid_out(statement, 1)]
        eager, compiled = f"run({self.fresh})", f"run({compiled})"
        if raising:
            calls = [f"{eager}  # eager is fine", f"{compiled}  # {raised_comment(self.verdict)}"]
            calls += parts.waiting_lines(self.repro, self.verdict)
        else:
            check = assertion(self._compared(), "compiled", "eager")
            calls = [f"eager = {eager}", f"compiled = {compiled}", check]
        return calls, [[f"def run({self.callee}):", *body]]

    def _missing_error(self, call: str, compiled: str) -> Part:
        """Return a function that returns the error that a call raises, and an assertion on both sides."""
        tried = ["try:", *indented(self.around([call]))]
        tried += ["except Exception as error:", "    return type(error).__name__", 'return "nothing"']
        asked = [
            f"eager, compiled = raises({self.fresh}), raises({compiled})",
            'assert compiled == eager, f"eager raises {eager}, compiled raises {compiled}"',
        ]
        return [*self.input_lines(), *asked], [[f"def raises({self.callee}):", *indented(tried)]]

    @cached_property
    def _given(self) -> str:
        """The arguments of `torch.compile` after the function."""
        compiler = self.repro.compiler
        if self.written:
            compiler = parts.with_code_options(self.written[1].compiler, self.written[0].settings)
        return parts.compile_arguments(compiler, dynamic=bool(self.repro.symbols) and not self._marks)

    def _ahead_of_time(self, arguments: str) -> tuple[list[str], str]:
        """Return the lines that export and compile, and the call."""
        if self.repro.symbols:
            raise Unwritable("an exported program with dynamic sizes")
        self.modules.add(INDUCTOR)
        exported = f"program = torch.export.export(model, ({arguments}{',' if arguments else ''}))"
        return [exported, f"package = {COMPILE_AHEAD}(program)"], f"{LOAD_PACKAGE}(package)({arguments})"

    @cached_property
    def leaf(self) -> LeafComparison:
        leaf = worst_leaf(self.verdict)
        if leaf is None:
            raise Unwritable(f"a verdict without a comparison ({self.verdict.kind.value})")
        return leaf

    def _compared(self) -> Compared:
        dtype = self.compared_dtype()
        numbers = dtype is None or dtype.is_floating_point or dtype.is_complex
        return Compared(
            self.leaf,
            dtype=dtype,
            not_numbers=numbers and self.may_be_nan(),
            strict=self.repro.strict,
            tolerance=self.repro.tolerance,
        )

    def may_be_nan(self) -> bool:
        """Return whether both results may contain NaN: eager's does, or some input is not finite."""
        exact = self.exact and self.repro.place is not Place.BEFORE_CAPTURE
        if exact or "nan" in f"{self.leaf.ref_value}{self.leaf.truth_value}":
            return True
        return any(
            not bool(tensor.detach().float().isfinite().all())
            for _, tensor in tensors_in(list(self.repro.inputs))
            if tensor.dtype.is_floating_point and tensor.layout is torch.strided
        )

    # What differs for a call of the user's code (`candidates.py`).

    def call_of(self, function: str, arguments: str) -> str:
        """Return the call of a function with these arguments."""
        return f"{function}({arguments})"

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
            node.op == "get_attr" and isinstance(attrgetter(node.target)(self.repro.graph), torch.Tensor)
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
            inductor_decompositions() if lowered else {},
            self.modules,
            frozenset(
                entry.op.partition(".")[0]
                for entry in self.operators.entries
                if entry.in_source or entry.library or is_installed_module(entry.module or "__main__")
            ),
        )
        owner = "self" if self.is_module else ""
        return BodyWriter(repro.graph, speller, sizes=sizes_of_inputs(repro.graph), owner=owner).write()

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
    def written(self) -> tuple[GraphText, Repro] | None:
        """The repro as the script finds it: a backend and passes of the user are taken along as source."""
        own = ":" in self.repro.compiler.name or self.repro.compiler.function is not None
        return write_with_source(self.repro) if own or code_settings(self.repro) else None

    def _source(self) -> list[str]:
        lines = self._code_of_the_user() if self.written else []
        registering = operator_lines(self.operators, self.modules)
        return [*lines, *(["", ""] if lines and registering else []), *registering]

    def _code_of_the_user(self) -> list[str]:
        """Return the functions of the user with all that they need, and the settings that they are."""
        assert self.written is not None
        written = self.written[0]
        lines = source_lines(written, self.inputs, self.modules) if written.source else []
        applied = parts.user_setting_lines(written.settings, self.modules)
        return [*lines, *(["", ""] if lines and applied else []), *applied]

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
            value = attrgetter(path)(self.repro.graph)
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
        if self.verdict.kind is Kind.COMPILE_ERROR and not self.exact:
            return not self.repro.earlier  # what a call leaves behind hardly changes how the next compiles
        gradients = self._runs_backward and self.verdict.kind not in RAISING
        changes = bool(self.traced.mutated) or self.traced.random or bool(self.repro.earlier)
        return not (gradients or changes or self._where.part in ("inputs", "state", "grad"))

    def around(self, calls: Sequence[str]) -> list[str]:
        after_aot = self.repro.place is Place.AFTER_AOT
        return list(calls) if after_aot else parts.within(parts.contexts(self.repro.ambient), calls)

    # Inputs and seed.

    @cached_property
    def placeholders(self) -> list[Node]:
        return [node for node in self.repro.graph.graph.nodes if node.op == "placeholder"]

    def _value_of(self, node: Node) -> Any:
        """Return an input as the script makes it; after AOT, where autograd is done, detached."""
        value = self.repro.inputs[self.placeholders.index(node)]
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
        repro = self.repro
        if not repro.symbols or repro.compiler.dynamic is not None:
            return []
        parameters = self.body.parameters
        if any(not isinstance(value, torch.Tensor) for value in map(self._value_of, parameters)):
            return []  # a number among the inputs is dynamic only if everything is
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
        """Return the calls that came before the failing one."""
        lines = []
        for inputs in self.repro.earlier:
            given = dict(zip(self.placeholders, inputs, strict=False))
            texts = [self._earlier_value(name, given[node]) for node, name in self.body.parameters.items()]
            lines += self.around([f"{self.callee}({', '.join(texts)})"])
        return lines

    def _earlier_value(self, name: str, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.inputs.expression(f"earlier_{name}{len(self.inputs.kept)}", value)
        return Inputs().add({name: value})[name]

    def seed(self) -> list[str]:
        """Return lines that make both sides draw the same random numbers."""
        if not self.traced.random:
            return []
        asked = "fallback_random" in self.repro.compiler.options
        chosen = asked or DRAW_AS_EAGER.partition("  #")[0] in self.settings
        if self.repro.compiler.name == "inductor" and not chosen:
            self.settings.append(DRAW_AS_EAGER)
        state = self.repro.ambient.rng.get("cpu")
        if not self.exact or state is None:
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
        if not self.exact or tensor.is_complex():
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
            name = self.body.parameters.get(self.placeholders[where.input])
            if name is None:
                raise Unwritable("an input that the graph does not use")
            return f"{name}{where.rest}{end}"
        if where.part in ("grad", "state") and where.name and not where.rest:
            known = {place: name for name, place in self.body.state.items()}
            return f"model.{known.get(where.name, where.name)}{end}"
        return f"out{self.result_suffix()}"

    def compared_dtype(self) -> torch.dtype | None:
        """Return the dtype of what is compared; an input and its gradient have the same one."""
        if self._where.input is not None:
            value = self.repro.inputs[self._where.input]
            return value.dtype if isinstance(value, torch.Tensor) else None
        tensor = dict(tensors_in(self.traced.output, "out")).get(str(self._where))
        return None if tensor is None else tensor.dtype
