"""All ways to write a minimal repro as a script, from the most hand-written one to the last resort.

The last resort is the bundle's own standalone script (`standalone.py`), for what cannot be written by hand or
does not fail then: it keeps every value in files and the graph as it was captured.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from torchrepro.bundle.read import OPERATORS, SCRIPT, TENSORS, VALUES
from torchrepro.bundle.user_calls import CALLEE, callee_of
from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.document import Script
from torchrepro.script.expressions import Text, Unwritable, Writer
from torchrepro.script.graph_script import RAISING, GraphScript
from torchrepro.script.inputs import sizes_of_inputs
from torchrepro.script.names import names_of_inputs
from torchrepro.script.probe_script import ProbeScript
from torchrepro.script.save_bundle import bundle_members
from torchrepro.user_code.graph_source import write_with_source


def each_script(repro: Repro, verdict: Verdict) -> Iterator[Script]:
    """Yield the ways to write a failing repro, the one that a person would choose first; each text once.

    Nothing is run here but shapes: `engine/verify_script.py` checks whether a script fails as the repro does.
    Later ones are seldom needed.
    """
    writer: type[GraphScript] = ProbeScript if repro.probe is not None else GraphScript
    if repro.place is Place.BEFORE_CAPTURE:
        writer = CallScript
    seen: set[str] = set()
    reasons: list[str] = []
    for exact in (False, True):
        try:
            script = writer(repro, verdict, exact).script()
        except Unwritable as exc:
            reasons.append(str(exc))
            continue
        if script.text not in seen:
            seen.add(script.text)
            yield script
    try:
        yield bundle_script(repro, verdict, "" if seen else reasons[0])
    except TorchReproError:
        if not seen:
            raise


def first_script(repro: Repro, verdict: Verdict) -> Script:
    """Return the first candidate alone, which takes a fraction of the time of all."""
    return next(each_script(repro, verdict))


def bundle_script(repro: Repro, verdict: Verdict, reason: str = "") -> Script:
    """Return the standalone script of the bundle, with its files; `reason` says why it is needed."""
    expected = repro.expected or Signature.of(verdict)
    members = bundle_members(replace(repro, expected=expected), verdict, size_cap=1 << 62)
    files = {**members.files, **members.optional}
    text = files[SCRIPT]
    assert isinstance(text, bytes)
    side_files = {name: files[name] for name in (TENSORS, VALUES, OPERATORS) if name in files}
    remark = "the graph as it was captured, with its values in files"
    return Script(text.decode(), f"{remark}: {reason}" if reason else remark, side_files)


def input_names(repro: Repro) -> dict[int, str]:
    """Return the names of the inputs in the scripts, by index; those not used by the graph have none."""
    nodes = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    names = names_of_inputs(repro.graph, sizes_of_inputs(repro.graph))
    return {number: names[node] for number, node in enumerate(nodes) if node in names}


class CallScript(GraphScript):
    """Writes a whole call of the user's code: the function with all that it needs in place of a graph."""

    @cached_property
    def written(self) -> tuple[GraphText, Repro]:
        return write_with_source(self.repro)

    def definitions(self) -> list[list[str]]:
        return [self._code_of_the_user()]

    @cached_property
    def callee(self) -> str:
        if self.repro.probe is not None:
            raise Unwritable(f"what the probe {self.repro.probe.kind} has found in a whole call")
        target, text = self._call.target, self.written[0].text
        pattern = rf"self\.{CALLEE} = source\.(\w+)" if self._calls_around else r"\bsource\.(\w+)"
        names: set[str] = set(re.findall(pattern, text))
        if len(names) != 1:
            raise Unwritable(f"the function {target}")
        return names.pop()

    @cached_property
    def _calls_around(self) -> list[str]:
        """The user's functions around the call, by their names in the source text: `call`, `post` or both.

        Empty for a plain call.
        """
        nodes = self.repro.graph.graph.nodes
        if not any(node.op == "get_attr" and node.target == CALLEE for node in nodes):
            return []
        calls = re.findall(r"\bsource\.(\w+)\(", self.written[0].text)
        direct = any(node.target is operator.call for node in nodes)
        return ["" if direct else calls.pop(0), *calls]

    def call_of(self, function: str, arguments: str) -> str:
        if not self._calls_around:
            return super().call_of(function, arguments)
        call, *post = self._calls_around
        given = f"({arguments}{',' if len(self._given_arguments) == 1 else ''})"
        result = f"{call}({function}, {given})" if call else f"{function}({arguments})"
        return f"{post[0]}({self.callee}, {result}, {given})" if post else result

    @property
    def _given_arguments(self) -> Any:
        """The arguments of the function; `call` gets them as its second one."""
        if not self._calls_around:
            return self._call.args
        return self._call.args[1:] if self._call.target is operator.call else self._call.args[1]

    @cached_property
    def fresh(self) -> str:
        if not isinstance(callee_of(self.repro.graph), torch.nn.Module):
            return self.callee
        self.modules.add("copy")
        return f"copy.deepcopy({self.callee})"

    @property
    def is_plain_call(self) -> bool:
        return not self.exact

    @cached_property
    def _call(self) -> Node:
        nodes = [node for node in self.repro.graph.graph.nodes if node.op not in ("placeholder", "output")]
        if nodes[0].op == "get_attr" and nodes[0].target == CALLEE:
            around: Node = nodes[1]
            return around
        if len(nodes) != 1 or nodes[0].op == "get_attr":
            raise Unwritable("objects of the user among the arguments")
        found: Node = nodes[0]
        return found

    def arguments(self) -> str:
        if self.repro.earlier:
            raise Unwritable("calls that came before")
        plain = iter("xyzabcde")
        unnamed = re.compile(r"arg_\d+(_\d+)*|input_\d+")
        names = [
            next(plain, node.name) if unnamed.fullmatch(node.name) else node.name
            for node in self.placeholders
        ]
        if self.callee in names or len(set(names)) < len(names):
            names = [node.name for node in self.placeholders]
        self._names = list(self.inputs.add(dict(zip(names, self.repro.inputs, strict=True))).values())
        texts = dict(zip(self.placeholders, map(Text, self._names), strict=True))
        return Writer(texts).arguments(self._given_arguments, self._call.kwargs)

    def seed(self) -> list[str]:
        return []

    def loss(self) -> str:
        if self.verdict.kind not in RAISING and self.leaf.where.part != "grad":
            return ""
        asks = any(tensor.requires_grad for _, tensor in tensors_in(self.repro.inputs))
        return ".sum().backward()" if self.repro.backward is not False and asks else ""

    # What is compared.

    def result_suffix(self) -> str:
        if self.leaf.where.part != "out":
            raise Unwritable("a difference outside of the results")
        return self.leaf.path.removeprefix("out")

    def observed(self) -> str:
        where = self.leaf.where
        if where.input is not None and not where.rest:
            return self._names[where.input] + (".grad" if where.part == "grad" else "")
        if where.part == "out":
            return str(where)
        if self._global:
            return f"{self._global}{where.rest}"
        name = where.name.removeprefix("model.")
        if where.part in ("python", "state") and re.fullmatch(r"(?!closure|globals)[\w.]+", name):
            return f"{self.callee}.{name}{where.rest}"
        raise Unwritable(f"a difference in {where}")

    @property
    def _global(self) -> str:
        """The global variable that differs; empty where it is none."""
        scope, _, name = self.leaf.where.name.partition(".")
        found = self.leaf.where.part == "python" and scope == "globals" and name.isidentifier()
        return name if found else ""

    def before_inputs(self) -> list[str]:
        """Return the lines that reset a global to its value when the user's code was loaded.

        The object's identity is kept where possible: functions may hold it under other names.
        """
        if self.verdict.kind in RAISING or not self._global:
            return []
        name, source = self._global, self.written[0].source
        for statement in ast.parse(source).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
                value = ast.get_source_segment(source, statement.value)
                if isinstance(statement.value, ast.Dict):
                    return [f"{name}.clear()", f"{name}.update({value})"]
                if isinstance(statement.value, ast.List):
                    return [f"{name}[:] = {value}"]
                return [f"global {name}", f"{name} = {value}"]
        raise Unwritable(f"a side effect on {name}")

    def compared_dtype(self) -> torch.dtype | None:
        dtypes = {tensor.dtype for _, tensor in tensors_in(self.repro.inputs) if tensor.is_floating_point()}
        return next(iter(dtypes)) if len(dtypes) == 1 else None
