"""Who is asked in a search: children of this process or a command of the user; and who looks inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from torchrepro.isolate.choose import executor_for
from torchrepro.isolate.executor import Executor
from torchrepro.isolate.limits import memory_share
from torchrepro.minify.session.command_oracle import CommandOracle
from torchrepro.minify.session.settings import MinifySettings
from torchrepro.minify.session.stopping import Stop, StoppableExecutor
from torchrepro.oracle.isolated import IsolatedOracle
from torchrepro.oracle.oracle import Oracle
from torchrepro.oracle.patience import Patience
from torchrepro.repro import Repro
from torchrepro.verdict import Kind, Verdict

_UNKNOWN_SECONDS = 75.0
"""What the original is taken to need before it has been run: its limit is about four times that."""
_UNKNOWN_SECONDS_OF_A_HANG = 5.0


@dataclass(frozen=True, eq=False)
class Judges:
    """Those who answer. With a command of the user, only the command says what fails."""

    oracle: Oracle
    observer: IsolatedOracle
    executor: Executor

    @property
    def is_command(self) -> bool:
        return isinstance(self.oracle, CommandOracle)

    def learn_from(self, original: Verdict) -> None:
        """How long a candidate may take, from how long the original took."""
        if not self.is_command:
            self.observer.patience = Patience.after(original)


@contextmanager
def judges_for(repro: Repro, settings: MinifySettings, stop: Stop) -> Iterator[Judges]:
    """Ready to be asked; no process and no temporary file is left afterwards."""
    recorded = repro.expected
    hangs = recorded is not None and recorded.kind is Kind.HANG
    patience = Patience(_UNKNOWN_SECONDS_OF_A_HANG if hangs else _UNKNOWN_SECONDS)
    with closing(StoppableExecutor(executor_for(repro, settings.jobs), stop)) as executor:
        isolated = IsolatedOracle(executor, patience, memory_limit=memory_share(executor.workers))
        if settings.oracle:
            with CommandOracle(settings.oracle, workers=executor.workers, sleep=stop.sleep) as command:
                yield Judges(command, isolated, executor)
        else:
            yield Judges(isolated, isolated, executor)
