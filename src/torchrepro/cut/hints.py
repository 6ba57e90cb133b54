"""Find the ops that the evidence of a failure names.

A lowering exception carries `target: aten.erf.default`; a generated kernel is called `cpp_fused_gelu_view_3`
after what was fused into it; a message may name an op. A crash or a hang leaves the Python stack on
standard error, whose innermost line in generated code names the kernel that was running. Code that lowers or
runs an FX graph holds the node in a local variable: its target is printed as well. A hint is never proof: it
decides only what is tried first.
"""

from __future__ import annotations

import faulthandler
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.fx import Node

from torchrepro.cut.record_values import NotRecorded, Recording
from torchrepro.cut.subgraph import piece
from torchrepro.cut.windows import Window
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.fake_run import OperatorLog, inductor_decompositions, run_on_fakes
from torchrepro.torch_api.ops import OpOverload, op_name, plain_op_name

WORKING_ON = "torchrepro: working on"
"""How a line on standard error begins that names the op in progress."""
_SHARE = 0.8
"""Fraction of the time limit after which the node in progress is printed."""


@contextmanager
def last_words(time_limit: float) -> Iterator[None]:
    """Print the stack and the current node to stderr if the body crashes or hangs; for subprocesses only."""
    faulthandler.enable(all_threads=False)
    faulthandler.dump_traceback_later(time_limit * (1 + _SHARE) / 2, exit=False)
    main = threading.get_ident()
    watch = threading.Timer(time_limit * _SHARE, lambda: _say(sys._current_frames().get(main)))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
        faulthandler.cancel_dump_traceback_later()


def _say(frame: FrameType | None) -> None:
    node = _node_in(each for each, _ in traceback.walk_stack(frame)) if frame is not None else None
    if node is not None:
        print(f"{WORKING_ON} {_described(node)}", file=sys.stderr, flush=True)


def working_on(raised: BaseException) -> str:
    """Return what was being processed when an exception was raised, a node or a kernel; empty if unknown.

    A kernel that another thread compiled is in no stack: the one that waits for it knows its name.
    """
    node = node_worked_on(raised)
    if node is not None:
        return f"working on {_described(node)}"
    frames = _frames(raised)
    named = (text for frame in frames for text in frame.f_locals.values() if isinstance(text, str))
    kernel = next((text for text in named if len(text) < _NAME_LENGTH and _KERNEL.fullmatch(text)), "")
    return kernel and f"working on {kernel}"


def node_worked_on(raised: BaseException) -> Node | None:
    """Return the node that was being processed when an exception was raised, if a frame held one."""
    return _node_in(_frames(raised))


def _frames(raised: BaseException) -> list[FrameType]:
    """Return the frames that an exception passed, the innermost first."""
    return [frame for frame, _ in traceback.walk_tb(raised.__traceback__)][::-1]


def _described(node: Node) -> str:
    return f"target: {node.target}" if node.op == "call_function" else f"target: {node.op} {node.target}"


def _node_in(frames: Iterable[FrameType]) -> Node | None:
    """Return a node that computes something, from the innermost frame that holds one."""
    for frame in frames:
        for value in list(frame.f_locals.values()):
            if isinstance(value, Node) and value.op not in ("placeholder", "output", "root"):
                return value
    return None


_NAME_LENGTH = 500
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution"))
"""Computed by kernels of a library: what is fused with one is likelier to be wrong in a generated kernel."""
_TARGET = re.compile(r"\btarget:\s*([\w.]+)")
_KERNEL = re.compile(r"\b(?:cpp|triton)_(?:fused|poi_fused|red_fused|per_fused|tem_fused)_(\w+?)_\d+\b")
_OPERATOR = re.compile(r"\b(?:aten|prims|torch\.ops\.\w+)[.:]+(\w+)")
# Inductor names its files by the digest of their contents.
_GENERATED = re.compile(r'File "((?:[^"]*[/\\])?c[a-z2-7]{30,}\.py)", line (\d+)')
_WORD = re.compile(r"[A-Za-z_]\w+")


_IN_KERNEL = 30.0
"""The weight of a name in the name of a generated kernel."""
_SUSPECTS = 2
"""At most so many windows are suspected: each is asked alone."""


def suspects(windows: Sequence[Window], verdict: Verdict, repro: Repro, recording: Recording) -> list[Window]:
    """Return the windows that the evidence points to, strongest first; empty where it names none."""
    evidence = evidence_in(verdict)
    if not evidence:
        return []

    def suspicion(window: Window) -> float:
        """Return the weight of all evidence against an op and its parts; higher the fewer parts it has."""
        ops = [window.node.target, *_parts(window.node, repro, recording)]
        names = {plain_op_name(op_name(op)) for op in ops}
        return sum(evidence.get(name, 0.0) for name in names) / (1 + 0.01 * len(names))

    scored = [(suspicion(window), window) for window in windows]
    named = [window for score, window in sorted(scored, key=lambda pair: -pair[0]) if score > 0]
    return named[:_SUSPECTS]


def evidence_in(verdict: Verdict) -> dict[str, float]:
    """Return names of ops found in a verdict, with the weight of each as evidence."""
    raised = verdict.raised
    message = raised.message if raised is not None else ""
    said = "\n".join([_without_former_ops(verdict.stderr_tail), *verdict.notes])
    text = "\n".join([message, raised.traceback if raised is not None else "", said])
    kernels = _KERNEL.findall(f"{text}\n{_generated_lines(said)}")
    weights: dict[str, float] = {}
    for weight, names in (
        (100.0, _TARGET.findall(f"{message}\n{said}")),
        (_IN_KERNEL, [name for kernel in kernels for name in _names_in_kernel(kernel)]),
        (10.0, _OPERATOR.findall(message)),
        (3.0, _WORD.findall(message.partition("\n")[0])),
    ):
        for name in names:
            fused_with = weight == _IN_KERNEL and name in _PRODUCTS
            plain = plain_op_name(name)
            weights[plain] = max(weights.get(plain, 0.0), 1.0 if fused_with else weight)
    return weights


def _without_former_ops(output: str) -> str:
    """Return the output without the lines on ops that were in progress before the last one."""
    *former, last = output.rpartition(WORKING_ON)
    others = [line for line in "".join(former[:1]).splitlines() if not line.startswith(WORKING_ON)]
    return "\n".join([*others, f"{former[1]}{last}"])


def _parts(node: Node, repro: Repro, recording: Recording) -> list[Any]:
    """Return the ATen ops inside an op, by a run on fake tensors; empty where that fails."""
    table = inductor_decompositions()
    if isinstance(node.target, OpOverload) and node.target not in table:
        return []
    try:
        single = piece(repro, recording, [node.name])
    except NotRecorded:
        return []
    if single is None:
        return []
    log = OperatorLog(table)
    run = run_on_fakes(single, log=log, user_code=True, symbols=False)
    # Where it raises on fake tensors, its name is all that is known.
    return list(log.ops) if run.complete else []


def _generated_lines(stack: str) -> str:
    """Return the lines of generated code in a stack of files and line numbers: they call a kernel by name."""
    return "\n".join(linecache.getline(path, int(number)) for path, number in _GENERATED.findall(stack))


def _names_in_kernel(kernel: str) -> list[str]:
    """Return all runs of up to six words: op names are joined by underscores and may contain some."""
    words = kernel.split("_")
    return ["_".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 6, len(words)) + 1)]
