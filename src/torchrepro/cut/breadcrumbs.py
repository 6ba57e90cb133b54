"""What a candidate's process says about where it was when it crashed, hung or raised: hints for the search.

A crash or a hang leaves the Python stack on standard error, whose innermost line in generated code names the
kernel that was running. Whoever lowers or runs an FX graph holds the node in a local variable: its target is
said as well.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torch.fx import Node

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
