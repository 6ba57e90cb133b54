"""Judge Python programs: does a captured function do everything that plain Python does, call by call?

Graphs run as they were captured, without a compiler. So a program takes a fraction of a second, every bit
counts, and what differs is a fault of capture (Dynamo's, or that of torchrepro's own front end) or of AOT.
A program may crash or hang the process: run it in a child with a time limit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import linecache
import logging
import re
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchrepro.engine.compare_model import compare_model, save_whole_call
from torchrepro.frontend.runtime.settings import Settings
from torchrepro.frontend.runtime.wrapping import traced_callable
from torchrepro.hunt.generators.python_programs import PythonProgram
from torchrepro.hunt.observation import Facts, first_difference, observed_call
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.messages import normalise_message
from torchrepro.nouns.repro import Compiler, Frontend, ModelRequest
from torchrepro.nouns.verdict import Kind, Raised, Signature, Stage, Verdict
from torchrepro.torch_api.dynamo import counters, reset

_SECONDS_TO_SAVE = 120.0
Way = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a function to what is called in its place."""


def _dynamo(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    reset()
    counters.clear()
    return torch.compile(function, backend=backend)


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    captured: Callable[..., Any] = traced_callable(function, Settings(lambda graph, inputs: graph.forward))
    return captured


WAYS: dict[str, tuple[Way, Stage]] = {
    "torchrepro": (_own, Stage.CAPTURE),
    "dynamo": (functools.partial(_dynamo, backend="eager"), Stage.CAPTURE),
    "aot_eager": (functools.partial(_dynamo, backend="aot_eager"), Stage.AOT),
}
"""How a program may be captured, and the stage that is the culprit where only this way differs."""


@dataclass(frozen=True, slots=True)
class ProgramVerdict:
    """What a program did in the first way that differs from plain Python."""

    program: PythonProgram
    verdict: Verdict
    way: str = ""
    """A key of `WAYS`; empty where all agree with Python."""

    @property
    def aspect(self) -> str:
        """What two mismatches have in common at different paths: values, lengths, types, printed text."""
        path, _, rest = self.verdict.summary.partition(": ")[2].partition(": ")
        word = re.search(r"(values|length|keys|memory|printed|modes|grad|random|backward)[\]\[()0-9]*$", path)
        return word[1] if word else normalise_message(rest)

    @property
    def bucket(self) -> str:
        """What two failures with the same cause most often share: the way, the kind and the difference."""
        return f"{self.way} | {Signature.of(self.verdict)} | {normalise_message(self.verdict.summary)}"

    def same_failure(self, other: ProgramVerdict) -> bool:
        mine, others = Signature.of(self.verdict), Signature.of(other.verdict)
        return self.way == other.way and mine.matches(others) and self.aspect == other.aspect


def judge_program(
    program: PythonProgram, ways: Sequence[str] = tuple(WAYS), phase: Phase = lambda name: None
) -> ProgramVerdict:
    """Return the first way in which a program differs from plain Python, or that none does."""
    phase("eager")
    try:
        expected = effects(program)
    except Exception as error:  # of the module or of `calls`, not of `program`
        return ProgramVerdict(program, Verdict(Kind.INVALID, summary=f"{type(error).__name__}: {error}"))
    phase("compile")
    for way in ways:
        wrap, stage = WAYS[way]
        verdict = _compared(expected, effects(program, wrap), stage)
        if not verdict.fails:
            continue
        if effects(program) != expected:
            return ProgramVerdict(program, Verdict(Kind.NOT_COMPARABLE, summary="Python differs from itself"))
        return ProgramVerdict(program, verdict, way)
    return ProgramVerdict(program, Verdict(Kind.PASS))


def effects(program: PythonProgram, way: Way = lambda function: function) -> list[Facts]:
    """Return what each call of a program does, in a module of its own."""
    with warnings.catch_warnings(), _no_logging():
        warnings.simplefilter("ignore")
        space = _loaded(program)
        function = way(space["program"])
        torch.manual_seed(0)
        seen = []
        for arguments in space["calls"]():
            facts = observed_call(function, (), arguments, more=functools.partial(_world, space))
            seen.append({path: "iterator" if fact in _ITERATORS else fact for path, fact in facts.items()})
    return seen


_ITERATORS = {"list_iterator", "tuple_iterator", "generator", "enumerate", "zip", "map"}
"""A captured function may return an iterator of another kind over the same values."""


@contextlib.contextmanager
def _no_logging() -> Iterator[None]:
    """Drop what torch logs about graph breaks and failing fake tensors, a traceback each."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


_numbers = itertools.count(1)


def _loaded(program: PythonProgram) -> dict[str, Any]:
    """Run a program's module under a file name of its own, whose lines tracebacks and torch can read."""
    file = f"<python program {next(_numbers)}>"
    linecache.cache[file] = (len(program.source), None, program.source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "python_program"}
    exec(compile(program.source, file, "exec", dont_inherit=True), space)
    return space


def _world(space: dict[str, Any]) -> dict[str, Any]:
    """Return what a program may have changed: its globals, what its functions and its classes hold."""
    seen: dict[str, Any] = {}
    for name, value in space.items():
        if name.startswith("__"):  # Python's, and what Dynamo installs
            continue
        if isinstance(value, type) and value.__module__ == space["__name__"]:
            seen[name] = {key: item for key, item in vars(value).items() if isinstance(item, int)}
        elif isinstance(value, types.FunctionType):
            seen[name] = value, value.__dict__
        elif not isinstance(value, types.ModuleType | type):
            seen[name] = value
    return seen


def _compared(expected: Sequence[Facts], found: Sequence[Facts], stage: Stage) -> Verdict:
    for number, (right, got) in enumerate(zip(expected, found, strict=True), start=1):
        difference = first_difference(right, got)
        if difference is None:
            continue
        if "error" in right and "error" not in got:
            return Verdict(Kind.MISSING_ERROR, stage, f"call {number}: {right['error']} is not raised")
        if "error" in got and right.get("error") != got["error"]:
            raised = Raised(got["error"], got.get("error.args[0]", ""))
            return Verdict(Kind.COMPILE_ERROR, stage, f"call {number} raises", raised)
        return Verdict(Kind.MISMATCH, stage, f"call {number}: {difference}")
    return Verdict(Kind.PASS)


def save_program(found: ProgramVerdict, directory: Path) -> Path:
    """Save a program that fails; return the bundle of its calls, or the script if the judge sees no failure.

    The judge compares numbers, not which object is which: only the script shows such a failure.
    """
    directory.mkdir(parents=True, exist_ok=True)
    script = directory / f"program_{hashlib.sha256(found.program.source.encode()).hexdigest()[:12]}.py"
    script.write_text(found.program.source)
    own = found.way == "torchrepro"
    compiler = Compiler(
        "aot_eager" if found.way == "aot_eager" else "eager",
        frontend=Frontend.TORCHREPRO if own else Frontend.DYNAMO,
    )
    request = ModelRequest(f"{script}:build", compiler, backward=False, fp64=False)
    try:
        compared = compare_model(request, time_limit=_SECONDS_TO_SAVE)
        if not compared.verdict.fails:
            return script
        return save_whole_call(request, compared.verdict, directory, time_limit=_SECONDS_TO_SAVE)
    except TorchReproError:  # a closure or a class of it that cannot be kept as source
        return script
