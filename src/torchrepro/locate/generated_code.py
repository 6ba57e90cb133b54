"""Watch inductor generate code: each kernel with the nodes that it computes, in a process of its own.

A kernel of several fused ops says by its name at most which ops they are, not which of twenty `add`s it was.
The nodes behind a kernel do, by way of the names that AOT has kept of the nodes they were made from. All of
it is written down as it comes: a process that dies while compiling has still told what it had generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import msgspec

from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.patching import replaced

_CODE, _KERNEL, _CALL = "code", "kernel", "call"


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of generated code: a kernel, a call of a library, or the code of a whole graph."""

    kind: str
    name: str = ""
    text: str = ""
    language: str = ""
    nodes: tuple[str, ...] = ()
    """Nodes of the graph that was compiled which are computed in it."""
    ops: tuple[str, ...] = ()
    """`aten.gelu.default`: what was there before decompositions."""


@dataclass(frozen=True, slots=True)
class Generated:
    """All that was generated, in order."""

    written: tuple[Written, ...] = ()

    @property
    def code(self) -> tuple[str, ...]:
        """The code of each graph: forward, then backward."""
        return tuple(piece.text for piece in self.written if piece.kind == _CODE)

    @property
    def kernels(self) -> tuple[Written, ...]:
        return tuple(piece for piece in self.written if piece.kind != _CODE)

    @classmethod
    def read(cls, path: Path) -> Generated:
        """What a process has written down; the last line of one that was killed may be half."""
        lines = path.read_bytes().splitlines(keepends=True)
        return cls(tuple(msgspec.json.decode(line, type=Written) for line in lines if line.endswith(b"\n")))


def generate(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Compile, and write down what is generated. Whatever that raises is known; with `run`, backward too."""
    from torchrepro.execute.judge_repro import repro_common

    prepared = repro_common(repro)
    with Path(payload["path"]).open("a") as file, _writing_down(file), applied_settings(repro.ambient):
        phase("compile")
        try:
            if repro.place is Place.BEFORE_CAPTURE:
                from torchrepro.execute.judge_user_call import run_compiled

                run_compiled(repro)
            else:
                graph, function = prepared.compile()
                if payload["run"]:
                    phase("run")
                    prepared.observe(graph, function, prepared.inputs())
        except Exception as exc:
            return f"{type(exc).__name__}: {str(exc).partition(chr(10))[0][:200]}"
    return ""


@contextmanager
def _writing_down(file: TextIO) -> Iterator[None]:
    """Hook the places at which inductor has a kernel or a graph ready.

    Checked on torch 2.11, 2.13 (`define_kernel` of the schedulings of C++ and Triton, whose second argument
    are scheduler nodes; `GraphLowering.save_output_code`, which is called before anything is compiled;
    `V.graph.operations`; `python_kernel_name` of calls of libraries).
    """
    from torchrepro.torch_api.inductor import CppScheduling, GraphLowering, TritonScheduling, V

    def put(piece: Written) -> None:
        file.write(msgspec.json.encode(asdict(piece)).decode() + "\n")
        file.flush()

    def watched(scheduling: Any, language: str) -> AbstractContextManager[None]:
        original: Callable[..., Any] = scheduling.define_kernel

        def define_kernel(self: Any, source: str, nodes: Any, *rest: Any, **more: Any) -> Any:
            name = original(self, source, nodes, *rest, **more)
            behind = [origin for node in nodes for origin in _origins(getattr(node, "node", None))]
            put(Written(_KERNEL, str(name), source, language, *_named(behind)))
            return name

        return replaced(scheduling, "define_kernel", define_kernel)

    def save_output_code(code: str) -> None:
        for operation in V.graph.operations:
            called = getattr(operation, "python_kernel_name", None)
            if called:
                put(Written(_CALL, str(called), "", "extern", *_named(_origins(operation))))
        put(Written(_CODE, text=code))

    with (
        watched(CppScheduling, "cpp"),
        watched(TritonScheduling, "triton"),
        replaced(GraphLowering, "save_output_code", staticmethod(save_output_code)),
    ):
        yield


def _origins(buffer: Any) -> list[Any]:
    """The FX nodes that a buffer of inductor was made from."""
    return [] if buffer is None else list(buffer.get_origins())


def _named(origins: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of nodes and of ops. Its own name counts only for a node that AOT did not make from another one:
    what is `erf` there may be part of a `gelu`. Checked on torch 2.11, 2.13 (`from_node`, `original_aten`).
    """
    nodes: dict[str, None] = {}
    ops: dict[str, None] = {}
    for origin in origins:
        nodes.update(dict.fromkeys(list(_ancestors(origin.meta.get("from_node"))) or [origin.name]))
        ops[str(origin.target)] = None
        if origin.meta.get("original_aten") is not None:
            ops[str(origin.meta["original_aten"])] = None
    return tuple(nodes), tuple(ops)


def _ancestors(sources: Any) -> Iterator[str]:
    for source in sources or ():
        yield source.name
        yield from _ancestors(getattr(source, "from_node", None))


def definition_of(kernel: str, code: str) -> str:
    """The source of a kernel as it stands in the code of a graph; empty where it does not."""
    defined = rf"^{re.escape(kernel)} = async_compile\.\w+\(.*?'''\n?(.*?)'''"
    found = re.search(defined, code, re.DOTALL | re.MULTILINE)
    return found[1] if found else ""
