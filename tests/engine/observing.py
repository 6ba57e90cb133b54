"""An observer for graphs that are known to be harmless: it runs eagerly in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


class ObserveHere:
    """What an `IsolatedOracle` sees of a repro in addition to its verdict."""

    def record(self, repro: Repro) -> Recording | None:
        return observed_values(repro, limit=1 << 30)

    def rounds(self, repro: Repro, **limits: Any) -> Sequence[Verdict]:
        return ()

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        return ()
