"""Do some work in a copy of this process, so that nothing of it is left behind here.

Caches, gradients, generators, inputs: a forked child has its own of all of them, without copying any.
"""

from __future__ import annotations

import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from torchrepro.torch_api.generators import accelerators, is_initialised


def can_fork() -> bool:
    """A context of an accelerator does not survive a fork, and other ranks would hear a second voice."""
    distributed = torch.distributed
    return not any(map(is_initialised, accelerators())) and not (
        distributed.is_available() and distributed.is_initialized()
    )


def in_a_fork(work: Callable[[], Any], *, time_limit: float) -> Any:
    """What `work` returns, which must be plain data; None if the child died or took too long."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns of other threads. Those of torch are not needed in a child that computes with one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _child(work, writing)
    os.close(writing)
    try:
        received = _received(reading, time.monotonic() + time_limit)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return msgspec.json.decode(received) if received else None


def _child(work: Callable[[], Any], writing: int) -> None:
    """Never returns. What the user's code prints has been printed once already."""
    status = 1
    try:
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        torch.set_num_threads(1)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(msgspec.json.encode(work()))
        status = 0
    finally:
        os._exit(status)


def _received(reading: int, deadline: float) -> bytes:
    """Everything that the child sends; nothing if it is not done in time."""
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b""
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
