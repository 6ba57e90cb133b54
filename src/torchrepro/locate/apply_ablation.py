"""Turn parts of torch's compilers off, and note which ones were met. Only ever in a process of our own.

Torch asks `CompilerBisector.disable_subsystem` before each graph pass, decomposition and lowering. Its own
answers come from files in the cache directory, which every other process would see; here the question is
answered from memory, by name and not by number: the n-th lowering is another one as soon as a pass is off.
The rewrites of pattern matchers, which nobody is asked about, have a check each that can say no.

Checked on torch 2.11 and 2.13 (`CompilerBisector.disable_subsystem`, `GraphTransformObserver.apply_gm_pass`
and `.apply_graph_pass`, `PatternMatcherPass.apply`, `V.graph.current_node`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TextIO

import msgspec
from torch.fx import Graph, GraphModule

from torchrepro.locate.ablation import EVERYTHING
from torchrepro.torch_api.patching import replaced

_OVERLOAD = re.compile(r"op='([\w.]+)', overload='(\w+)'")


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


class Choice:
    """What is left out, by kind and name."""

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self._names = {kind: frozenset(values) for kind, values in names.items()}

    def is_off(self, kind: str, name: str) -> bool:
        chosen = self._names.get(kind, frozenset())
        return name in chosen or EVERYTHING in chosen


@contextmanager
def turned_off(names: Mapping[str, Sequence[str]], met: Met) -> Iterator[None]:
    """Leave out what is named, in the body. A spawned worker goes on to other questions afterwards."""
    choice = Choice(names)
    with _answering_the_bisector(choice, met), _watching_passes(met), _checking_rewrites(choice, met):
        yield


def _answering_the_bisector(choice: Choice, met: Met) -> AbstractContextManager[None]:
    from torchrepro.torch_api.inductor import CompilerBisector

    def disable_subsystem(backend: str, subsystem: str, debug_info: Callable[[], str] | None = None) -> bool:
        described = debug_info() if debug_info is not None else ""
        if subsystem.endswith("_passes"):
            return choice.is_off("passes", described)
        if subsystem == "lowerings":
            kind, name = "lowerings", _lowered_now()
        elif subsystem == "decomposition":
            kind, name = "decompositions", _overload(described)
        else:
            return False
        met.note(kind, name)
        return choice.is_off(kind, name)

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
                return apply(self, pass_fn)  # nobody is asked whether to leave it out
            name, before = self.passname, _likeness(self.gm)
            try:
                result = apply(self, pass_fn)
            except Exception:
                met.note("passes", name)
                raise
            if _likeness(self.gm) != before:
                met.note("passes", name)
            return result

        return applied

    observer: Any = GraphTransformObserver
    with ExitStack() as stack:
        for name in ("apply_gm_pass", "apply_graph_pass"):
            stack.enter_context(replaced(observer, name, watched(getattr(observer, name))))
        yield


def _likeness(module: GraphModule) -> list[tuple[Any, ...]]:
    """Equal for a graph that nobody has touched. Arguments are compared as objects: a change makes new."""
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
def _checking_rewrites(choice: Choice, met: Met) -> Iterator[None]:
    """Have the check of every rewrite ask first; those of a matcher are there when it is first applied."""
    from torchrepro.torch_api.inductor import PatternMatcherPass

    matcher: Any = PatternMatcherPass
    apply, usual = matcher.apply, dict[int, tuple[Any, Any]]()

    def applied(self: Any, graph: GraphModule | Graph) -> int:
        for entry in [entry for entries in self.patterns.values() for entry in entries]:
            if id(entry) not in usual:
                usual[id(entry)] = entry, entry.extra_check
                entry.extra_check = _asking(entry.extra_check, _rewrite_of(entry), choice, met)
        found: int = apply(self, graph)
        return found

    try:
        with replaced(matcher, "apply", applied):
            yield
    finally:
        for entry, check in usual.values():
            entry.extra_check = check


def _asking(check: Callable[[Any], Any], name: str, choice: Choice, met: Met) -> Callable[[Any], Any]:
    def asked(match: Any) -> Any:
        if choice.is_off("patterns", name):
            return False
        answer = check(match)
        if answer is not False:
            met.note("patterns", name)
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
