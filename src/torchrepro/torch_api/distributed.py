"""Process groups.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from typing import Any


def default_store() -> Any:
    """Return the store of the default process group; None for a backend that needs none, MPI.

    `_get_default_store`.
    """
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()
