"""ModelRequest: what the user wants compared, as plain data that crosses processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchrepro.nouns.repro import Compiler


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """The user's function, the compiler under test, and how to run and judge."""

    target: str
    """`FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    compiler: Compiler = field(default_factory=Compiler)
    backward: bool | None = None
    """None: if an output asks for gradients."""
    amp: str | None = None
    device: str | None = None
    strict: bool = False
    tolerance: float | None = None
    check_stride: bool = False
    fp64: bool = True
    environ: Mapping[str, str] = field(default_factory=dict)
    """The user's environment, as far as it matters to compilers: that of the judging process is another."""
