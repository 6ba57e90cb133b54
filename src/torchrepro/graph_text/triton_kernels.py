"""User-defined Triton kernels in a graph: numbers in a table of this process, names in a bundle.

A graph calls a kernel through a higher-order operator, with the places of the kernel and of its constant
arguments in a table that lives as long as the process. In text a place becomes `triton_kernel("name")` or
`triton_constants({...})`; reading puts both into the table of the reading process and their places back.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx.node import Node

from torchrepro.nouns.errors import CannotSerialise, GraphTextError
from torchrepro.nouns.repro import SOURCE_TRUST
from torchrepro.torch_api.ops import HigherOrderOperator, kernel_side_table

KERNEL_WRAPPERS = frozenset({"triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"})
_KERNEL, _CONSTANTS = "kernel_idx", "constant_args_idx"


@dataclass(frozen=True)
class KernelPlace:
    """Stands in the arguments of a node for the place of a kernel."""

    kernel: Any


@dataclass(frozen=True)
class ConstantsPlace:
    """Stands in the arguments of a node for the place of a kernel's constant arguments."""

    values: Mapping[str, Any]


def calls_kernel(node: Node) -> bool:
    return isinstance(node.target, HigherOrderOperator) and node.target.name() in KERNEL_WRAPPERS


def with_places(node: Node) -> dict[str, Any]:
    """Return the node's keyword arguments with entries of the table in place of their numbers."""
    table = kernel_side_table()
    try:
        kernel = table.get_kernel(node.kwargs[_KERNEL])
        constants = table.get_constant_args(node.kwargs[_CONSTANTS])
    except (AssertionError, KeyError) as failure:
        raise CannotSerialise(
            f"the node {node.name} calls a Triton kernel that this process does not know",
            next_step="save the graph in the process that captured it",
        ) from failure
    return {**node.kwargs, _KERNEL: KernelPlace(kernel), _CONSTANTS: ConstantsPlace(constants)}


def kernel_of(kwargs: Mapping[str, Any]) -> Any:
    """Return the kernel that a call of the wrapping operator launches."""
    return kernel_side_table().get_kernel(kwargs[_KERNEL])


def place_of_kernel(name: str, kernels: Mapping[str, Any]) -> int:
    """Add a kernel of the bundle to the table of this process; return its place."""
    kernel = kernel_named(name, kernels)
    inner = getattr(kernel, "fn", None)
    if inner is not None and not hasattr(inner, "__name__"):
        # An autotuner around heuristics: torch's eager run of the operator reads its name (2.11 to 2.15).
        inner.__name__ = kernel_name(inner)
    place: int = kernel_side_table().add_kernel(kernel)
    return place


def place_of_constants(values: dict[str, Any]) -> int:
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise TypeError("constant arguments are a dictionary by name")
    place: int = kernel_side_table().add_constant_args(dict(values))
    return place


def kernel_named(name: str, kernels: Mapping[str, Any]) -> Any:
    if name not in kernels:
        raise GraphTextError(
            f"the graph calls the Triton kernel {name}, code of the user",
            next_step=(
                "read it with torchrepro show --source BUNDLE, "
                f"allow it with torchrepro check BUNDLE --trust {SOURCE_TRUST}"
            ),
        )
    return kernels[name]


def kernel_name(kernel: Any) -> str:
    """Return the name of the function inside the decorators (`jit`, `autotune`, `heuristics`)."""
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", "kernel"))


def autotuner_text(kernel: Any) -> str | None:
    """Return a call of `triton.autotune` that makes this kernel of its `fn`; None if it is no autotuner.

    Capture replaces a user's autotuner by one of its own, which no name in the user's code refers to.
    """
    if not _from_triton(kernel) or type(kernel).__name__ != "Autotuner":
        return None
    configs = ", ".join(map(_config_text, kernel.configs))
    return f"triton.autotune(configs=[{configs}], key={list(kernel.keys)!r})"


def _config_text(config: Any) -> str:
    if config.pre_hook is not None:
        raise CannotSerialise(
            "a configuration of a Triton kernel has a pre_hook", next_step="tune the kernel without it"
        )
    options = {
        name: value
        for name in ("num_warps", "num_stages", "num_ctas", "maxnreg")
        if (value := getattr(config, name, None)) is not None
    }
    return f"triton.Config({', '.join([repr(config.kwargs), *(f'{k}={v!r}' for k, v in options.items())])})"


def is_kernel(value: Any) -> bool:
    """Return whether a value is a function under a decorator of Triton."""
    return _from_triton(value) and hasattr(value, "fn")


def is_dtype(value: Any) -> bool:
    """Return whether a value is an element type of Triton."""
    return _from_triton(value) and type(value).__name__ == "dtype"


def dtype_named(name: str) -> Any:
    try:
        language: Any = importlib.import_module("triton.language")
    except ImportError as failure:
        raise GraphTextError(
            "the graph names an element type of Triton, which is not installed", next_step="install triton"
        ) from failure
    return language.dtype(name)


def _from_triton(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "triton"
