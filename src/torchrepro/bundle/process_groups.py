"""The process groups that a repro needs: found in its job, and replaced where one process reads a bundle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.fx import GraphModule, Node

from torchrepro.judge.tensors import is_wrapper_subclass
from torchrepro.nouns.errors import damaged
from torchrepro.nouns.repro import ProcessGroups
from torchrepro.torch_api.distributed import groups_by_name, has_fake_groups, start_fake_groups
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

COMMUNICATING = ("_c10d_functional", "c10d_functional", "_dtensor", "c10d", "symm_mem")
"""Libraries whose operators talk to other ranks."""
_MOST_RANKS, _MOST_GROUPS = 1 << 20, 1 << 12


def communicates(graph: GraphModule) -> bool:
    """Return whether a node of the graph, or of a graph nested in it, talks to other ranks."""
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return any(_talks(node) for module in modules for node in module.graph.nodes)


def _talks(node: Node) -> bool:
    if isinstance(node.target, OpOverload | OpOverloadPacket):
        return str(node.target).partition(".")[0] in COMMUNICATING
    return (getattr(node.target, "__module__", "") or "").startswith("torch.distributed")


def is_distributed(value: Any) -> bool:
    """Return whether a value belongs to a process group: a DTensor, a mesh, a group."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "torch" or kind is torch.Tensor:
        return False
    named = (kind.__module__, kind.__name__)
    if isinstance(value, torch.Tensor):
        return is_wrapper_subclass(value) and hasattr(value, "device_mesh")
    return named[0].startswith("torch.distributed") or named[0].endswith("_distributed_c10d")


def current_groups() -> ProcessGroups | None:
    """Return the process groups of this process, None where it has none."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return ProcessGroups(dist.get_rank(), dist.get_world_size(), groups_by_name())


def needed_groups(graph: GraphModule, values: Iterable[Any]) -> ProcessGroups | None:
    """Return the process groups of this process if a graph or one of its values needs them."""
    needed = communicates(graph) or any(map(is_distributed, (*values, *graph.parameters(), *graph.buffers())))
    return current_groups() if needed else None


def require_groups(groups: ProcessGroups) -> None:
    """Create the groups of a bundle in this process, where they communicate with no other process.

    Groups of a job that this process is part of are left alone: its own bundle fits them.
    """
    sane = 0 <= groups.rank < groups.size <= _MOST_RANKS and 0 < len(groups.groups) <= _MOST_GROUPS
    for ranks in groups.groups.values():
        sane &= groups.rank in ranks and len({*ranks}) == len(ranks)
        sane &= all(0 <= rank < groups.size for rank in ranks)
    if not sane:
        raise damaged("the manifest describes impossible process groups")
    if dist.is_initialized():
        if not has_fake_groups() or current_groups() == groups:
            return
        dist.destroy_process_group()
    start_fake_groups(groups.rank, groups.size, dict(groups.groups))
