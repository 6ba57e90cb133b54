"""Who is asked in a search: children of this process or a command of the user; and who looks inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torchrepro.engine.isolated_oracle import JUDGE_BEFORE_CODE, IsolatedOracle
from torchrepro.engine.oracle import Oracle
from torchrepro.engine.processes.executor import Executor
from torchrepro.engine.search.setup import isolated_oracle
from torchrepro.engine.search.stopping import Stop
from torchrepro.engine.stop_early import fails_before_code
from torchrepro.engine.timeouts import Patience
from torchrepro.minify.command_oracle import CommandOracle
from torchrepro.minify.settings import MinifySettings
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


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
    def in_search_of(self, original: Verdict) -> Iterator[None]:
        """In the body candidates end where they cannot show the original's failure any more."""
        usual = self.observer.job
        self.observer.job = JUDGE_BEFORE_CODE if fails_before_code(original) else usual
        try:
            yield
        finally:
            self.observer.job = usual


@contextmanager
def judges_for(repro: Repro, settings: MinifySettings, stop: Stop) -> Iterator[Judges]:
    """Ready to be asked; no process and no temporary file is left afterwards."""
    with isolated_oracle(repro, settings.jobs, stop) as (isolated, executor):
        if settings.oracle:
            with CommandOracle(settings.oracle, workers=executor.workers, sleep=stop.sleep) as command:
                yield Judges(command, isolated, executor)
        else:
            yield Judges(isolated, isolated, executor)
