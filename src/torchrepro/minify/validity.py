"""Reject what cannot run before any compiler sees it: run a candidate on tensors without data."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx import Interpreter

from torchrepro.repro import Place, Repro


def why_invalid(repro: Repro) -> str:
    """What eager would raise, as far as shapes and dtypes tell; empty where nothing is known against it."""
    if repro.place is Place.BEFORE_CAPTURE:
        return ""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, repro.ambient.modes():
            inputs = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in repro.inputs]
            Interpreter(repro.graph).run(*inputs)
    except (DataDependentOutputException, DynamicOutputShapeException, NotImplementedError):
        return ""
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""
