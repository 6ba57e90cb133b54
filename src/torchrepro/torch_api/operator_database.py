"""The operator database of torch's own tests: every operator with sample inputs that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import islice
from typing import Any

import torch

from torchrepro.nouns.errors import TorchReproError

_DATABASE = "torch.testing._internal.common_methods_invocations"
_ELEMENTWISE = ("UnaryUfuncInfo", "BinaryUfuncInfo")
_REDUCTION = "ReductionOpInfo"


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one call that an operator accepts."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of the database."""

    name: str
    """With the name of its variant, as in `std.unbiased`."""
    function: Callable[..., Any]
    in_place: Callable[..., Any] | None
    elementwise: bool
    """Each element of the result depends on one element of each operand."""
    reduction: bool
    differentiable: bool
    lapack: bool
    """Whether it calls LAPACK, which no compiler replaces, and which may crash for NaN."""
    entry: Any
    """The `OpInfo`."""

    def dtypes(self) -> list[torch.dtype]:
        """Return the dtypes that the operator accepts on the CPU. Checked on torch 2.13."""
        return sorted(self.entry.supported_dtypes("cpu"), key=str)

    def samples(self, dtype: torch.dtype, most: int) -> Iterator[Sample]:
        """Yield so many sample arguments at most. Values are drawn from torch. Checked on torch 2.13.

        Not by `sample_inputs`, which walks the stack for the test that is running and seeds torch for each
        sample: 0.08 s of processor time a call, more than making, checking and judging a program takes.
        """
        for sample in islice(self.entry.sample_inputs_func(self.entry, "cpu", dtype, False), most):
            yield Sample((sample.input, *sample.args), dict(sample.kwargs))


@cache
def operators() -> tuple[Operator, ...]:
    """Return the operators of the database, in its order. Checked on torch 2.13.

    Importing it takes seconds. It needs packages that only torch's tests need, so it may not be importable.
    """
    try:
        database = import_module(_DATABASE).op_db
    except ImportError as exc:
        raise TorchReproError(
            f"the operator database of torch's tests cannot be imported ({exc})",
            next_step="install the package that is missing, or choose other --generators",
        ) from exc
    return tuple(_operator(entry) for entry in database)


def _operator(entry: Any) -> Operator:
    kind = type(entry).__name__
    variant = f".{entry.variant_test_name}" if entry.variant_test_name else ""
    return Operator(
        name=f"{entry.name}{variant}",
        function=entry.op,
        in_place=entry.inplace_variant,
        elementwise=kind in _ELEMENTWISE,
        reduction=kind == _REDUCTION,
        differentiable=bool(entry.supports_autograd),
        lapack=any("Lapack" in getattr(each, "__name__", "") for each in entry.decorators),
        entry=entry,
    )
