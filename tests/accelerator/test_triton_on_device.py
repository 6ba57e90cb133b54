"""Real Triton kernels of a user, from capture to a check in a fresh process. Needs CUDA and Triton:

python -m pytest tests/accelerator/test_triton_on_device.py -s
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import capture
from commands import answer, torchrepro

from torchrepro import Compiler, Place, Repro, load_bundle, save_bundle
from torchrepro.bundle.read import read_manifest
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import TorchReproError

MISSING = [
    name
    for name, present in (
        ("CUDA", torch.cuda.is_available()),
        ("Triton", importlib.util.find_spec("triton") is not None),
    )
    if not present
]
if MISSING:
    reason = f"no {' and no '.join(MISSING)} on this machine: user-defined Triton kernels were not run"
    print(reason)
    pytest.skip(reason, allow_module_level=True)

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

SHIFT = tl.constexpr(2.0)


@triton.jit
def shifted(value):  # type: ignore[no-untyped-def]
    return value + SHIFT


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, shifted(total), mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["count"])
@triton.jit
def scale_kernel(x, out, count, factor, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < count) * factor, mask=offsets < count)


@triton.jit
def cast_kernel(x, out, count, TYPE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(out + offsets, tl.load(x + offsets, mask=mask).to(TYPE), mask=mask)


def add(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 64),)](x, x.sin(), out, x.numel(), BLOCK=64)
    return out * 2


def scale(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), 3.0)
    return out + 1


def cast(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.float16)
    cast_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), TYPE=tl.float16, BLOCK=64)
    return out


@torch.library.triton_op("torchrepro_accelerator::add", mutates_args=())
def add_op(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 64),)](x, x, out, x.numel(), BLOCK=64)
    return out


def operator(x: torch.Tensor) -> torch.Tensor:
    return add_op(x) + 1


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [(add, None), (add, True), (scale, None), (cast, None), (operator, None), (operator, True)],
)
def test_graphs_with_kernels_pass_from_a_bundle(
    function: Callable[..., Any], dynamic: bool | None, tmp_path: Path
) -> None:
    captured = capture(function, torch.randn(1000, device="cuda"), dynamic=dynamic)
    assert {item.place for item in captured} == {"dynamo", "inference"}
    for item in captured:
        place = Place.AFTER_CAPTURE if item.place == "dynamo" else Place.AFTER_AOT
        repro = Repro(item.graph, item.inputs, place, Compiler(), symbols=symbols_of(item.graph))
        bundle = save_bundle(repro, tmp_path / item.place)
        manifest = read_manifest(bundle)
        assert manifest.kernels or manifest.custom_ops
        assert (bundle / "operators.py").exists(), manifest.notes
        if manifest.kernels:
            with pytest.raises(TorchReproError, match="--trust source"):
                load_bundle(bundle)
        found = answer(torchrepro("check", "--json", bundle, "--trust", "source"))
        assert found["verdict"] == "pass", found


def test_the_text_has_names_and_no_places() -> None:
    text = write_graph(capture(add, torch.randn(64, device="cuda"))[0].graph).text
    assert 'triton_kernel("add_kernel")' in text
    assert 'triton_constants({"BLOCK": 64})' in text or '"BLOCK": 64' in text
