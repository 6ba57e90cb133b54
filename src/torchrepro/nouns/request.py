"""ModelRequest: what the user wants compared, as plain data that crosses processes; Compared: the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Verdict


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


@dataclass(frozen=True, slots=True)
class Compared:
    """The verdict on a user's model, and the bundle that shows it (None: not asked for, or not possible)."""

    verdict: Verdict
    signature: Signature
    bundle: Path | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 same, 1 differs or fails, 125 cannot be tested."""
        if not self.verdict.testable:
            return 125
        return 1 if self.verdict.fails else 0

    def _repr_html_(self) -> str:
        return self.verdict._repr_html_()
