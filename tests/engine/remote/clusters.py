"""A real Ray cluster of several nodes on this machine, and how to lose parts of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_STORE = 80 << 20
"""Bytes of a node's object store: Ray allows no less."""


@contextmanager
def cluster_of(nodes: int) -> Iterator[Any]:
    """Yield a cluster whose nodes have a core each; no process of it is left, also if the body fails.

    Its workers can import what this process can.
    """
    pytest.importorskip("ray", reason="the extra torchrepro[ray] is not installed")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {"num_cpus": 1, "object_store_memory": _STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            patch.setenv("RAY_ADDRESS", cluster.address)
            for _ in range(nodes - 1):
                cluster.add_node(num_cpus=1, object_store_memory=_STORE)
            yield cluster
        finally:
            cluster.shutdown()
