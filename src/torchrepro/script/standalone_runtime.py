"""Functions of standalone scripts: `standalone.py` copies the source of those that a script needs.

They use torch alone, have no annotations (a maintainer reads them in the script) and find the upper-case
names below in the script. Code of the user keeps clear of all these names: `user_code/closure/text.py`.
"""

# mypy: ignore-errors

import os
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
HEADER, DATA = {}, bytearray()  # of the file with the tensors
MAKERS = {}  # name of a value -> function that makes it
MADE = {}  # values and storages that this run has made


def storage(name, device="cpu"):
    """Return the bytes of one storage, shared by all values of one run over it."""
    if name not in MADE:
        start, stop = HEADER[name]["data_offsets"]
        data = torch.frombuffer(DATA[start:stop] or bytearray(1), dtype=torch.uint8)
        MADE[name] = data[: stop - start].to(device)
    return MADE[name].untyped_storage()


def strided(name, dtype, size, stride, offset=0, device="cpu"):
    return torch.empty(0, dtype=dtype, device=device).set_(storage(name, device), offset, size, stride)


def generated(elements, dtype, mean, std, low, high, seed):
    """Return numbers of the same range and spread: the original data was too large to keep."""
    drawn = torch.randn(elements, generator=torch.Generator().manual_seed(seed)) * std + mean
    return drawn.clamp_(low, high).to(dtype)


def kept(name):
    return torch.load(HERE / "values.pt", weights_only=True)[name]


def value_of(name):
    """Return one value of the bundle: an input, a constant of the graph or a random generator's state."""
    if ("value", name) not in MADE:
        MADE["value", name] = MAKERS[name]()
    return MADE["value", name]


def _tensor(name):
    return value_of(f"constant.source.{name}")


def reach(module, path):
    for part in path.split("."):
        module = getattr(module, part)
    return module


def attach(module, path, item, buffer=False):
    *owners, name = path.split(".")
    for owner in owners:
        if not hasattr(module, owner):
            module.add_module(owner, torch.nn.Module())
        module = getattr(module, owner)
    if buffer:
        module._buffers.pop(name, None)
        module.register_buffer(name, item)
    else:
        setattr(module, name, item)


def weights(tensor):
    """Return a different weight for each element of an output: a plain sum would hide wrong gradients."""
    octant = (torch.arange(tensor.numel(), device=tensor.device) * 0x9E3779B1 >> 13) & 7
    return (octant * 2 - 7).to(tensor.dtype).div(8).reshape(tensor.shape)


def tensors_in(item):
    if isinstance(item, torch.Tensor):
        yield item
    elif isinstance(item, (tuple, list, dict)):
        for child in item.values() if isinstance(item, dict) else item:
            yield from tensors_in(child)


def run_backward(outputs):
    asking = [item for item in tensors_in(outputs) if item.requires_grad]
    terms = [torch.view_as_real(item) if item.is_complex() else item for item in asking]
    if terms:
        sum((item * weights(item)).sum() if item.dim() else item for item in terms).backward()


def plain(item, depth=4):
    """Return a copy of the plain data in a value; None for anything else."""
    if depth and isinstance(item, (list, tuple)):
        return [plain(child, depth - 1) for child in item]
    if depth and isinstance(item, dict):
        return {key: plain(child, depth - 1) for key, child in item.items()}
    return item if isinstance(item, (bool, int, float, complex, str, bytes)) else None


def python_state(function, module, names):
    """Return closure variables, attributes and globals of the user's code after a run."""
    found = {f"globals.{name}": globals().get(name) for name in names}
    for path, child in module.named_modules():
        found.update({f"{path}.{name}" if path else name: item for name, item in vars(child).items()})
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        found[f"closure.{name}"] = cell.cell_contents
    if not isinstance(function, torch.nn.Module):
        found.update(getattr(function, "__dict__", {}))
    return {name: plain(item) for name, item in found.items()}


def run_in_copy(compile_it):
    """Run in a fresh copy of this file, so that no run sees what another changed in the user's code."""
    from importlib.util import module_from_spec, spec_from_file_location

    sys.dont_write_bytecode = True  # nothing appears next to this file
    spec = spec_from_file_location("compiled" if compile_it else "eager", __file__)
    copy = sys.modules[spec.name] = module_from_spec(spec)  # where the compiler looks for the code's globals
    spec.loader.exec_module(copy)
    return copy.observe(compile_it)


# Words of the graph's text.


def call_method(name, owner, *args, **kwargs):
    return getattr(owner, name)(*args, **kwargs)


def named_tuple(kind, *items):
    return kind(items)


def set_item(owner, index, item):
    """Set an item; calling `operator.setitem` directly would be a graph break."""
    owner[index] = item


# Whether the recorded failure shows again.


def comparable(item):
    """Return 8-bit floats as float32: they cannot be compared with a tolerance."""
    narrow = isinstance(item, torch.Tensor) and item.is_floating_point() and item.itemsize == 1
    return item.float() if narrow else item


def fails(call, type_name="", words=()):
    """Return whether a call raises this error whose message contains `words`."""
    try:
        call()
    except Exception as error:
        while isinstance(getattr(error, "inner_exception", None), BaseException):
            error = error.inner_exception
        print(f"{type(error).__name__}: {str(error)[:2000]}")
        if type_name in ("", type(error).__name__) and all(word in str(error) for word in words):
            return True
        print("it fails, but in another way than recorded")
    return False


def hangs(call, limit):
    import threading

    def give_up():
        print(f"reproduced: not finished after {limit:g} s", flush=True)
        os._exit(1)

    watch = threading.Timer(limit, give_up)
    watch.daemon = True
    watch.start()
    call()
    watch.cancel()
    return False
