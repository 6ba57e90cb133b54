"""A whole call of the user's code as a script: the code itself, the call by `torch.compile`, an assertion."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch

from torchrepro.bundle.user_calls import call_in
from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.comparison import LeafComparison, LeafPath
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.assertions import Compared, assertion, raised_comment, sentence, worst_leaf
from torchrepro.script.document import Entry, Script, docstring, document, seen_with
from torchrepro.script.graph_script import errors_compared, raises_function
from torchrepro.script.inputs import Inputs
from torchrepro.script.layout import laid_out
from torchrepro.script.literals import Unwritable
from torchrepro.script.observed import may_be_nan
from torchrepro.script.plan import RAISING
from torchrepro.script.preamble import (
    compile_arguments,
    compiler_module,
    config_modules,
    contexts,
    environment_lines,
    setting_lines,
    within,
)
from torchrepro.script.tensors import Surroundings
from torchrepro.script.user_source import source_lines
from torchrepro.user_code.graph_source import write_with_source

Part = tuple[list[str], list[list[str]]]
"""The lines at the end of a script, and functions that they need."""


class CallManner(StrEnum):
    """How the two calls are kept apart."""

    PLAIN = "plain"
    """One after the other, as a person would try it."""
    APART = "apart"
    """Each on inputs of its own, with the state of the user's code as it was."""


def call_script(repro: Repro, verdict: Verdict, header: Sequence[str], manner: CallManner) -> Script:
    """The script in one manner; `Unwritable` where the call is not simple enough."""
    return _CallScript(repro, verdict, header, manner).script()


@dataclass(eq=False)
class _CallScript:
    repro: Repro
    verdict: Verdict
    header: Sequence[str]
    manner: CallManner

    def __post_init__(self) -> None:
        dtype = getattr(torch, self.repro.ambient.default_dtype)
        self.inputs = Inputs(Surroundings(default_dtype=dtype))
        self.settings = setting_lines(self.repro.ambient)
        self.modules: set[str] = set()

    def script(self) -> Script:
        source, modules = source_lines(self._written[0], self.inputs)
        self.modules |= modules
        statements, definitions = self._statements()
        if compiler_module(self.repro.compiler):
            self.modules.add(compiler_module(self.repro.compiler))
        self.modules |= config_modules(self.settings)
        text = document(
            docstring(sentence(self.repro.compiler, self.verdict), [seen_with(self.repro), *self.header]),
            environ=environment_lines(self.repro.ambient.environ),
            modules=self.modules | ({"Path"} if self.inputs.kept else set()),
            settings=self.settings,
            definitions=[*([source] if source else []), *definitions],
            statements=statements,
        )
        return Script(text, Entry.PUBLIC, side_files=self.inputs.side_files)

    @cached_property
    def _written(self) -> tuple[GraphText, Compiler]:
        return write_with_source(self.repro)

    # The call, taken from the text of the graph.

    @cached_property
    def _call(self) -> tuple[str, str]:
        """What is called, and the arguments with the names of the inputs in them."""
        tree = ast.parse(self._written[0].text)
        (graph,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
        (forward,) = (node for node in graph.body if isinstance(node, ast.FunctionDef))
        attributes = {
            ast.unparse(statement.targets[0]): ast.unparse(statement.value)
            for statement in graph.body
            if isinstance(statement, ast.Assign)
        }
        if len(forward.body) != 2 or not isinstance(forward.body[0], ast.Assign | ast.AnnAssign):
            raise Unwritable("objects of the user among the arguments")
        call = forward.body[0].value
        if not isinstance(call, ast.Call):
            raise Unwritable("something other than a call")
        function = ast.unparse(call.func)
        function = attributes.get(function, function)
        if not re.fullmatch(r"source\.\w+", function):
            raise Unwritable(f"the function {function}")
        arguments = [ast.unparse(argument) for argument in call.args]
        arguments += [f"{item.arg}={ast.unparse(item.value)}" for item in call.keywords]
        return function.removeprefix("source."), ", ".join(arguments)

    def _arguments(self) -> str:
        function, text = self._call
        nodes = [node for node in self.repro.graph.graph.nodes if node.op == "placeholder"]
        names = {node.name: node.name for node in nodes}
        plain = iter("xyzabcde")
        for name in names:
            if re.fullmatch(r"arg_\d+(_\d+)*|input_\d+", name):
                names[name] = next(plain, name)
        if function in names.values() or len(set(names.values())) < len(names):
            names = {name: name for name in names}
        values = {names[node.name]: value for node, value in zip(nodes, self.repro.inputs, strict=True)}
        made = self.inputs.add(values)
        passed = {node.name: made[names[node.name]] for node in nodes}
        self._names = list(passed.values())
        return re.sub(r"\b[A-Za-z_]\w*\b(?!=)", lambda found: passed.get(found[0], found[0]), text)

    # The statements.

    def _statements(self) -> Part:
        function, arguments = self._call[0], self._arguments()
        if self.repro.earlier:
            raise Unwritable("calls that came before")
        given = compile_arguments(self._written[1], dynamic=False)
        compiled = f"torch.compile({function}{given})"
        kind = self.verdict.kind
        if kind in RAISING and self.manner is CallManner.PLAIN:
            backward = self._backward()
            calls = [f"{function}({arguments}){backward}  # eager is fine"]
            calls.append(f"{compiled}({arguments}){backward}  # {raised_comment(self.verdict)}")
            return [*self.inputs.lines, *self._around(calls)], []
        if kind is Kind.MISSING_ERROR:
            return self._missing_error(function, compiled, arguments)
        if self.manner is CallManner.PLAIN:
            return self._plain(function, compiled, arguments), []
        return self._two_runs(function, given, arguments)

    def _plain(self, function: str, compiled: str, arguments: str) -> list[str]:
        path = self._leaf.path
        if self._leaf.where.part != "out":
            raise Unwritable("a difference outside of the results")
        calls = [f"eager = {function}({arguments})", f"compiled = {compiled}({arguments})"]
        where = path.removeprefix("out")
        check = assertion(self._compared, f"compiled{where}", f"eager{where}")
        return [*self.inputs.lines, *self._around(calls), check]

    def _two_runs(self, function: str, given: str, arguments: str) -> Part:
        """A function that puts everything back, makes the inputs anew and returns what is compared."""
        raising = self.verdict.kind in RAISING
        before, after, seen = ([], [], "") if raising else self._observed(function, self._leaf.where)
        call = f"{function}({arguments})"
        lines = [*before, *self.inputs.lines]
        if seen.startswith("out") and not after:
            lines += self._around([f"return {call}{seen.removeprefix('out')}"])
        else:
            lines += [*self._around([f"out = {call}" if after else call]), *after]
            lines += [f"return {seen}"] if seen else []
        body = [line for statement in lines for line in laid_out(statement, 1)]
        made = function
        if isinstance(call_in(self.repro.graph, self.repro.inputs).function, torch.nn.Module):
            self.modules.add("copy")
            made = f"copy.deepcopy({function})"
        eager, compiled = f"run({made})", f"run(torch.compile({made}{given}))"
        if raising:
            calls = [f"{eager}  # eager is fine", f"{compiled}  # {raised_comment(self.verdict)}"]
        else:
            check = assertion(self._compared, "compiled", "eager")
            calls = [f"eager = {eager}", f"compiled = {compiled}", check]
        return calls, [[f"def run({function}):", *body]]

    def _observed(self, function: str, where: LeafPath) -> tuple[list[str], list[str], str]:
        """Lines before the call, lines after it, and the expression of what is compared."""
        if where.input is not None and not where.rest:
            given = self._names[where.input]
            if where.part == "grad":
                return [], [f"out{self._backward()}"], f"{given}.grad"
            return [], [], given
        if where.part == "out":
            return [], [], str(where)
        scope, _, name = where.name.partition(".")
        if where.part == "python" and scope == "globals" and name.isidentifier():
            return self._put_back(name), [], f"{name}{where.rest}"
        name = where.name.removeprefix("model.")
        if where.part in ("python", "state") and re.fullmatch(r"(?!closure|globals)[\w.]+", name):
            return [], [], f"{function}.{name}{where.rest}"
        raise Unwritable(f"a difference in {where}")

    def _put_back(self, name: str) -> list[str]:
        """Lines that put a global back as it was when the user's code was loaded.

        The object stays the same one where it can: functions may hold it by other names.
        """
        source = self._written[0].source
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
                value = ast.get_source_segment(source, statement.value)
                if isinstance(statement.value, ast.Dict):
                    return [f"{name}.clear()", f"{name}.update({value})"]
                if isinstance(statement.value, ast.List):
                    return [f"{name}[:] = {value}"]
                return [f"global {name}", f"{name} = {value}"]
        raise Unwritable(f"a side effect on {name}")

    def _missing_error(self, function: str, compiled: str, arguments: str) -> Part:
        call = self._around([f"function({arguments})"])
        return [*self.inputs.lines, *errors_compared(function, compiled)], [raises_function("function", call)]

    def _around(self, calls: Sequence[str]) -> list[str]:
        return within(contexts(self.repro.ambient), calls)

    def _backward(self) -> str:
        asked = self.repro.backward is not False and any(
            tensor.requires_grad for _, tensor in tensors_in(self.repro.inputs)
        )
        return ".sum().backward()" if asked else ""

    @cached_property
    def _leaf(self) -> LeafComparison:
        leaf = worst_leaf(self.verdict)
        if leaf is None:
            raise Unwritable(f"a verdict without a comparison ({self.verdict.kind.value})")
        return leaf

    @cached_property
    def _compared(self) -> Compared:
        dtypes = {tensor.dtype for _, tensor in tensors_in(self.repro.inputs) if tensor.is_floating_point()}
        return Compared(
            self._leaf,
            dtype=next(iter(dtypes)) if len(dtypes) == 1 else None,
            not_numbers=may_be_nan(self._leaf, self.repro.inputs),
            strict=self.repro.strict,
            tolerance=self.repro.tolerance,
        )
