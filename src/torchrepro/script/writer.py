"""What hand-written scripts have in common: an eager call, a compiled call, and an assertion that fails."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch

from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, LeafComparison, Verdict
from torchrepro.script.assertions import Compared, assertion, raised_comment, sentence, worst_leaf
from torchrepro.script.document import (
    Entry,
    Script,
    compiler_module,
    config_modules,
    contexts,
    docstring,
    document,
    environment_lines,
    seen_with,
    setting_lines,
    within,
)
from torchrepro.script.expressions import Unwritable
from torchrepro.script.inputs import Inputs
from torchrepro.script.layout import indented, laid_out
from torchrepro.script.tensors import Surroundings
from torchrepro.user_code.graph_source import SOURCE_PREFIX

RAISING = (Kind.COMPILE_ERROR, Kind.RUN_ERROR, Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
"""Failures that the call itself shows: nothing is compared."""

_TENSOR = re.compile(r"""_tensor\(['"](?P<name>\w+)['"]\)""")
_SIMPLE = re.compile(r"import [\w.]+")
_IMPLIED = {"torch", "from __future__ import annotations"}
_INLINE = 40
"""A tensor of the user's code that is longer than this in text goes to the file."""

Part = tuple[list[str], list[list[str]]]
"""The lines at the end of a script, and functions that they need."""


class Manner(StrEnum):
    """How much of the way in which the failure was seen a script keeps."""

    PLAIN = "plain"
    """What a person would write: a sum as the loss, a small seed, one call after the other."""
    EXACT = "exact"
    """As it was judged: the judge's loss, the recorded random state, each call on state of its own."""
    OPERATORS = "operators"
    """As it was judged, and every operator by its own name."""
    INTERNAL = "internal"
    """Handed to the compiler directly (pytorch#198131 shows nowhere else)."""


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """Lines that come first, and the call; `function` is empty where only the call as a whole compiles."""

    call: str
    function: str = ""
    lines: tuple[str, ...] = ()


@dataclass(eq=False)
class ScriptWriter(ABC):
    """Writes one repro in one manner; what is to be imported and set grows on the way."""

    repro: Repro
    verdict: Verdict
    header: Sequence[str]
    manner: Manner

    def __post_init__(self) -> None:
        self.inputs = Inputs(Surroundings(default_dtype=getattr(torch, self.repro.ambient.default_dtype)))
        self.settings = setting_lines(self.repro.ambient)
        self.modules: set[str] = set()

    def script(self) -> Script:
        """Return the script; `Unwritable` where there is none in this manner."""
        definitions = self.definitions()
        statements, functions = self._statements()
        self.modules |= config_modules(self.settings) | ({compiler_module(self.repro.compiler)} - {""})
        text = document(
            docstring(sentence(self.repro.compiler, self.verdict), [seen_with(self.repro), *self.header]),
            environ=environment_lines(self.repro.ambient.environ),
            modules=self.modules | ({"Path"} if self.inputs.kept else set()),
            settings=self.settings,
            definitions=[*(block for block in definitions if block), *functions],
            statements=statements,
        )
        internal = "torch.compile does not show it, only inductor's own entry point"
        remark = internal if self.manner is Manner.INTERNAL else ""
        return Script(text, self.entry, remark, self.inputs.side_files)

    # What the kinds of scripts differ in.

    @property
    def entry(self) -> Entry:
        return Entry.PUBLIC

    @property
    def made(self) -> list[str]:
        """Lines that make what is called."""
        return []

    @abstractmethod
    def definitions(self) -> list[list[str]]:
        """The user's code, and what is called."""

    @property
    @abstractmethod
    def callee(self) -> str:
        """The name of what is called."""

    @property
    @abstractmethod
    def fresh(self) -> str:
        """An expression of what is called, with state of its own."""

    @property
    @abstractmethod
    def is_plain_call(self) -> bool:
        """Whether the two calls can follow one another."""

    @abstractmethod
    def arguments(self) -> str:
        """Make the inputs and return the arguments of both calls."""

    @abstractmethod
    def compiled(self, arguments: str) -> CompiledCall:
        """How the compiled function is called."""

    @abstractmethod
    def loss(self) -> str:
        """What is appended to the outputs to run backward through them; empty where nothing does."""

    @abstractmethod
    def result_suffix(self) -> str:
        """What is appended to the outputs to reach the one that differs."""

    @abstractmethod
    def observed(self) -> str:
        """The expression of what is compared, where the outputs are called `out`."""

    @abstractmethod
    def compared_dtype(self) -> torch.dtype | None:
        """The dtype of what is compared, where it is known."""

    def before_inputs(self) -> list[str]:
        """Lines at the start of a run of its own."""
        return []

    def input_lines(self) -> list[str]:
        return self.inputs.lines

    def seed(self) -> list[str]:
        return []

    def around(self, calls: Sequence[str]) -> list[str]:
        return within(contexts(self.repro.ambient), calls)

    # The statements.

    def _statements(self) -> Part:
        arguments = self.arguments()
        compiled, kind = self.compiled(arguments), self.verdict.kind
        if kind is not Kind.MISSING_ERROR and self.is_plain_call:
            write = self._raising if kind in RAISING else self._differing
            calls = write(arguments, compiled)
            return [*self.made, *self.input_lines(), *calls], []
        if not compiled.function:
            raise Unwritable("a call that changes its inputs, with the compiler called directly")
        if kind is Kind.MISSING_ERROR:
            return self._missing_error(arguments, compiled.function)
        return self._two_runs(arguments, compiled.function)

    def _raising(self, arguments: str, compiled: CompiledCall) -> list[str]:
        """The call in eager, and the call that fails."""
        backward = self.loss()
        eager = f"{self.callee}({arguments}){backward}  # eager is fine"
        failing = f"{compiled.call}{backward}  # {raised_comment(self.verdict)}"
        return self.around([eager, *compiled.lines, failing])

    def _differing(self, arguments: str, compiled: CompiledCall) -> list[str]:
        """Both results, and the assertion that they are the same."""
        where = self.result_suffix()
        calls = [f"eager = {self.callee}({arguments})", *compiled.lines, f"compiled = {compiled.call}"]
        return [*self.around(calls), assertion(self._compared(), f"compiled{where}", f"eager{where}")]

    def _two_runs(self, arguments: str, compiled: str) -> Part:
        """A function that recreates everything and returns what is compared, called twice."""
        raising = self.verdict.kind in RAISING
        call = f"{self.callee}({arguments})"
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
        else:
            check = assertion(self._compared(), "compiled", "eager")
            calls = [f"eager = {eager}", f"compiled = {compiled}", check]
        return calls, [[f"def run({self.callee}):", *body]]

    def _missing_error(self, arguments: str, compiled: str) -> Part:
        """A function that says which error a call raises, and the question to both sides."""
        call = self.around([f"{self.callee}({arguments})"])
        tried = ["try:", *indented(call), "except Exception as error:", "    return type(error).__name__"]
        asked = [
            f"eager, compiled = raises({self.fresh}), raises({compiled})",
            'assert compiled == eager, f"eager raises {eager}, compiled raises {compiled}"',
        ]
        function = [f"def raises({self.callee}):", *indented([*tried, 'return "nothing"'])]
        return [*self.input_lines(), *asked], [function]

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
        """Whether NaNs may stand in both results: eager has one, or something that is not finite goes in."""
        if "nan" in f"{self.leaf.ref_value}{self.leaf.truth_value}":
            return True
        return any(
            not bool(tensor.detach().float().isfinite().all())
            for _, tensor in tensors_in(list(self.repro.inputs))
            if tensor.dtype.is_floating_point and tensor.layout is torch.strided
        )

    # The user's own code.

    def source_lines(self, written: GraphText) -> list[str]:
        """The user's functions with all that they need, without their imports."""

        def tensor(found: re.Match[str]) -> str:
            value = written.constants[SOURCE_PREFIX + found["name"]]
            text = self.inputs.expression(found["name"], value.detach(), longest=_INLINE)
            if isinstance(value, torch.nn.Parameter):
                return parameter_text(text, value)
            return f"{text}.requires_grad_()" if value.requires_grad else text

        return [_TENSOR.sub(tensor, line) for line in self.without_imports(written.source)]

    def without_imports(self, source: str) -> list[str]:
        """The code below its first line, which says whose it is; its imports go to those of the script."""
        lines = source.rstrip().splitlines()
        lines[:1] = [""]
        for statement in reversed(ast.parse(source).body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                written = ast.unparse(statement)
                self.modules |= {
                    written.removeprefix("import ") if _SIMPLE.fullmatch(written) else written
                } - _IMPLIED
                del lines[statement.lineno - 1 : statement.end_lineno]
                # With the blank lines that stood around it.
                while statement.lineno - 1 < len(lines) and not lines[statement.lineno - 1]:
                    del lines[statement.lineno - 1]
        while lines and not lines[0]:
            del lines[0]
        return lines


def parameter_text(expression: str, value: torch.nn.Parameter) -> str:
    """The expression of a parameter on the tensor that another expression makes."""
    frozen = "" if value.requires_grad else ", requires_grad=False"
    return f"torch.nn.Parameter({expression}{frozen})"
