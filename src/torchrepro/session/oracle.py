"""The oracle of a search process: its children answer, and a request to stop ends the wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from torchrepro.isolate.choose import executor_for
from torchrepro.isolate.executor import Executor
from torchrepro.isolate.limits import memory_share
from torchrepro.oracle.isolated import IsolatedOracle
from torchrepro.oracle.patience import Patience
from torchrepro.repro import Repro
from torchrepro.session.stopping import Stop, StoppableExecutor
from torchrepro.verdict import Kind

_UNKNOWN_SECONDS = 75.0
"""What the original is taken to need before it has been run: its limit is about four times that."""
_UNKNOWN_SECONDS_OF_A_HANG = 5.0


@contextmanager
def isolated_oracle(repro: Repro, jobs: int | None, stop: Stop) -> Iterator[tuple[IsolatedOracle, Executor]]:
    """Ready to be asked; no process and no temporary file is left afterwards."""
    recorded = repro.expected
    hangs = recorded is not None and recorded.kind is Kind.HANG
    patience = Patience(_UNKNOWN_SECONDS_OF_A_HANG if hangs else _UNKNOWN_SECONDS)
    with closing(StoppableExecutor(executor_for(repro, jobs), stop)) as executor:
        yield IsolatedOracle(executor, patience, memory_limit=memory_share(executor.workers)), executor
