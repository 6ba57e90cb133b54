"""Repro: a graph, its real inputs, where it was taken, the compiler under test and the state around it.

Next to it: `Environment`, the machine on which something was seen; what a user of a bundle must trust; and
`ModelRequest`, a model of the user that is to be compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from torchrepro.nouns.contracts import OperatorChecks, blame
from torchrepro.nouns.verdict import Signature, Verdict

if TYPE_CHECKING:
    import torch

    from torchrepro.nouns.probe import Probe

# Read by torch or its compilers and safe to publish: an allow-list, so that no secret is included.
_TELLING_PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_LOGS", "TRITON_", "AOT_")
_TELLING_NAMES = frozenset(
    [
        "CXX",
        "CC",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "ATEN_CPU_CAPABILITY",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "PYTORCH_CUDA_ALLOC_CONF",
    ]
)
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIAL", "REMOTE", "REDIS", "URL")


@dataclass(frozen=True, slots=True)
class Autocast:
    """Mixed precision on one kind of device."""

    device: str
    dtype: str
    enabled: bool = True
    cache_enabled: bool = True


@dataclass(frozen=True, slots=True)
class Registered:
    """A function that the user has registered for an operator, and the arguments of the registration."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ambient:
    """What stood around the call. The defaults are torch's own; `rng` is empty where it was not kept."""

    grad_enabled: bool = True
    inference_mode: bool = False
    autocast: tuple[Autocast, ...] = ()
    default_dtype: str = "float32"
    matmul_precision: str = "highest"
    deterministic: str = "off"
    """`off`, `warn` or `error`: torch.use_deterministic_algorithms."""
    threads: int | None = None
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Non-default values of the compilers' configs, by module (dynamo, inductor, functorch). A value that is
    no data (a pass of the user) is the live object; a bundle keeps it as code (`UserSetting`)."""
    registered: Mapping[str, Mapping[str, Registered]] = field(default_factory=dict)
    """What the user has put into the compilers' tables (`lowerings`, `decompositions`), by operator."""
    left_out: tuple[str, ...] = ()
    """Settings that could be kept neither as data nor as code."""
    environ: Mapping[str, str] = field(default_factory=dict)
    rng: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Generator states by device."""

    @property
    def non_default(self) -> dict[str, Any]:
        """What differs from a fresh process, for a person to read."""
        plain = Ambient()
        shown = ("grad_enabled", "inference_mode", "default_dtype", "matmul_precision", "deterministic")
        found = {name: getattr(self, name) for name in shown if getattr(self, name) != getattr(plain, name)}
        for cast in self.autocast:
            found[f"autocast {cast.device}"] = cast.dtype if cast.enabled else "off"
        for module, values in (*self.configs.items(), *self.registered.items()):
            found.update({f"{module}.{name}": shown_setting(value) for name, value in values.items()})
        return found


def telling_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables that change what is compiled; never one that could hold a secret."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name in _TELLING_NAMES or name.startswith(_TELLING_PREFIXES))
        and not any(word in name for word in _SECRET_WORDS)
        and not name.endswith(("_DIR", "_PATH", "_FILE"))
    }


def portable_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that mean the same on another machine: those that name no program and no file."""
    return {
        name: value
        for name, value in environ.items()
        if name not in ("CC", "CXX") and "/" not in value and "\\" not in value
    }


def is_data(value: object) -> bool:
    """Return whether JSON gives the same value back."""
    if isinstance(value, (list, tuple)):
        return isinstance(value, list) and all(is_data(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_data(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


def name_of_code(value: object) -> str:
    """Return the name of a function, of a bound method, or of the class of any other object."""
    function = getattr(value, "func", value)  # of a partial
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__qualname__).removeprefix("<locals>.").rpartition("<locals>.")[2]


def shown_setting(value: object) -> object:
    """Return the value of a setting for a person to read: data as it is, code by its name."""
    if isinstance(value, list | tuple) and not is_data(value):
        return f"[{', '.join(str(shown_setting(item)) for item in value)}]"
    if isinstance(value, Registered):
        return name_of_code(value.function)
    return name_of_code(value) if callable(value) else value


@dataclass(frozen=True, slots=True)
class Origin:
    """A graph among those that capture made of a program."""

    number: int
    """From 0, in the order of compilation; a backward graph has the number of its forward."""
    seen: int
    """How many captured graphs there were when it was kept."""
    compilation: int = 0
    """How often the same code of the user had been compiled before: 0 unless it was compiled again."""
    backward: bool = False
    """Whether AOT made it for the gradients of graph `number`."""
    source: str = ""
    """Where it begins in the user's program: `model.py:12 in forward`."""

    def __str__(self) -> str:
        """Return `graph 1 of 3, compiled for the second time`."""
        of = f" of {self.seen}" if self.seen > 1 else ""
        whose = "backward of " if self.backward else ""
        again = f", compiled again ({self.compilation + 1}. time)" if self.compilation else ""
        return f"{whose}graph {self.number}{of}{again}"


SOURCE_TRUST = "source"
"""The word that trusts the source in a bundle (`--trust source`)."""
BUNDLE_TRUST = "bundle"
"""The word that runs a stranger's bundle without the sandbox (`--trust bundle`); it allows nothing else."""


class CustomOpEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator that does not come with torch, and what registers it."""

    op: str
    schema: str
    module: str = ""
    file: str = ""
    library: str = ""
    """A shared object that `torch.ops.load_library` loads."""
    in_source: bool = False
    """Whether `operators.py` of the bundle can register it."""
    lines: dict[str, str] = {}
    """Where its `kernel`, `fake` and `backward` are in the program: `fastops.py:11`."""


class UserSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """A setting of a compiler that is code of the user: a pass, a partitioner, a lowering."""

    table: str
    """`inductor`, `functorch` or `dynamo` for a config, `options` for an option of `torch.compile`,
    `lowerings` or `decompositions` for a table of operators."""
    name: str
    """The setting, or the operator."""
    shown: str = ""
    """What a person calls the code."""
    reference: str = ""
    """`package.module:name`, where an import finds it."""
    source: str = ""
    """Its name in the source text of the bundle; empty where it is not there."""
    arguments: dict[str, Any] = {}
    """Of the registration for an operator."""

    def __str__(self) -> str:
        return f"{self.table}.{self.name}"


class Place(StrEnum):
    """Where in the pipeline the graph was taken."""

    BEFORE_CAPTURE = "before_capture"
    """A whole call of the user's function or module: the graph is that one call (`bundle/user_calls.py`)."""
    AFTER_CAPTURE = "after_capture"
    """The captured graph and its example inputs, before AOT (`repro_after="dynamo"`)."""
    AFTER_AOT = "after_aot"
    """A forward, backward or inference graph as handed to the backend (`repro_after="aot"`)."""
    EXPORT = "export"
    """A graph of `torch.export`."""


class Frontend(StrEnum):
    """What captures Python into graphs."""

    DYNAMO = "dynamo"
    TORCHREPRO = "torchrepro"
    """Our own (`frontend/`): a second opinion on the capture stage."""


AOT_INDUCTOR = "aot_inductor"
"""No backend of `torch.compile`: compiles an exported program ahead of time, into a library on disk."""


@dataclass(frozen=True)
class Symbol:
    """A size that the compiler treats as unknown: its value when traced, and what it may be."""

    name: str
    hint: int | float | None = None
    lower: int | None = None
    upper: int | None = None
    unbacked: bool = False
    """Known only while the graph runs (`.item()`, `nonzero`): it has no hint."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler under test, by name: a registered backend or `package.module:function`."""

    name: str = "inductor"
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    fullgraph: bool = False
    recapture: bool = False
    """Hand a captured graph to `torch.compile`, to be captured once more, and not straight to the backend."""
    frontend: Frontend = Frontend.DYNAMO
    """What captures a model or a whole call."""
    function: Callable[..., Any] | None = None
    """The backend itself, where it is code of the user in this process; a bundle keeps its source."""

    def __str__(self) -> str:
        extras = [f"mode={self.mode}"] if self.mode else []
        extras += [
            f"{key}={value if callable(given) else repr(value)}"
            for key, given in self.options.items()
            for value in (shown_setting(given),)
        ]
        extras += [f"dynamic={self.dynamic}"] if self.dynamic is not None else []
        extras += [f"frontend={self.frontend}"] if self.frontend is not Frontend.DYNAMO else []
        return f"{self.name}({', '.join(extras)})" if extras else self.name


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """The process groups of a rank: one process can replace them by groups that talk to nobody."""

    rank: int
    size: int
    groups: Mapping[str, tuple[int, ...]]
    """The ranks of each group by name, the default group first."""


@dataclass(frozen=True, eq=False)
class Collective:
    """One collective of a call: what this rank gave and what was returned to it."""

    op: str
    """`all_reduce`, `all_gather_into_tensor`, ..."""
    arguments: tuple[Any, ...]
    """How to reduce, sizes: all but the tensor and the group."""
    given: torch.Tensor
    returned: torch.Tensor


@dataclass(frozen=True, eq=False)
class Repro:
    """A failing (or once failing) computation as data. Equality is identity: it holds tensors."""

    graph: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    place: Place = Place.AFTER_CAPTURE
    compiler: Compiler = field(default_factory=Compiler)
    ambient: Ambient = field(default_factory=Ambient)
    symbols: tuple[Symbol, ...] = ()
    """The symbols of a graph with dynamic shapes, with their hints."""
    backward: bool | None = None
    """Run backward as well? None: if an output asks for gradients."""
    strict: bool = False
    tolerance: float | None = None
    """How it was judged, where that was not by the default rule."""
    expected: Signature | None = None
    """The failure that was recorded, None for a repro that has not been judged."""
    earlier: tuple[tuple[Any, ...], ...] = ()
    """Inputs of the calls that came before on the same compiled function, where the failure needs them."""
    origin: Origin | None = None
    """Which of the graphs of a program it is, where that is known."""
    groups: ProcessGroups | None = None
    """The process groups of the rank, where the graph or its inputs need them."""
    collectives: tuple[Collective, ...] = ()
    """What the collectives of the call returned, in order, where that was recorded."""
    probe: Probe | None = None
    """What is asked instead of whether it agrees with eager (`execute/probes/`)."""
    notes: tuple[str, ...] = ()
    """What a reader must know: data that was not kept, objects that had to be left out."""
    stranger: bool = False
    """Whether it comes from a stranger's bundle: then what is saved of it is not signed as the user's own."""

    @property
    def ops(self) -> int:
        """Operations in the graph, nested graphs included: what `start_ops` and `ops` count."""
        return count_ops(self.graph)


def count_ops(graph: torch.fx.GraphModule) -> int:
    """Return the number of nodes that compute something: calls, in this graph and in those nested in it."""
    import torch

    own = sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
    nested = (child for child in graph.children() if isinstance(child, torch.fx.GraphModule))
    return own + sum(count_ops(child) for child in nested)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The user's function, the compiler under test, and how to run and judge."""

    target: str
    """`FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    compiler: Compiler = field(default_factory=Compiler)
    backward: bool | None = None
    """None: if an output asks for gradients."""
    amp: str | None = None
    device: str | None = None
    strict: bool = False
    tolerance: float | None = None
    check_stride: bool = False
    fp64: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    """The user's environment, as far as it matters to compilers: that of the judging process is another."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict on a user's model, and the bundle that shows it (None: not asked for, or not possible)."""

    verdict: Verdict
    signature: Signature
    bundle: Path | None = None
    notes: tuple[str, ...] = ()
    operators: OperatorChecks = field(default_factory=OperatorChecks)
    """What was found about custom operators, where that was asked for."""

    @property
    def blamed(self) -> str:
        """A side, or `operator mylib::foo` if a custom operator breaks a promise that can explain it."""
        comparison = self.verdict.comparison
        differing = comparison.differing if comparison is not None else ()
        only_gradients = all(leaf.where.part == "grad" for leaf in differing)
        accused = self.operators.accused(only_gradients=only_gradients or not self.verdict.fails)
        return blame(accused) if accused else self.verdict.blamed.value

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs, fails or calls an operator that breaks a promise, 125 cannot be tested."""
        if self.operators.violations:
            return 1
        if not self.verdict.testable:
            return 125
        return 1 if self.verdict.fails else 0

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()
