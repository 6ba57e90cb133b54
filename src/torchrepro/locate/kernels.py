"""The kernel: the generated code that computes the guilty op, taken out of what the compiler wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchrepro.locate.context import Inquiry
from torchrepro.locate.generated_code import Generated, Written, definition_of
from torchrepro.nouns.located import GuiltyOp, Kernel
from torchrepro.nouns.repro import AOT_INDUCTOR

OUTPUT_CODE = "output_code.py"
"""What inductor wrote for the whole graph, beside the result."""
_JOB = "torchrepro.locate.generated_code:generate"
_SUFFIX = {"cpp": "kernel.cpp", "triton": "kernel.py"}


def find_kernel(inquiry: Inquiry, op: GuiltyOp | None, directory: Path) -> Kernel | None:
    """The kernel of the op, written to the directory with the whole code; one compile.

    Without an op the whole code is kept, and the kernel if there is but one. Where the compiler fails, what
    it had generated until then.
    """
    if inquiry.repro.compiler.name not in ("inductor", AOT_INDUCTOR):
        return None  # how another compiler could be watched is not known
    inquiry.on_step("the code that the compiler generates")
    of_gradients = inquiry.failure.places == {"grad"}
    generated = _generated(inquiry, run=of_gradients)
    if not generated.written:
        inquiry.notes.append("no generated code: the compiler did not get so far")
        return None
    if generated.code:
        (directory / OUTPUT_CODE).write_text("\n\n".join(generated.code))
    found = only_kernel(generated) if op is None else kernel_of(op, generated, backward=of_gradients)
    if found is None and op is not None:
        inquiry.notes.append(f"no kernel computes {op.node}: it was optimised away, or is part of no graph")
    if found is not None and found.source:
        found = replace(found, file=_SUFFIX[found.language])
        (directory / found.file).write_text(found.source)
    return found


def kernel_of(op: GuiltyOp, generated: Generated, *, backward: bool = False) -> Kernel | None:
    """The kernel that computes a node; in backward the last, else the first. Where AOT has lost the names of
    nodes, one that computes the same op.
    """
    by_node = [piece for piece in generated.kernels if op.node in piece.nodes]
    candidates = by_node or [piece for piece in generated.kernels if _computes(piece, op.op)]
    if not candidates:
        return None
    chosen = _first_to_compute(op, candidates[::-1] if backward else candidates)
    return _with_source(chosen, generated)


def only_kernel(generated: Generated) -> Kernel | None:
    """The kernel of a graph that has no other."""
    own = [piece for piece in generated.kernels if piece.language != "extern"]
    return _with_source(own[0], generated) if len(own) == 1 else None


def _with_source(piece: Written, generated: Generated) -> Kernel:
    source = definition_of(piece.name, "\n".join(generated.code)) or piece.text
    return Kernel(name=piece.name, language=piece.language, source=source)


def _first_to_compute(op: GuiltyOp, candidates: Sequence[Written]) -> Written:
    """A value that is needed in two kernels may be computed in both, and a `t` before a matmul is no kernel
    of the matmul: one that is named after the op comes first.
    """
    named = [piece for piece in candidates if _plain(op.op) in piece.name]
    return (named or list(candidates))[0]


def _computes(piece: Written, op: str) -> bool:
    return _plain(op) in {_plain(name) for name in piece.ops}


def _plain(op: str) -> str:
    """`aten.erf.default`, `torch.erf` and `.erf_` are all `erf`."""
    parts = [part for part in op.split(".") if part]
    name = parts[1] if len(parts) > 2 and parts[0] in ("aten", "prims") else parts[-1] if parts else op
    return name.strip("_")


def _generated(inquiry: Inquiry, *, run: bool) -> Generated:
    with tempfile.TemporaryDirectory(prefix="torchrepro-code-") as scratch:
        path = Path(scratch) / "written.jsonl"
        path.touch()
        inquiry.ran(_JOB, inquiry.repro, path=str(path), run=run)
        return Generated.read(path)
