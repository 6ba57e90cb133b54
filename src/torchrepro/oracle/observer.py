"""Observer: who runs a repro to see more of it than a verdict. Never the search process itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torchrepro.cutting.recording import Recording, observed_values
from torchrepro.repro import Repro
from torchrepro.verdict import Verdict


class Observer(Protocol):
    """Runs repros in isolation; `isolated.py` has the real one."""

    def record(self, repro: Repro) -> Recording | None:
        """The values inside, from an eager run; None where it does not come to an end."""
        ...

    def rounds(self, repro: Repro) -> Sequence[Verdict]:
        """A verdict for each set of inputs of one compilation; none where it cannot be had."""
        ...

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        """The graphs that capture makes of a whole call of the user's code; none where it makes none."""
        ...


class ObserveHere:
    """Runs eagerly in this process: for graphs that are known to be harmless."""

    def record(self, repro: Repro) -> Recording | None:
        return observed_values(repro, limit=1 << 30)

    def rounds(self, repro: Repro) -> Sequence[Verdict]:
        return ()

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        return ()
