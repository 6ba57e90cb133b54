"""Whether the watch is on: it is off for whatever a check itself compiles and runs.

One switch for the process, not one for each thread: autograd runs backward in threads of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_lock = threading.Lock()
_checks = 0


def is_checking() -> bool:
    """Whether a check is going on, so that the watch must look away."""
    return _checks > 0


@contextmanager
def looking_away() -> Iterator[None]:
    """The body is a check of our own: nothing in it is watched.

    Nor does it reach the user's hooks on tensors that autograd saves: checkpointing counts them.
    """
    from torch.autograd.graph import saved_tensors_hooks

    global _checks
    with _lock:
        _checks += 1
    try:
        with saved_tensors_hooks(_as_it_is, _as_it_is):
            yield
    finally:
        with _lock:
            _checks -= 1


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
