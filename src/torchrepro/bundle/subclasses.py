"""Tensor subclasses, device meshes and process groups to entries and back.

A wrapper is taken apart and rebuilt by its own `__tensor_flatten__` and `__tensor_unflatten__`; a DTensor is
 its local tensor, mesh and placements, whatever a version of torch flattens it to. The class of a user is
code: an entry has its path, and only a reader who trusts that code finds the class again.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from torchrepro.bundle.manifest import (
    AsSubclassEntry,
    DTensorEntry,
    GroupEntry,
    MeshEntry,
    OpaqueEntry,
    SubclassEntry,
    ValueEntry,
    parts_of,
)
from torchrepro.bundle.storages import NotKept
from torchrepro.graph_text.resolver import torch_class
from torchrepro.judge.tensors import inner_values, is_wrapper_subclass
from torchrepro.nouns.errors import BundleError, class_path, damaged
from torchrepro.torch_api.distributed import group_named, make_mesh, make_placement, placement_parts
from torchrepro.torch_api.modes import DisableTorchFunctionSubclass
from torchrepro.torch_api.names import SUBCLASS_MODULES
from torchrepro.torch_api.tensors import hint, make_subclass

if TYPE_CHECKING:
    from torchrepro.bundle.values import Packer, Unpacker

_FLATTENS = frozenset({"__tensor_flatten__", "__tensor_unflatten__"})


def pack_subclass(
    tensor: torch.Tensor, traits: dict[str, Any], where: str, packing: Packer
) -> SubclassEntry | AsSubclassEntry | DTensorEntry:
    """Describe a tensor of a subclass; `NotKept` with the reason where its class or its parts cannot be."""

    def part(name: str, value: Any) -> ValueEntry:
        entry = packing.pack(value, f"{where}.{name}")
        for found in parts_of(entry):
            if isinstance(found, OpaqueEntry):
                raise NotKept(f"its {found.type} cannot be kept")
        return entry

    if _is_dtensor(tensor):
        return _pack_dtensor(cast(Any, tensor), traits, part)
    kind = type(tensor)
    name = class_path(kind)
    if find_torch_class(name) is not kind:
        found = packing.path_of_code(kind)
        if found is None:
            raise NotKept(f"the source of its class {name} was not found, and it has no name to import")
        name = found
    if not is_wrapper_subclass(tensor):
        with DisableTorchFunctionSubclass():
            plain = tensor.detach().as_subclass(torch.Tensor)
        if type(plain) is not torch.Tensor or _is_wrapper(tensor):
            raise NotKept("it is a wrapper without __tensor_flatten__")
        attributes = {key: part(key, value) for key, value in vars(tensor).items() if not key.startswith("_")}
        return AsSubclassEntry(**traits, type=name, plain=part("plain", plain), attributes=attributes)
    inner, context = inner_values(tensor)
    size, stride = (
        tuple(-1 if number is None else int(number) for number in map(hint, numbers))
        for numbers in (tensor.size(), tensor.stride())
    )
    return SubclassEntry(
        **traits,
        type=name,
        size=size,
        stride=stride,
        context=part("context", context),
        inner={key: part(key, value) for key, value in inner.items()},
    )


def build_subclass(
    entry: SubclassEntry | AsSubclassEntry | DTensorEntry, unpacking: Unpacker
) -> torch.Tensor:
    """Return the tensor of a subclass that an entry describes, without its gradient."""
    if isinstance(entry, DTensorEntry):
        return _build_dtensor(entry, unpacking)
    found: Any = unpacking.find_code(entry.type) if ":" in entry.type else find_torch_class(entry.type)
    wrapper = isinstance(entry, SubclassEntry)
    if found is None:
        raise BundleError(
            f"the bundle holds a {entry.type}, which torch {torch.__version__} does not have",
            next_step="use the torch version that the manifest names",
        )
    fits = isinstance(found, type) and issubclass(found, torch.Tensor)
    fits = fits and (not wrapper or set(dir(found)) >= _FLATTENS)
    names = entry.inner if isinstance(entry, SubclassEntry) else entry.attributes
    if not fits or not all(name.isidentifier() and not name.startswith("__") for name in names):
        raise damaged(f"{entry.type} is no tensor class that fits")
    if isinstance(entry, AsSubclassEntry):
        made = make_subclass(found, unpacking.unpack(entry.plain))
        vars(made).update({name: unpacking.unpack(part) for name, part in entry.attributes.items()})
        return made
    context = unpacking.unpack(entry.context)
    inner = {name: unpacking.unpack(part) for name, part in entry.inner.items()}
    return cast(torch.Tensor, found.__tensor_unflatten__(inner, context, entry.size, entry.stride))


def find_torch_class(name: str) -> type[torch.Tensor] | None:
    """Return the tensor subclass of torch with this full name, if there is one.

    A name in an untrusted manifest imports nothing but the modules of a table: others of torch parse the
    command line, start tools or register operators when they are imported.
    """
    module_name = name.rpartition(".")[0]
    if module_name in SUBCLASS_MODULES:
        with suppress(ImportError):  # another version of torch, or a build without this part
            importlib.import_module(module_name)
    found = torch_class(name)
    fits = found is not None and issubclass(found, torch.Tensor) and set(dir(found)) >= _FLATTENS
    return found if fits else None


def _is_wrapper(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has no memory of its own."""
    try:
        return tensor.device.type != "meta" and tensor.numel() > 0 and tensor.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):
        return True


# DTensor, meshes, groups


def _is_dtensor(tensor: torch.Tensor) -> bool:
    return is_wrapper_subclass(tensor) and hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def _pack_dtensor(tensor: Any, traits: dict[str, Any], part: Any) -> DTensorEntry:
    # `to_local` is a function of autograd, and waits for an unfinished collective.
    local = tensor.detach().to_local()
    return DTensorEntry(
        **traits,
        local=part("local", local),
        mesh=part("mesh", tensor.device_mesh),
        placements=tuple(map(_pack_placement, tensor.placements)),
        size=tuple(map(int, tensor.size())),
        stride=tuple(map(int, tensor.stride())),
    )


def _pack_placement(placement: Any) -> tuple[str | int, ...]:
    found = placement_parts(placement)
    if found is None:
        raise NotKept(f"its placement {placement} is unknown")
    return found[0], *found[1]


def _build_dtensor(entry: DTensorEntry, unpacking: Unpacker) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    local, mesh = unpacking.unpack(entry.local), unpacking.unpack(entry.mesh)
    placements = [make_placement(str(path), *fields) for path, *fields in entry.placements]
    with torch.no_grad():
        return DTensor.from_local(
            local, mesh, placements, run_check=False, shape=torch.Size(entry.size), stride=entry.stride
        )


def pack_distributed(value: Any, number: int) -> MeshEntry | GroupEntry | None:
    """Describe a mesh or a process group; None for any other object."""
    if not dist.is_available() or not type(value).__module__.startswith("torch."):
        return None
    from torch.distributed.device_mesh import DeviceMesh

    if isinstance(value, dist.ProcessGroup):
        return GroupEntry(number, str(value.group_name))
    if not isinstance(value, DeviceMesh):
        return None
    ranks = value.mesh
    return MeshEntry(
        number=number,
        device=value.device_type,
        shape=tuple(ranks.shape),
        ranks=tuple(ranks.flatten().tolist()),
        names=value.mesh_dim_names,
        groups=tuple(str(value.get_group(dim).group_name) for dim in range(ranks.dim())),
    )


def build_distributed(entry: MeshEntry | GroupEntry) -> Any:
    """Return the mesh or group, over the groups of this process."""
    try:
        if isinstance(entry, GroupEntry):
            return group_named(entry.name)
        ranks = torch.tensor(entry.ranks, dtype=torch.int).reshape(entry.shape)
        return make_mesh(entry.device, ranks, entry.names, entry.groups)
    except RuntimeError as error:
        raise damaged(f"the bundle needs process groups that it does not describe: {error}") from error
