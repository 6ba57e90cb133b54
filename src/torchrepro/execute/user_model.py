"""The user's own model: a function that returns it with its inputs is loaded, run for every way, and judged.

Fresh objects for each run are the only isolation that also holds for closures, hooks and caches. A function
that does not build the same thing twice, even from the same seed, is built once and copied instead. The model
is compiled through the public API, capture included, and compared with plain eager.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import torch

from torchrepro.execute.backends import function_to_keep
from torchrepro.execute.compilers import compile_model, require_known
from torchrepro.execute.judge_repro import compilation
from torchrepro.judge.clone import clone_inputs, clone_module
from torchrepro.judge.compare import same, tensors_in
from torchrepro.judge.execute import Run, is_out_of_memory, named_state, observe_call
from torchrepro.judge.models import Phase, Phases, Subject, judge
from torchrepro.judge.op_forms import Draws
from torchrepro.judge.reference import true_run
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, ModelRequest, Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import capture_ambient
from torchrepro.state.snapshot import python_state
from torchrepro.torch_api.configs import patched_config
from torchrepro.torch_api.pytree import tree_map_only

_SEED = 0
NOTHING_COMPILED = "nothing was compiled: torch.compile captures calls of the model itself, and met none"


@dataclass(frozen=True)
class Built:
    """A model and its inputs, as one call of the user's function returned them."""

    model: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseOptions:
    """What the user's file may say about how to run its model (all optional, see docs/compare.md)."""

    compile: Mapping[str, Any] = field(default_factory=dict)
    """`COMPILE`: keyword arguments of torch.compile."""
    no_grad: bool = False
    """`NO_GRAD`: run without gradients."""
    grad: bool | None = None
    """`GRAD`: whether backward runs as well."""
    tolerance: float | None = None
    """`TOL`: a number or (rtol, atol) that replaces the judge's own rule."""
    call: Callable[..., Any] | None = None
    """`call(model, inputs)`: how to call it."""
    post: Callable[..., Any] | None = None
    """`post(model, output, inputs)`: what to compare instead of the output."""


@dataclass(frozen=True)
class Factory:
    """Builds the model again and again, on the wanted device."""

    function: Callable[[], Any]
    name: str
    options: CaseOptions
    device: str | None = None
    backward: bool | None = None
    once: Built | None = None
    """Set where building twice gives different things: the copy to start from."""

    def fresh(self) -> Built:
        """Return the model as one more call of the function gives it, or a copy of the one that was kept."""
        if self.once is None:
            return self._build()
        kept = self.once.model
        model = clone_module(kept) if isinstance(kept, torch.nn.Module) else kept
        args, kwargs = clone_inputs((self.once.args, dict(self.once.kwargs)))
        return Built(model, args, kwargs)

    def steady(self) -> tuple[Factory, str]:
        """Return a factory whose products are all equal, and a note if they had to be copied."""
        first, second = self._build(), self._build()
        if same(_data(first), _data(second), strict=True):
            return self, ""
        note = f"{self.name} returns something else each time, so one of them was copied"
        return replace(self, once=first), note

    def _build(self) -> Built:
        torch.manual_seed(_SEED)
        random.seed(_SEED)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(_SEED)
        try:
            made = self.function()
        except Exception as exc:
            if isinstance(exc, TorchReproError) or is_out_of_memory(exc):
                raise
            raise TorchReproError(
                f"{self.name} raises {type(exc).__name__}: {exc}",
                next_step="make it run in plain Python first; --traceback shows where",
            ) from exc
        built = as_built(made, self.name)
        if self.device:
            built = _moved(built, self.device)
        if self.backward:
            for _, tensor in tensors_in((built.args, built.kwargs)):
                if tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()):
                    tensor.requires_grad_(True)
        return built


def load_factory(target: str, *, device: str | None = None, backward: bool | None = None) -> Factory:
    """Load `FILE.py:FUNCTION` or `package.module:FUNCTION`; each mistake is an error of one clear line."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise TorchReproError(
            f"{target!r} does not name a function",
            next_step="write FILE.py:FUNCTION or package.module:FUNCTION",
        )
    module = _loaded(where)
    function = getattr(module, name, None)
    if function is None:
        functions = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not key.startswith("_")
        ]
        listed = f"it has: {', '.join(functions)}" if functions else "it has no functions"
        raise TorchReproError(f"{where} has no {name!r}", next_step=listed)
    if not callable(function):
        raise TorchReproError(
            f"{target} is a {type(function).__name__}, not a function",
            next_step="name a function without arguments that returns the model and its inputs",
        )
    required = _required_parameters(function)
    if required:
        raise TorchReproError(
            f"{target} takes arguments ({', '.join(required)})",
            next_step=f"name a function without arguments that returns ({name}, inputs)",
        )
    return Factory(function, target, read_options(module), device, backward)


def as_built(value: Any, name: str) -> Built:
    """Accept a model alone, (model, inputs) or (model, args, kwargs)."""
    match value:
        case (model, args, Mapping() as kwargs) if callable(model):
            return Built(model, tuple(args), dict(kwargs))
        case (model, Mapping() as kwargs) if callable(model):
            return Built(model, (), dict(kwargs))
        case (model, inputs) if callable(model):
            return Built(model, tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,))
        case _ if callable(value) and not isinstance(value, (torch.Tensor, tuple, list)):
            return Built(value)
    found = f"a {type(value).__name__}"
    if isinstance(value, (tuple, list)):
        found += f" of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    raise TorchReproError(
        f"{name} returned {found}", next_step="return model, (model, inputs) or (model, args, kwargs)"
    )


def read_options(module: ModuleType) -> CaseOptions:
    tolerance = getattr(module, "TOL", None)
    return CaseOptions(
        compile=dict(getattr(module, "COMPILE", {})),
        no_grad=bool(getattr(module, "NO_GRAD", False)),
        grad=getattr(module, "GRAD", None),
        tolerance=max(tolerance) if isinstance(tolerance, (tuple, list)) else tolerance,
        call=_function_of(module, "call", "call(model, inputs)"),
        post=_function_of(module, "post", "post(model, output, inputs)"),
    )


def _function_of(module: ModuleType, name: str, form: str) -> Callable[..., Any] | None:
    """Return a function that the file may define; TorchReproError if it cannot be called in that form."""
    function = getattr(module, name, None)
    if function is None:
        return None
    fact = f"{name} of {module.__name__} is a {type(function).__name__}, not a function"
    try:
        if callable(function):
            fact = f"{name} of {module.__name__} takes {inspect.signature(function)}"
            inspect.signature(function).bind(*[None] * (form.count(",") + 1))
            return function  # type: ignore[no-any-return]
    except TypeError as exc:
        fact += f" ({exc})"
    except ValueError:  # written in C, without a signature
        return function  # type: ignore[no-any-return]
    raise TorchReproError(fact, next_step=f"write {form}, or rename it: every verb calls it so")


def call_context(options: CaseOptions, amp: str | None, device: str) -> AbstractContextManager[Any]:
    """Enter the state in which the forward call runs."""
    stack = ExitStack()
    if options.no_grad:
        stack.enter_context(torch.no_grad())
    if amp:
        dtype = getattr(torch, amp, None)
        if not isinstance(dtype, torch.dtype):
            raise TorchReproError(
                f"{amp!r} is not a dtype", next_step="write --amp bfloat16 or --amp float16"
            )
        stack.enter_context(torch.autocast(device, dtype=dtype))
    return stack


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [each.name for each in parameters if each.default is each.empty and each.kind not in optional]


def _data(built: Built) -> Any:
    state = dict(built.model.state_dict()) if isinstance(built.model, torch.nn.Module) else {}
    return [tensor for _, tensor in tensors_in((built.args, dict(built.kwargs), state))]


def _moved(built: Built, device: str) -> Built:
    def move(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    try:
        model = built.model.to(device) if isinstance(built.model, torch.nn.Module) else built.model
        args, kwargs = tree_map_only(torch.Tensor, move, (built.args, dict(built.kwargs)))
        return Built(model, args, kwargs)
    except (RuntimeError, AssertionError) as exc:
        first = str(exc).partition("\n")[0]
        raise TorchReproError(
            f"cannot use device {device!r} ({first})", next_step="leave out --device"
        ) from exc


def _loaded(where: str) -> ModuleType:
    """Import `FILE.py` or `package.module`."""
    path = Path(where)
    is_file = where.endswith(".py")
    if is_file and not path.is_file():
        raise TorchReproError(f"there is no file {path}", next_step="check the path before the colon")
    sys.path.insert(0, str(path.resolve().parent) if is_file else "")
    try:
        if not is_file:
            return importlib.import_module(where)
        # A file called random.py must not shadow the standard library's.
        name = path.stem if path.stem not in sys.modules else f"_torchrepro_{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as exc:
        raise TorchReproError(
            f"{path if is_file else where} cannot be imported ({type(exc).__name__}: {exc})",
            next_step="--traceback shows where",
        ) from exc
    return module


@dataclass(frozen=True)
class ModelTrial:
    """A loaded request: it builds, calls and observes the model in each of the ways that are compared."""

    request: ModelRequest
    factory: Factory
    compiler: Compiler
    notes: tuple[str, ...] = ()

    def observe(self, built: Built, function: Any) -> Run:
        """Call `function` once: the built model or a compiled form of it."""
        model = built.model

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.run(function, model, args, kwargs)

        state = named_state(model) if isinstance(model, torch.nn.Module) else {}
        run = observe_call(call, built.args, built.kwargs, only_fwd=self.only_fwd, state=state)
        if self.request.backward and not any(gradient is not None for gradient in run.gradients.values()):
            raise TorchReproError(
                f"{self.request.target}: no output depends on anything that needs gradients",
                next_step="leave out --backward",
            )
        return replace(run, python=python_state(model))

    def run(self, function: Any, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call `function`, a form of the model, as request and file say: the one way for every verb."""
        options = self.factory.options
        with call_context(options, self.request.amp, self.device_type):
            out = options.call(function, args) if options.call else function(*args, **kwargs)
            return options.post(model, out, args) if options.post else out

    def record_call(self, backend: Any) -> None:
        """Compile a fresh model with a recording backend and run it forward once."""
        built = self.factory.fresh()
        compiled = compile_model(replace(self.compiler, options={}, mode=None), built.model, backend=backend)
        self.observe(built, compiled)

    def to_be_judged(self, repro: Repro) -> Repro:
        """Return the repro with the judging options requested for the model."""
        backward = False if self.only_fwd else None
        return replace(repro, backward=backward, strict=self.request.strict, tolerance=self.tolerance)

    @property
    def tolerance(self) -> float | None:
        """That of the command line, else that of the file."""
        asked = self.request.tolerance
        return asked if asked is not None else self.factory.options.tolerance

    @property
    def only_fwd(self) -> bool:
        wanted = self.request.backward if self.request.backward is not None else self.factory.options.grad
        return wanted is False or self.factory.options.no_grad

    @property
    def device_type(self) -> str:
        return torch.device(self.request.device or "cpu").type


def load_trial(request: ModelRequest) -> ModelTrial:
    """Load the user's function and resolve the options that its file gives for compiling."""
    factory = load_factory(request.target, device=request.device, backward=request.backward)
    in_file = dict(factory.options.compile)
    compiler = request.compiler
    compiler = replace(
        compiler,
        function=function_to_keep(compiler.name),
        options={**in_file.pop("options", {}), **compiler.options},
        mode=compiler.mode or in_file.pop("mode", None),
        dynamic=in_file.pop("dynamic", None) if compiler.dynamic is None else compiler.dynamic,
        fullgraph=in_file.pop("fullgraph", compiler.fullgraph),
    )
    in_file.pop("backend", None)
    if in_file:
        raise TorchReproError(
            f"{request.target}: COMPILE names {', '.join(map(repr, in_file))}",
            next_step="torchrepro passes on options, mode, dynamic and fullgraph",
        )
    require_known(compiler)
    factory, note = factory.steady()
    return ModelTrial(request, factory, compiler, (note,) if note else ())


def judge_model(request: ModelRequest, phase: Phase = lambda name: None) -> Verdict:
    """Judge a user's model in this process."""
    phase = Phases(phase)
    phase("build")
    return judge_trial(load_trial(request), phase)


def judge_trial(trial: ModelTrial, phase: Phase = lambda name: None) -> Verdict:
    """Judge a loaded model in this process."""
    request, phase = trial.request, phase if isinstance(phase, Phases) else Phases(phase)
    compiled_in: set[str] = set()

    def note_compilation(name: str) -> None:
        compiled_in.add(name)
        phase(name)

    def eager(around: AbstractContextManager[Any]) -> Run:
        built = trial.factory.fresh()
        with around:
            return trial.observe(built, built.model)

    def compiled(around: AbstractContextManager[Any]) -> Run:
        built = trial.factory.fresh()
        with compilation(note_compilation, around):
            return trial.observe(built, compile_model(trial.compiler, built.model))

    def truth(draws: Draws) -> tuple[Run, tuple[str, ...]]:
        built = trial.factory.fresh()

        def observe(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run:
            return trial.observe(Built(model, args, kwargs), model)

        return true_run(observe, built.model, built.args, built.kwargs, draws)

    verdict = judge(
        Subject(eager, compiled, truth if request.fp64 else None),
        rule=Rule(strict=request.strict, tol=trial.tolerance, check_stride=request.check_stride),
        phase=phase,
    )
    if not verdict.fails and not compiled_in:
        return verdict.with_notes(*trial.notes, NOTHING_COMPILED)
    return verdict.with_notes(*trial.notes)


def compare(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a user's own model."""
    phase("build")

    return msgspec.to_builtins(judge_model(msgspec.convert(payload, ModelRequest), phase))


def record(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle for every graph that capture makes of a user's model; not judged yet."""
    phase("build")
    from torchrepro.execute.record_graphs import record_graphs, save_graphs

    request = msgspec.convert(payload["request"], ModelRequest)
    trial = load_trial(request)
    phase("record")
    with ExitStack() as stack:
        for module, values in payload.get("configs", {}).items():
            stack.enter_context(patched_config(module, values))
        repros, problems = record_graphs(trial.record_call, trial.compiler, environ=request.environ)
    repros = [trial.to_be_judged(repro) for repro in repros]
    bundles = save_graphs(repros, Path(payload["directory"]), size_cap=payload["size_cap"])
    return {"bundles": bundles, "problems": problems}


def keep_call(payload: dict[str, Any], phase: Phase) -> Any:
    """Write a bundle of the whole call of a user's model, for what no captured graph shows; not judged."""
    phase("build")
    from torchrepro.bundle.user_calls import repro_of_call
    from torchrepro.script.save_bundle import save_bundle

    request = msgspec.convert(payload["request"], ModelRequest)
    trial = load_trial(request)
    phase("record")
    built = trial.factory.fresh()
    with call_context(trial.factory.options, request.amp, trial.device_type):
        ambient = replace(capture_ambient(), environ=request.environ)
    options = trial.factory.options
    repro = repro_of_call(
        built.model,
        built.args,
        built.kwargs,
        compiler=trial.compiler,
        ambient=ambient,
        call=options.call,
        post=options.post,
    )
    return str(save_bundle(trial.to_be_judged(repro), Path(payload["path"]), size_cap=payload["size_cap"]))
