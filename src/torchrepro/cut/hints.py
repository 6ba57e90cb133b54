"""Hints: which ops the evidence of a failure names.

A lowering exception carries `target: aten.erf.default`; a generated kernel is called `cpp_fused_gelu_view_3`
after what was fused into it; a message may simply name an op. A crash or a hang leaves the Python stack on
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
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

_SHARE = 0.8
"""Of the time limit, after which a run is asked where it is."""


@contextmanager
def last_words(time_limit: float) -> Iterator[None]:
    """Leave traces on standard error if the body crashes or hangs. In a process of its own only."""
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
    node = _node_in(_outwards(frame))
    if node is not None:
        print(f"torchrepro: working on {described(node)}", file=sys.stderr, flush=True)


def node_of(raised: BaseException) -> Node | None:
    """The node that was being worked on when an exception was raised, by the frames it came through."""
    frames: list[FrameType] = []
    step = raised.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    return _node_in(iter(reversed(frames)))


def described(node: Node) -> str:
    return f"target: {node.target}" if node.op == "call_function" else f"target: {node.op} {node.target}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _node_in(frames: Iterator[FrameType]) -> Node | None:
    """A node that computes something, in the innermost frame that has one."""
    for frame in frames:
        for value in list(frame.f_locals.values()):
            if isinstance(value, Node) and value.op not in ("placeholder", "output", "root"):
                return value
    return None


_TARGET = re.compile(r"\btarget:\s*([\w.]+)")
_KERNEL = re.compile(r"\b(?:cpp|triton)_(?:fused|poi_fused|red_fused|per_fused|tem_fused)_(\w+?)_\d+\b")
_OPERATOR = re.compile(r"\b(?:aten|prims|torch\.ops\.\w+)[.:]+(\w+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_WORD = re.compile(r"[A-Za-z_]\w+")


def suspects(windows: Sequence[Window], verdict: Verdict, repro: Repro, recording: Recording) -> list[Window]:
    """The windows that the evidence points to, the strongest suspicion first; none where it says nothing."""
    evidence = Evidence.of(verdict)
    if evidence.is_empty:
        return []
    scored = [(evidence.against(names_in(window, repro, recording)), window) for window in windows]
    return [window for score, window in sorted(scored, key=lambda pair: -pair[0]) if score > 0]


class Evidence:
    """Names of ops found in a verdict, with how much they tell."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights

    @classmethod
    def of(cls, verdict: Verdict) -> Evidence:
        raised = verdict.raised
        message = raised.message if raised is not None else ""
        said = "\n".join([verdict.stderr_tail, *verdict.notes])
        text = "\n".join([message, raised.traceback if raised is not None else "", said])
        weights: dict[str, float] = {}

        def add(name: str, weight: float) -> None:
            weights[plain_op_name(name)] = max(weight, weights.get(plain_op_name(name), 0.0))

        for target in _TARGET.findall(f"{message}\n{said}"):
            add(target, 100.0)
        for kernel in _KERNEL.findall(f"{text}\n{_generated_lines(said)}"):
            for name in _names_in_kernel(kernel):
                add(name, 30.0)
        for name in _OPERATOR.findall(message):
            add(name, 10.0)
        for word in _WORD.findall(message.partition("\n")[0]):
            add(word, 3.0)
        return cls(weights)

    @property
    def is_empty(self) -> bool:
        return not self._weights

    def against(self, names: Mapping[str, int]) -> float:
        """How much is known against an op that does these things; one that does fewer is suspected more."""
        found = max((self._weights.get(name, 0.0) for name in names), default=0.0)
        return found / (1 + 0.01 * len(names))


def names_in(window: Window, repro: Repro, recording: Recording) -> dict[str, int]:
    """What an op is called and what it is made of: its own name and those of its ATen ops, with counts."""
    names: dict[str, int] = {plain_op_name(op_name(window.node.target)): 1}
    for part in _parts(window.node, repro, recording):
        name = plain_op_name(op_name(part))
        names[name] = names.get(name, 0) + 1
    return names


def _parts(node: Node, repro: Repro, recording: Recording) -> list[Any]:
    """The ATen ops inside an op, by a run on fake tensors; empty where that does not work."""
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
    """The lines of generated code in a stack of files and numbers: they call a kernel by name."""
    places = _FRAME.findall(stack)
    return "\n".join(linecache.getline(path, int(number)) for path, number in places if _is_generated(path))


def _is_generated(path: str) -> bool:
    """Inductor's files are called by the digest of what is in them."""
    return re.fullmatch(r"c[a-z2-7]{30,}\.py", Path(path).name) is not None


def _names_in_kernel(kernel: str) -> list[str]:
    """Names of ops joined by underscores, some of which have underscores: every run of words may be one."""
    words = kernel.split("_")
    return ["_".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 6, len(words)) + 1)]
