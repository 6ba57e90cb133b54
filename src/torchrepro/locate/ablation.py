"""Turn parts of torch's compilers off and see whether the failure goes away.

`Off` is what is turned off, as data. It is applied in a child process only. Torch asks
`CompilerBisector.disable_subsystem` before each graph pass, decomposition and lowering. Its own answers come
from files in the cache directory, which every other process would see; here the question is answered from
memory, by name and not by number: the n-th lowering is a different one as soon as a pass is off. The rewrites
of pattern matchers, about which torch does not ask, have a check each that can say no.

Checked on torch 2.11 and 2.13 (`CompilerBisector.disable_subsystem`, `GraphTransformObserver.apply_gm_pass`
and `.apply_graph_pass`, `PatternMatcherPass.apply`, `V.graph.current_node`).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
from torch.fx import Graph, GraphModule

from torchrepro.engine.baseline import Failure
from torchrepro.judge.models import Phase
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api.patching import replaced

EVERYTHING = "*"
"""In place of a name: all there are."""
PASSES, PATTERNS, DECOMPOSITIONS, LOWERINGS = "passes", "patterns", "decompositions", "lowerings"
"""Kinds of parts that can be left out by name: passes (`remove_noop_ops`, wherever one of that name is run),
rewrites of a pattern matcher (by the function that does it), decompositions (`aten.gelu.default` stays as it
is) and lowerings (inductor calls `aten.erf.default` in place of generated code)."""


@dataclass(frozen=True, slots=True)
class Off:
    """What is turned off in a compiler for one run: settings that are changed, and parts left out by name."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of inductor's config: what a user can write in `torch.compile(options=...)`."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the others, `dynamo` and `functorch`, as `Ambient.configs` has them."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names by kind (`PASSES` and so on). They are left out in the child process, by `turned_off`."""

    def __or__(self, other: Off) -> Off:
        configs = {
            name: {**self.configs.get(name, {}), **other.configs.get(name, {})}
            for name in (*self.configs, *other.configs)
        }
        parts = {
            kind: tuple(sorted({*self.names(kind), *other.names(kind)}))
            for kind in (*self.parts, *other.parts)
        }
        return Off({**self.options, **other.options}, configs, parts)

    def names(self, kind: str) -> tuple[str, ...]:
        """Return the parts of one kind that are left out."""
        return self.parts.get(kind, ())

    def settings_on(self, repro: Repro) -> Repro:
        """Return the repro with the settings changed."""
        repro = replace(repro, compiler=with_options(repro.compiler, self.options))
        former = repro.ambient.configs
        changed = {name: {**former.get(name, {}), **values} for name, values in self.configs.items()}
        return replace(repro, ambient=replace(repro.ambient, configs={**former, **changed}))


def with_options(compiler: Compiler, options: Mapping[str, Any]) -> Compiler:
    """The compiler with more options. `torch.compile` takes a mode or options, so a mode is spelt out.

    Checked on torch 2.11 and 2.13 (`list_mode_options`).
    """
    if not options:
        return compiler
    spelt: Mapping[str, Any] = {}
    if compiler.mode:
        from torchrepro.torch_api.inductor import list_mode_options

        spelt = list_mode_options(compiler.mode, compiler.dynamic)
    return replace(compiler, mode=None, options={**spelt, **compiler.options, **options})


_OVERLOAD = re.compile(r"op='([\w.]+)', overload='(\w+)'")


IsOff = Callable[[str, str], bool]
"""(kind, name) -> whether it is left out."""


class Met:
    """Notes what a compilation meets, line by line in a file: it is there even if the process dies."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._told: set[tuple[str, str]] = set()

    def note(self, kind: str, name: str) -> None:
        if (kind, name) not in self._told:
            self._told.add((kind, name))
            self._file.write(msgspec.json.encode([kind, name]).decode() + "\n")
            self._file.flush()


@contextmanager
def turned_off(names: Mapping[str, Sequence[str]], met: Met) -> Iterator[None]:
    """Leave out what is named, in the body. A spawned worker goes on to other questions afterwards."""

    def is_off(kind: str, name: str) -> bool:
        chosen = names.get(kind, ())
        return name in chosen or EVERYTHING in chosen

    with _answering_the_bisector(is_off, met), _watching_passes(met), _checking_rewrites(is_off, met):
        yield


def _answering_the_bisector(is_off: IsOff, met: Met) -> AbstractContextManager[None]:
    from torchrepro.torch_api.inductor import CompilerBisector

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        described = debug_info() if debug_info is not None else ""
        if subsystem.endswith("_passes"):
            return is_off(PASSES, described)
        if subsystem == LOWERINGS:
            kind, name = LOWERINGS, _lowered_now()
        elif subsystem == "decomposition":
            kind, name = DECOMPOSITIONS, _overload(described)
        else:
            return False
        met.note(kind, name)
        return is_off(kind, name)

    return replaced(CompilerBisector, "disable_subsystem", staticmethod(disable_subsystem))


def _lowered_now() -> str:
    """The operator that inductor is about to lower."""
    from torchrepro.torch_api.inductor import V

    return str(V.graph.current_node.target)


def _overload(described: str) -> str:
    """`<OpOverload(op='aten.gelu', overload='default')>` as `aten.gelu.default`."""
    found = _OVERLOAD.search(described)
    return f"{found[1]}.{found[2]}" if found else described


@contextmanager
def _watching_passes(met: Met) -> Iterator[None]:
    """Note the passes that change the graph, or raise: of some forty that run, most find nothing to do."""
    from torch.fx.passes.graph_transform_observer import GraphTransformObserver

    def watched(apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(self: Any, pass_fn: Callable[..., Any]) -> Any:
            if self.subsystem is None:
                return apply(self, pass_fn)  # torch does not ask whether to leave it out
            name, before = self.passname, _likeness(self.gm)
            try:
                result = apply(self, pass_fn)
            except Exception:
                met.note(PASSES, name)
                raise
            if _likeness(self.gm) != before:
                met.note(PASSES, name)
            return result

        return applied

    observer: Any = GraphTransformObserver
    with ExitStack() as stack:
        for name in ("apply_gm_pass", "apply_graph_pass"):
            stack.enter_context(replaced(observer, name, watched(getattr(observer, name))))
        yield


def _likeness(module: GraphModule) -> list[tuple[Any, ...]]:
    """Equal for a graph that was not changed. Arguments are compared as objects: a change makes new ones."""
    return [
        (node.op, node.name, node.target, _Same(node.args), _Same(node.kwargs)) for node in module.graph.nodes
    ]


class _Same:
    """Equal to itself alone, and keeps what it stands for from being freed and its address used again."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def _checking_rewrites(is_off: IsOff, met: Met) -> Iterator[None]:
    """Have the check of every rewrite ask first; those of a matcher are there when it is first applied."""
    from torchrepro.torch_api.inductor import PatternMatcherPass

    matcher: Any = PatternMatcherPass
    apply, usual = matcher.apply, dict[int, tuple[Any, Any]]()

    def applied(self: Any, graph: GraphModule | Graph) -> int:
        for entry in [entry for entries in self.patterns.values() for entry in entries]:
            if id(entry) not in usual:
                usual[id(entry)] = entry, entry.extra_check
                entry.extra_check = _asking(entry.extra_check, _rewrite_of(entry), is_off, met)
        found: int = apply(self, graph)
        return found

    try:
        with replaced(matcher, "apply", applied):
            yield
    finally:
        for entry, check in usual.values():
            entry.extra_check = check


def _asking(check: Callable[[Any], Any], name: str, is_off: IsOff, met: Met) -> Callable[[Any], Any]:
    def asked(match: Any) -> Any:
        if is_off(PATTERNS, name):
            return False
        answer = check(match)
        if answer is not False:
            met.note(PATTERNS, name)
        return answer

    return asked


def _rewrite_of(entry: Any) -> str:
    """What a rewrite is called: by the pattern that it searches for, or the function that handles it."""
    function = getattr(entry, "handler", None) or _closed_over(entry.extra_check, "search_fn")
    function = getattr(function, "func", function)  # of a partial
    named = getattr(entry, "pattern_name", None) or getattr(function, "__name__", type(entry).__name__)
    module = str(getattr(function, "__module__", "")).rpartition(".")[2]
    return f"{module}.{named}" if module else str(named)


def _closed_over(function: Any, name: str) -> Any:
    """The value of a variable that a function has from where it was defined; None if it has no such one."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents


def judge_without(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The verdict with `off` left out; what the compilation meets is noted in the file `met`."""
    from torchrepro.engine.jobs import judge
    from torchrepro.locate.ablation import Met, turned_off

    with Path(payload["met"]).open("a") as file, turned_off(payload["off"], Met(file)):
        return judge(repro, payload, phase)


_JOB = "torchrepro.locate.ablation:judge_without"


@dataclass(eq=False)
class Trials:
    """Questions about one repro with parts of the compiler turned off."""

    inquiry: Inquiry
    repro: Repro
    _met: dict[str, dict[str, None]] = field(default_factory=dict)

    def met(self, kind: str) -> list[str]:
        """Names of `passes`, `patterns`, `decompositions` or `lowerings` that the runs so far have met."""
        if not self._met:
            self.verdict(Off())
        return list(self._met.get(kind, ()))

    def goes_away(self, off: Off) -> bool:
        """Whether the repro passes. Failing in another way, or not at all testable, is no way out."""
        return self.inquiry.is_gone(self.verdict(off))

    def fails_as_before(self, verdict: Verdict) -> bool:
        """Whether a verdict shows the failure that this repro has with nothing turned off."""
        return Failure.of(self.inquiry.queries.verdict_on(self.repro)).shown_by(verdict)

    def verdict(self, off: Off) -> Verdict:
        """Return the verdict with these parts turned off, and learn what the compilation meets."""
        candidate = off.settings_on(self.repro)
        with tempfile.TemporaryDirectory(prefix="torchrepro-met-") as directory:
            path = Path(directory) / "met.jsonl"
            path.touch()
            verdict = self.inquiry.queries.verdict_on(
                candidate, job=_JOB, extra={"met": str(path)}, off=dict(off.parts)
            )
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # a process that dies may leave half a line
                    kind, name = msgspec.json.decode(line)
                    self._met.setdefault(kind, {})[name] = None
        return verdict
