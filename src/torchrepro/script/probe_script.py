"""What a probe has found, as a script: a call again, after another one, at another size, more often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import torch

from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.probe import COSTS, FILL, FILLED, FILLS, MORE, TRACED, Probe
from torchrepro.nouns.repro import Compiler, Place
from torchrepro.nouns.verdict import Kind
from torchrepro.script import document as parts
from torchrepro.script.assertions import assertion
from torchrepro.script.expressions import Unwritable
from torchrepro.script.graph_script import GraphScript, Part
from torchrepro.script.layout import indented
from torchrepro.state.fake_run import run_on_fakes
from torchrepro.state.other_sizes import resized_symbols, resized_together, ways_to_cut
from torchrepro.torch_api.inductor import CHOICES
from torchrepro.torch_api.names import DYNAMO, INDUCTOR_CONFIG, INDUCTOR_UTILS

_EXACTLY = "rtol=0, atol=0, equal_nan=True"
_NO_CACHES = f"{INDUCTOR_CONFIG}.force_disable_caches = True"
_PEAK = """\
def peak(call):
    \"\"\"Return the most bytes that tensors of a call take at a time.\"\"\"
    call()
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    with TemporaryDirectory() as directory:
        path = Path(directory, "trace.json")
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    return max(accumulate(size for _, size in changes), default=0)"""
_PEAK_ON_CUDA = """\
def peak(call):
    \"\"\"Return the most bytes that tensors of a call take at a time.\"\"\"
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before"""
_WORK = """\
def work(**options):
    \"\"\"Return the seconds of CPU time that it takes to compile and to call once.\"\"\"
    {dynamo}.reset()
    {utilities}.clear_caches()
    began = process_time()
    {call}
    return process_time() - began"""


class ProbeScript(GraphScript):
    """Writes a graph whose calls leave nothing behind, or whose costs count; else torchrepro is needed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._functions: list[list[str]] = []

    def _statements(self) -> Part:
        probe = self.repro.probe
        assert probe is not None, "the caller asks"
        writers: dict[Kind, Callable[[Probe, str], list[str]]] = {
            Kind.SIZES: self._sizes,
            Kind.REPEAT: self._repeat,
            Kind.RECOMPILE: self._recompile,
            Kind.BATCH: self._batch,
            Kind.CACHE: self._cache,
            Kind.HOLD: self._hold,
            Kind.THREADS: self._threads,
            Kind.SLOW: self._slow,
            Kind.FAT: self._fat,
            Kind.SLOW_COMPILE: self._slow_compile,
        }
        if not (self.is_plain_call or probe.kind in COSTS):
            raise Unwritable(f"what the probe {probe.kind} has found in a call that leaves something behind")
        call = self.call_of("compiled", self.arguments())
        before = [*self.made, *self.input_lines()]
        lines = writers[probe.kind](probe, call)
        return [*before, *self.around(lines)], self._functions

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
        if FILLED not in probe.tries:
            return [self._compiling, first, "for _ in range(6):", *indented([check])]
        self.modules.add("ctypes")
        filling = f"ctypes.CDLL(None).mallopt({FILL}, byte)  # M_PERTURB: fill memory that is handed out"
        return [self._compiling, first, f"for byte in {FILLS!r}:", *indented([filling, check])]

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
            self.settings.append(_NO_CACHES)
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

    def _batch(self, probe: Probe, call: str) -> list[str]:
        """Cut the row in the first way that fits the shapes; in the last one, if that did not fail."""
        sizes = (tensor.shape[0] for tensor in self._results() if tensor.dim())
        size = next((size for size in sizes if size > 1), 0)
        number = size - 1 if "last" in probe.tries else 0
        ways = (row_of(number) for row_of in ways_to_cut(self.repro, size))
        fitting = [row for row in ways if run_on_fakes(row, user_code=True).complete]
        if not fitting:
            raise Unwritable("how a row is cut out of the batch")
        row = fitting[-1 if self.exact else 0]
        names, lines = [], []
        for (name, value), (_, cut) in zip(
            self._named_inputs().items(), self._named_inputs(row.inputs).items(), strict=True
        ):
            names.append(name if value is cut else f"{name}_row")
            if value is not cut:
                is_row = isinstance(cut, torch.Tensor) and value.shape == (size, *cut.shape[1:])
                text = f"{name}[{number}:{number + 1}].clone()" if is_row else self._expression(name, cut)
                lines.append(f"{name}_row = {text}")
        compiling = f"compiled = torch.compile({self.callee}{self._given_for(row.compiler)})"
        return [*lines, compiling, *self._agrees(", ".join(names))]

    def _results(self) -> list[torch.Tensor]:
        return [tensor for _, tensor in tensors_in(self.traced.output)]

    def _cache(self, probe: Probe, call: str) -> list[str]:
        self.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
        self.modules.add(INDUCTOR_UTILS)
        again = [f"{DYNAMO}.reset()", f"{INDUCTOR_UTILS}.clear_caches()", self._compiling]
        inside = [self._compiling, f"{call}  # fills the cache", *again, *self._agrees(self.arguments())]
        return [f"with {INDUCTOR_UTILS}.fresh_cache():", *indented(inside)]

    # Costs.

    def _given_for(self, compiler: Compiler) -> str:
        return parts.compile_arguments(compiler, dynamic=bool(self.repro.symbols))

    @cached_property
    def _runs_backward(self) -> bool:
        """Costs are those of backward too; where values are compared, the place of the difference tells."""
        if self.repro.probe is None or self.repro.probe.kind not in COSTS:
            return super()._runs_backward
        if self.repro.place is Place.AFTER_AOT or self.repro.backward is False:
            return False
        return any(tensor.requires_grad for tensor in self._results())

    def _both(self, probe: Probe) -> tuple[list[str], str, str]:
        """Return the lines that compile, and the calls whose costs are compared."""
        arguments, loss = self.arguments(), self.loss()
        lines, baseline = [self._compiling], self.callee
        if probe.against is not None:
            given, baseline = self._given_for(probe.against), "other"
            lines.append(f"other = torch.compile({self.callee}{given})")
        compiled, other = (f"{self.call_of(name, arguments)}{loss}" for name in ("compiled", baseline))
        return lines, compiled, other

    def _slow(self, probe: Probe, call: str) -> list[str]:
        self.modules.add("from timeit import repeat")
        compiling, compiled, baseline = self._both(probe)
        times = (f"min(repeat(lambda: {each}, number=1, repeat=50))" for each in (compiled, baseline))
        return [*compiling, compiled, baseline, *self._compared_costs(probe, times)]

    def _fat(self, probe: Probe, call: str) -> list[str]:
        compiling, *calls = self._both(probe)
        on_cuda = any(tensor.is_cuda for _, tensor in tensors_in(self.repro.inputs))
        if not on_cuda:
            self.modules |= {"json", "Path", "from itertools import accumulate"}
            self.modules.add("from tempfile import TemporaryDirectory")
        self._functions.append((_PEAK_ON_CUDA if on_cuda else _PEAK).splitlines())
        return [*compiling, *self._compared_costs(probe, (f"peak(lambda: {each})" for each in calls))]

    def _slow_compile(self, probe: Probe, call: str) -> list[str]:
        self.modules |= {INDUCTOR_UTILS, "from time import process_time"}
        self.settings.append(_NO_CACHES)
        called = self.call_of(f"torch.compile({self.callee}, **options)", self.arguments())
        body = _WORK.format(dynamo=DYNAMO, utilities=INDUCTOR_UTILS, call=f"{called}{self.loss()}")
        self._functions.append(body.splitlines())
        givens = (self._given, self._given_for(probe.against or TRACED))
        works = (f"min(work({given.removeprefix(', ')}) for _ in range(3))" for given in givens)
        return self._compared_costs(probe, works)

    def _compared_costs(self, probe: Probe, costs: Iterable[str]) -> list[str]:
        """Return the lines that measure both costs, and grant what the probe does."""
        own, other = costs
        granted = f"max({probe.granted:g} * baseline, baseline + {MORE[probe.kind]!r})"
        return [f"cost = {own}", f"baseline = {other}", f"assert cost <= {granted}, (cost, baseline)"]
