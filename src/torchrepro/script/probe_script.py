"""What a probe has found, as a script: a call again, after another one, at another size, more often."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.nouns.probe import Probe
from torchrepro.nouns.verdict import Kind
from torchrepro.script.assertions import assertion
from torchrepro.script.expressions import Unwritable
from torchrepro.script.graph_script import GraphScript, Part
from torchrepro.script.layout import indented
from torchrepro.state.other_sizes import resized_symbols, resized_together
from torchrepro.torch_api.inductor import CHOICES
from torchrepro.torch_api.names import DYNAMO

_EXACTLY = "rtol=0, atol=0, equal_nan=True"
_CALLS = 4


class ProbeScript(GraphScript):
    """Writes a graph whose calls leave nothing behind; every other one is left to torchrepro itself."""

    def _statements(self) -> Part:
        probe = self.repro.probe
        assert probe is not None, "the caller asks"
        writers: dict[Kind, Callable[[Probe, str], list[str]]] = {
            Kind.SIZES: self._sizes,
            Kind.REPEAT: self._repeat,
            Kind.RECOMPILE: self._recompile,
            Kind.HOLD: self._hold,
            Kind.THREADS: self._threads,
            Kind.SLOW: self._slow,
        }
        if probe.kind not in writers or not self.is_plain_call:
            raise Unwritable(f"what the probe {probe.kind} has found")
        call = self.call_of("compiled", self.arguments())
        before = [*self.made, *self.input_lines()]
        lines = writers[probe.kind](probe, call)
        return [*before, *self.around(lines)], []

    @property
    def _compiling(self) -> str:
        return f"compiled = torch.compile({self.callee}{self._given})"

    def _agrees(self, arguments: str) -> list[str]:
        """Return the lines that compare a call with eager; the call alone where it raises."""
        call = self.call_of("compiled", arguments)
        if self.verdict.comparison is None:
            return [call]
        where = self.result_suffix()
        eager = self.call_of(self.callee, arguments)
        return [assertion(self._compared(), f"{call}{where}", f"{eager}{where}")]

    @property
    def _result(self) -> str:
        """The place of a result in what the call returns; the values of a probe are of several calls."""
        return next(iter(self.body.results.values()), "").removeprefix("out")

    def _repeat(self, probe: Probe, call: str) -> list[str]:
        check = f"torch.testing.assert_close({call}{self._result}, first, {_EXACTLY})"
        first = f"first = {call}{self._result}.clone()"
        return [self._compiling, first, "for _ in range(6):", *indented([check])]

    def _hold(self, probe: Probe, call: str) -> list[str]:
        others = ", ".join(
            f"0.5 - {name}" if isinstance(value, torch.Tensor) and value.is_floating_point() else name
            for name, value in self._named_inputs().items()
        )
        kept = [f"kept = {call}{self._result}", "before = kept.clone()"]
        later = ["for _ in range(3):", *indented([self.call_of("compiled", others)])]
        return [
            self._compiling,
            *kept,
            *later,
            f"torch.testing.assert_close(kept, before, {_EXACTLY})",
        ]

    def _threads(self, probe: Probe, call: str) -> list[str]:
        name = probe.tries[0] if probe.tries else "1"
        count = name.removeprefix("run-")
        if not count.isdecimal():
            raise Unwritable(f"a number of threads called {name}")
        compiled_before = [call] if name != count else []
        arguments = self.arguments()
        return [
            self._compiling,
            *compiled_before,
            f"torch.set_num_threads({int(count)})",
            *self._agrees(arguments),
        ]

    def _recompile(self, probe: Probe, call: str) -> list[str]:
        settings = CHOICES.get(probe.tries[0] if probe.tries else "", {})
        arguments = self.arguments()
        if not settings:
            again = [call, f"{DYNAMO}.reset()", self._compiling]
            return [self._compiling, *again, *self._agrees(arguments)]
        if self.repro.compiler.options or self.repro.compiler.mode:
            raise Unwritable("a choice on top of the user's own options")
        return [f"compiled = torch.compile({self.callee}, options={settings!r})", *self._agrees(arguments)]

    def _sizes(self, probe: Probe, call: str) -> list[str]:
        if self.repro.symbols:
            variants = resized_symbols(self.repro)
            compiling = self._compiling
        else:
            variants = resized_together(self.repro.inputs)
            compiling = self._compiling.removesuffix(")") + ", dynamic=True)"
        lines = [compiling, call]
        for variant in variants:
            if str(variant.size) not in probe.tries:
                continue
            named = {
                f"{name}_{variant.size}": value for name, value in self._named_inputs(variant.inputs).items()
            }
            lines += [f"{name} = {self._expression(name, value)}" for name, value in named.items()]
            lines += self._agrees(", ".join(named))
        return lines

    def _named_inputs(self, inputs: tuple[Any, ...] | None = None) -> dict[str, Any]:
        """Return the inputs that the function takes, by their names in the script."""
        given = dict(zip(self.placeholders, inputs or self.repro.inputs, strict=False))
        return {name: given[node] for node, name in self.body.parameters.items()}

    def _expression(self, name: str, value: Any) -> str:
        return (
            self.inputs.expression(name, value.detach()) if isinstance(value, torch.Tensor) else repr(value)
        )

    def _slow(self, probe: Probe, call: str) -> list[str]:
        if probe.against is not None:
            raise Unwritable("the time of two compilers")
        self.modules.add("from timeit import repeat")
        eager = self.call_of(self.callee, self.arguments())
        threshold = probe.threshold or 1.5
        times = f"min(repeat(lambda: {call}, number=1, repeat=50))"
        eagers = f"min(repeat(lambda: {eager}, number=1, repeat=50))"
        return [self._compiling, call, eager, f"assert {times} < {threshold:g} * {eagers}"]
