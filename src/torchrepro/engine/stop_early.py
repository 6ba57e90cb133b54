"""End a candidate's run where it cannot show the original's failure any more: before its code is compiled.

An exception of inductor's own passes comes before any code is generated. A candidate that gets past them does
not show it, and to compile its C++ is then most of what it costs: 1.7 s of 1.9 s for a few small ops.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.torch_api.patching import replaced

_COMPILER = "/torch/_inductor/"
_CODE = ("_compile_to_module_lines", "codecache.py", "async_compile.py")
"""Frames of what compiles, loads or runs generated code."""


class PastTheFailure(BaseException):
    """The compiler has got further than the original did. No `Exception`: nobody on the way may handle it."""


def fails_before_code(verdict: Verdict) -> bool:
    """Whether a failure is an exception of inductor's passes, before any generated code is compiled."""
    if verdict.kind is not Kind.COMPILE_ERROR or verdict.raised is None:
        return False
    frames = verdict.raised.traceback.replace("\\", "/")
    return _COMPILER in frames and not any(name in frames for name in _CODE)


def is_compiled_once(repro: Repro) -> bool:
    """Whether there is one graph for inductor to compile: no backward, no second capture, no call before."""
    if repro.place is Place.AFTER_AOT:
        return True
    if repro.place is Place.BEFORE_CAPTURE or repro.earlier:
        return False
    held = (repro.inputs, list(repro.graph.parameters()), list(repro.graph.buffers()))
    with_gradients = any(tensor.requires_grad for _, tensor in tensors_in(held))
    return repro.backward is False or not repro.ambient.grad_enabled or not with_gradients


@contextmanager
def ending_before_code() -> Iterator[None]:
    """Raise `PastTheFailure` once inductor has generated code, in place of compiling it.

    In a process of its own alone. Checked on torch 2.13 (`GraphLowering._compile_to_module_lines`); where
    that is not there, everything is compiled and run as ever.
    """
    from torchrepro.torch_api.inductor import GraphLowering

    if not hasattr(GraphLowering, _CODE[0]):
        yield
        return

    def end(*args: object) -> NoReturn:
        raise PastTheFailure

    with replaced(GraphLowering, _CODE[0], end):
        yield
