"""Operator contracts: what a custom operator declared, what it did, and whether that explains a failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class Contract(StrEnum):
    """What an operator promises, in the order in which it is checked."""

    FAKE = "fake"
    """Its fake kernel runs where its real one does."""
    OUTPUTS = "outputs"
    """As many results as the fake kernel gives, tensors and None in the same places."""
    SHAPE = "shape"
    DTYPE = "dtype"
    DEVICE = "device"
    STRIDE = "stride"
    MUTATION = "mutation"
    """It writes only to the arguments of which its schema says so."""
    ALIAS = "alias"
    """No result shares memory with an argument or another result, unless the schema says so."""
    DETERMINISM = "determinism"
    """The same arguments and generators give the same result."""
    BACKWARD = "backward"
    """The registered backward is the derivative of the operator."""

    @property
    def is_of_fakes(self) -> bool:
        """Whether it is about the fake kernel."""
        return self not in (Contract.MUTATION, Contract.ALIAS, Contract.DETERMINISM, Contract.BACKWARD)


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that an operator did not keep, on values that reached it."""

    op: str
    """`mylib::foo`, or the name of a Triton kernel."""
    contract: Contract
    subject: str
    """Which result or argument: `result`, `result[1]`, `argument x`."""
    declared: str
    """What it said: `stride (64, 8, 1)`."""
    seen: str
    """What it did: `stride (64, 1, 8)`."""
    remedy: str
    """What it should have said or done."""
    registered: str = ""
    """`fastops.py:12`: the fake kernel, the operator or the backward, whichever is wrong."""
    node: str = ""
    """The node of the graph that called it; empty for a call in backward."""
    source: str = ""
    """`model.py:19 in forward: ...`: where the program calls it."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.declared}, but {self.seen}"

    def explains(self, *, only_gradients: bool) -> bool:
        """Return whether it can make compiled code differ from eager.

        Both run the same registered backward, so a wrong formula alone makes no difference between them.
        """
        return self.contract is not Contract.BACKWARD or only_gradients


@dataclass(frozen=True, slots=True)
class FakeDifference:
    """An operator that comes with torch whose fake kernel gives another result than its real one."""

    op: str
    contract: Contract
    detail: str

    @property
    def counts(self) -> bool:
        """Whether it is evidence of a fault.

        Public issues list many operators of torch whose fake strides differ on some device or layout; the
        compilers check strides where they rely on them. On CUDA, attention returns the seed of its dropout on
        another device than its fake kernel says.
        """
        return self.contract not in (Contract.STRIDE, Contract.DEVICE)


@dataclass(frozen=True, slots=True)
class OperatorChecks:
    """What was checked about the operators that a computation calls, and what was found."""

    operators: tuple[str, ...] = ()
    """The custom operators and kernels that were called."""
    violations: tuple[Violation, ...] = ()
    differences: tuple[FakeDifference, ...] = ()
    skipped: tuple[str, ...] = ()
    """What could not be checked, and why."""

    def accused(self, *, only_gradients: bool) -> tuple[str, ...]:
        """Return the operators that broke a promise which can explain a failure."""
        found = (one.op for one in self.violations if one.explains(only_gradients=only_gradients))
        return tuple(dict.fromkeys(found))


def blame(operators: Sequence[str]) -> str:
    """Write whose fault it is, as the answers of `locate` and `compare` do: `operator mylib::foo`."""
    return f"operator{'s' * (len(operators) > 1)} {' and '.join(operators)}"


def distinct(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    """Keep the first violation of each operator, promise and result."""
    found: dict[tuple[str, Contract, str], Violation] = {}
    for one in violations:
        found.setdefault((one.op, one.contract, one.subject), one)
    return tuple(found.values())


def read_checks(log: Path) -> OperatorChecks:
    """Return what `check_operators` (execute/operator_contracts.py) wrote, also where it did not finish."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    rows = [msgspec.json.decode(line) for line in lines if line.endswith("\n")]  # the last may be half a line

    def of(name: str, kind: Any) -> list[Any]:
        return list(dict.fromkeys(msgspec.convert(row[name], kind) for row in rows if name in row))

    skipped = of("skipped", str)
    last = next((row["checking"] for row in reversed(rows) if "checking" in row), "")
    if last:
        skipped.append(f"{last} not checked: the process died in it")
    return OperatorChecks(
        tuple(of("operator", str)),
        distinct(of("violation", Violation)),
        tuple(of("difference", FakeDifference)),
        tuple(skipped),
    )
