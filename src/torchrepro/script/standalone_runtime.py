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
SOURCE_NAMES = []


def storage(name, device="cpu"):
    """The bytes of one storage, shared by all values of one run that live in it."""
    if name not in MADE:
        start, stop = HEADER[name]["data_offsets"]
        data = torch.frombuffer(bytearray(DATA[start:stop]) or bytearray(1), dtype=torch.uint8)
        MADE[name] = data[: stop - start].to(device)
    return MADE[name].untyped_storage()


def strided(name, dtype, size, stride, offset=0, device="cpu"):
    return torch.empty(0, dtype=dtype, device=device).set_(storage(name, device), offset, size, stride)


def generated(elements, dtype, mean, std, low, high, seed):
    """Not the original data, which was too large to keep: numbers of the same range and spread."""
    drawn = torch.randn(elements, generator=torch.Generator().manual_seed(seed)) * std + mean
    return drawn.clamp_(low, high).to(dtype)


def kept(name):
    return torch.load(HERE / "values.pt", weights_only=True)[name]


def value(name):
    """One value of the bundle: an input, a constant of the graph or the state of a random generator."""
    if ("value", name) not in MADE:
        MADE["value", name] = MAKERS[name]()
    return MADE["value", name]


def _tensor(name):
    return value(f"constant.source.{name}")


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
    """A weight of its own for each element of an output: a plain sum would hide wrong gradients."""
    octant = (torch.arange(tensor.numel(), device=tensor.device) * 0x9E3779B1 >> 13) & 7
    return (octant * 2 - 7).to(tensor.dtype).div(8).reshape(tensor.shape)


def run_backward(results):
    terms = [
        torch.view_as_real(item) if item.is_complex() else item
        for item in results.values()
        if isinstance(item, torch.Tensor) and item.requires_grad
    ]
    if terms:
        sum((item * weights(item)).sum() if item.dim() else item for item in terms).backward()


def leaves(item, path):
    if isinstance(item, torch.Tensor):
        yield path, item
    elif isinstance(item, dict):
        yield path, sorted(map(str, item))
        for key, child in item.items():
            attribute = hasattr(item, "__dataclass_fields__")
            step = f".{key}" if attribute else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
            yield from leaves(child, path + step)
    elif isinstance(item, (tuple, list)):
        yield path, len(item)
        for index, child in enumerate(item):
            step = f".{item._fields[index]}" if hasattr(item, "_fields") else f"[{index}]"
            yield from leaves(child, path + step)
    elif item is not None:
        yield path, item


def plain(item, depth=4):
    """A copy of the plain data in a value; None for what is no data."""
    if depth and isinstance(item, (list, tuple)):
        return [plain(child, depth - 1) for child in item]
    if depth and isinstance(item, dict):
        return {key: plain(child, depth - 1) for key, child in item.items()}
    return item if isinstance(item, (bool, int, float, complex, str, bytes)) else None


def python_state(function, module):
    """Closure variables, attributes and globals of the user's code, as the run has left them."""
    found = {f"globals.{name}": globals().get(name) for name in SOURCE_NAMES}
    for path, child in module.named_modules():
        found.update({f"{path}.{name}" if path else name: item for name, item in vars(child).items()})
    cells = getattr(function, "__closure__", None) or ()
    for name, cell in zip(function.__code__.co_freevars if cells else (), cells, strict=True):
        found[f"closure.{name}"] = cell.cell_contents
    if not isinstance(function, torch.nn.Module):
        found.update(getattr(function, "__dict__", {}))
    return {name: plain(item) for name, item in found.items()}


def run(compile_it):
    """In a fresh copy of this file: what one run changes in the user's code, the next does not see."""
    from importlib.util import module_from_spec, spec_from_file_location

    sys.dont_write_bytecode = True  # nothing appears next to this file
    spec = spec_from_file_location("compiled" if compile_it else "eager", __file__)
    copy = sys.modules[spec.name] = module_from_spec(spec)  # where the compiler looks for the code's globals
    spec.loader.exec_module(copy)
    return copy.observe(compile_it)


# Whether the recorded failure shows again.


def only_runs():
    run(compile_it=False)
    run(compile_it=True)
    return False


def crashes():
    run(compile_it=False)
    print("if the next line is missing, the process has crashed: reproduced", flush=True)
    run(compile_it=True)
    return False


def hangs(limit):
    import threading

    def give_up():
        print(f"reproduced: not finished after {limit:g} s", flush=True)
        os._exit(1)

    run(compile_it=False)
    watch = threading.Timer(limit, give_up)
    watch.daemon = True
    watch.start()
    run(compile_it=True)
    watch.cancel()
    return False


def raises(type_name, words):
    """`words` stand in the message of the exception; what varies from run to run is left out."""
    run(compile_it=False)
    try:
        run(compile_it=True)
    except Exception as error:
        while isinstance(getattr(error, "inner_exception", None), BaseException):
            error = error.inner_exception
        message = str(error)
        print(f"{type(error).__name__}: {message[:2000]}")
        if type(error).__name__ == type_name and all(word in message for word in words):
            return True
        print("it fails, but in another way than recorded")
    return False


def misses_error():
    try:
        run(compile_it=False)
    except Exception as error:
        print(f"eager raises {type(error).__name__}: {error}")
    else:
        print("eager does not raise any more")
        return False
    try:
        run(compile_it=True)
    except Exception as error:
        print(f"compiled raises as well: {type(error).__name__}")
        return False
    print("compiled does not raise")
    return True


def differs(eager, compiled, limit):
    if not (isinstance(eager, torch.Tensor) and isinstance(compiled, torch.Tensor)):
        return eager is not compiled and eager != compiled
    if eager.shape != compiled.shape or eager.dtype != compiled.dtype or eager.device != compiled.device:
        return True
    if eager.layout != torch.strided:
        eager, compiled = eager.to_dense(), compiled.to_dense()
    if eager.is_quantized:
        eager, compiled = eager.dequantize(), compiled.dequantize()
    if not (eager.is_floating_point() or eager.is_complex()):
        return not torch.equal(eager, compiled)
    wide = torch.complex128 if eager.is_complex() else torch.float64
    eager, compiled = eager.detach().to(wide), compiled.detach().to(wide)
    return not torch.allclose(compiled, eager, rtol=0.0, atol=limit, equal_nan=True)


def mismatches(limits):
    """`limits`: what was found to differ, and half of the error that was seen there."""
    eager, compiled = run(compile_it=False), run(compile_it=True)
    found = [path for path, limit in limits.items() if differs(eager.get(path), compiled.get(path), limit)]
    for path in found:
        print(f"{path} differs")
        print("  eager   ", str(eager.get(path))[:500])
        print("  compiled", str(compiled.get(path))[:500])
    return bool(found)
