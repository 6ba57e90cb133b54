"""Find the kernel: the generated code that computes the culprit op.

Inductor is hooked while it generates code, in a child process: each kernel with the nodes that it computes.
The name of a kernel of several fused ops shows at most which ops they are, not which of twenty `add`s it was;
its nodes do, because AOT records the names of the nodes they were made from. Everything is written to a file
at once, so that it is not lost if the process dies while compiling.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import msgspec

from torchrepro.engine.line_file import read_lines
from torchrepro.judge.models import Phase
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.nouns.results import GuiltyOp, Kernel
from torchrepro.state.ambient import applied_settings
from torchrepro.torch_api.ops import plain_op_name
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
    """The nodes of the compiled graph that it computes."""
    ops: tuple[str, ...] = ()
    """The ops before decompositions: `aten.gelu.default`."""


def read_written(path: Path) -> list[Written]:
    """Return what a process has written, in order; the incomplete last line of a killed one is ignored."""
    return list(read_lines(path, Written))


def generate(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> str:
    """Compile and record the generated code, also if the compiler raises; with `run`, backward too."""
    from torchrepro.execute.judge_repro import repro_common
    from torchrepro.execute.judge_user_call import run_compiled

    prepared = repro_common(repro)
    with Path(payload["path"]).open("a") as file, _writing_down(file), applied_settings(repro.ambient):
        phase("compile")
        with suppress(Exception):
            if repro.place is Place.BEFORE_CAPTURE:
                run_compiled(repro)
            else:
                graph, function = prepared.compile()
                if payload["run"]:
                    phase("run")
                    prepared.observe(graph, function, prepared.inputs())
    return ""


@contextmanager
def _writing_down(file: TextIO) -> Iterator[None]:
    """Hook the functions that inductor calls with a finished kernel or graph.

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
    """Return the FX nodes that a buffer of inductor was made from."""
    return [] if buffer is None else list(buffer.get_origins())


def _named(origins: list[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of nodes and of ops; for a node that AOT made from others, the names of those.

    An `erf` there may be part of a `gelu`. Checked on torch 2.11, 2.13 (`from_node`, `original_aten`).
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


OUTPUT_CODE = "output_code.py"
"""Name of the file with inductor's code for the whole graph, next to the result."""
_JOB = "torchrepro.locate.kernels:generate"
_SUFFIX = {"cpp": "kernel.cpp", "triton": "kernel.py"}


def find_kernel(inquiry: Inquiry, op: GuiltyOp | None, directory: Path) -> Kernel | None:
    """Return the kernel of the op, and write it to the directory with the whole code; one compile.

    Without an op, write the whole code, and the kernel if there is only one. If the compiler fails, write
    what it had generated until then.
    """
    if inquiry.repro.compiler.name not in ("inductor", AOT_INDUCTOR):
        return None  # hooks are known for inductor only
    inquiry.on_step("the code that the compiler generates")
    of_gradients = inquiry.failure.places == {"grad"}
    with tempfile.TemporaryDirectory(prefix="torchrepro-code-") as scratch:
        path = Path(scratch) / "written.jsonl"
        inquiry.ran(_JOB, inquiry.repro, path=str(path), run=of_gradients)
        written = read_written(path)
    if not written:
        inquiry.notes.append("no generated code: the compiler did not get so far")
        return None
    code = [piece.text for piece in written if piece.kind == _CODE]  # forward, then backward
    if code:
        (directory / OUTPUT_CODE).write_text("\n\n".join(code))
    found = kernel_in(written, op, backward=of_gradients)
    if found is None and op is not None:
        inquiry.notes.append(f"no kernel computes {op.node}: it was optimised away, or is part of no graph")
    if found is not None and found.source:
        found = replace(found, file=_SUFFIX[found.language])
        (directory / found.file).write_text(found.source)
    return found


def kernel_in(written: Sequence[Written], op: GuiltyOp | None, *, backward: bool = False) -> Kernel | None:
    """Return the kernel that computes a node: in backward the last, else the first.

    If AOT has lost the names of nodes, one that computes the same op. Without an op, the only kernel.
    """
    kernels = [piece for piece in written if piece.kind != _CODE]
    if op is None:
        own = [piece for piece in kernels if piece.language != "extern"]
        candidates = own if len(own) == 1 else []
    else:
        name = plain_op_name(op.op)
        candidates = [piece for piece in kernels if op.node in piece.nodes]
        candidates = candidates or [piece for piece in kernels if name in map(plain_op_name, piece.ops)]
        candidates = candidates[::-1] if backward else candidates
        # A value that is needed in two kernels may be computed in both, and a `t` before a matmul is not a
        # kernel of the matmul, so a kernel that is named after the op comes first.
        candidates = [piece for piece in candidates if name in piece.name] or candidates
    if not candidates:
        return None
    chosen = candidates[0]
    defined = rf"^{re.escape(chosen.name)} = async_compile\.\w+\(.*?'''\n?(.*?)'''"
    code = "\n".join(piece.text for piece in written if piece.kind == _CODE)
    found = re.search(defined, code, re.DOTALL | re.MULTILINE)
    return Kernel(chosen.name, chosen.language, found[1] if found else chosen.text)
