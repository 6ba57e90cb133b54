"""Process groups, and groups of one process that stand for them.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from torchrepro.torch_api.names import FAKE_GROUPS

_HashStore: Any = getattr(dist, "HashStore", None)  # a build without distributed has none


def _c10d() -> Any:
    return import_module("torch.distributed.distributed_c10d")  # a build without distributed has none


def default_store() -> Any:
    """Return the store of the default process group; None for a backend that needs none, MPI.

    `_get_default_store`.
    """
    return _c10d()._get_default_store()


def groups_by_name() -> dict[str, tuple[int, ...]]:
    """Return the global ranks of each group of this process, the default one first (`_world.pg_names`)."""
    return {
        str(name): tuple(dist.get_process_group_ranks(group))
        for group, name in _c10d()._world.pg_names.items()
    }


def group_named(name: str) -> Any:
    """Return the process group that is registered under a name (`_resolve_process_group`)."""
    return _c10d()._resolve_process_group(name)


def start_fake_groups(rank: int, size: int, groups: dict[str, tuple[int, ...]]) -> None:
    """Make groups of these names and ranks that talk to no other process; the first is the default one.

    `FakeProcessGroup`, `_world`, `_register_process_group`, `_new_process_group_helper`.
    """
    import_module(FAKE_GROUPS)
    c10d = _c10d()
    dist.init_process_group("fake", rank=rank, world_size=size, store=_HashStore())
    world: Any = dist.group.WORLD
    for number, (name, ranks) in enumerate(groups.items()):
        if number == 0:
            if world.group_name != name:
                c10d._register_process_group(name, world)
            continue
        made, _ = c10d._new_process_group_helper(
            len(ranks),
            ranks.index(rank),
            list(ranks),
            "fake",
            _HashStore(),
            group_name=name,
            timeout=c10d.default_pg_timeout,
        )
        c10d._world.pg_group_ranks[made] = {global_: local for local, global_ in enumerate(ranks)}


def wait_for(tensor: Any) -> Any:
    """Wait for the collective that computes a tensor (`_c10d_functional.wait_tensor`)."""
    return torch.ops._c10d_functional.wait_tensor.default(tensor)


def has_fake_groups() -> bool:
    """Return whether the default process group of this process is a fake one, which does not communicate."""
    return dist.is_available() and dist.is_initialized() and dist.get_backend() == "fake"


def is_mesh_or_group(value: Any) -> bool:
    """Return whether a value is a `DeviceMesh` or a `ProcessGroup`; imports nothing."""
    home, name = type(value).__module__, type(value).__name__
    return home.startswith("torch.") and (
        (name == "DeviceMesh" and home.endswith(".device_mesh"))
        or (name == "ProcessGroup" and home.endswith("distributed_c10d"))
    )


PLACEMENTS: dict[str, tuple[str, ...]] = {
    "torch.distributed.tensor.Replicate": (),
    "torch.distributed.tensor.Shard": ("dim",),
    "torch.distributed.tensor.Partial": ("reduce_op",),
    "torch.distributed.tensor.placement_types._StridedShard": ("dim", "split_factor"),
}
"""The classes that say how a DTensor lies on a dimension of its mesh, with their fields."""


def placement_parts(value: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return the class of a placement by its path and the values of its fields; None for another value."""
    if not type(value).__module__.startswith("torch.distributed.tensor"):
        return None
    for path, names in PLACEMENTS.items():
        if type(value).__name__ == path.rpartition(".")[2]:
            return path, tuple(getattr(value, name) for name in names)
    return None


def make_placement(path: str, *fields: Any) -> Any:
    """Return the placement of a class of `PLACEMENTS` with these fields."""
    # Before the import: a stranger's bundle may name any module.
    if path not in PLACEMENTS or len(fields) != len(PLACEMENTS[path]):
        raise ValueError(f"{path} takes {len(PLACEMENTS.get(path, ()))} fields")
    module, _, name = path.rpartition(".")
    kind = getattr(import_module(module), name)
    # The last field of a strided shard can only be given by name.
    return kind(*fields[:1], **dict(zip(PLACEMENTS[path][1:], fields[1:], strict=True)))


def make_mesh(device: str, ranks: Any, names: Sequence[str] | None, groups: Sequence[str]) -> Any:
    """Return a device mesh over groups that exist, one for each dimension."""
    from torch.distributed.device_mesh import DeviceMesh

    found = [group_named(name) for name in groups]
    if len(found) == 1:
        return DeviceMesh.from_group(found[0], device, mesh_dim_names=tuple(names) if names else None)
    # Several groups need names; a mesh that had none then differs only in its representation.
    given = tuple(names) if names else tuple(f"dim_{index}" for index in range(len(found)))
    return DeviceMesh.from_group(found, device, mesh=ranks, mesh_dim_names=given)
