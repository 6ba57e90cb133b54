"""Read the findings of runs out of a corpus: one by one, counted, and sorted into buckets."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchrepro.corpus.baseline import Accepted, compare
from torchrepro.corpus.findings import Counted, Finding, Result, State, Summary, state_of, state_of_two
from torchrepro.corpus.index import Corpus
from torchrepro.corpus.runs import Run, Runs, warning_about_hosts

_SILENT = (Result.PASSES, Result.CANNOT_RUN)
EXPIRED = "expired"
"""Of a policy: entries of the baseline file that have expired."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The findings of one run, or of the runs of several shards."""

    corpus: Corpus
    runs: Sequence[Run]
    baseline: Mapping[str, Accepted] = field(default_factory=dict)
    today: datetime.date = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).date())

    def findings(self) -> Iterator[Finding]:
        """Yield each finding, in the order of ids; of a bundle that was in two runs, the later one."""
        last: Finding | None = None
        for finding in self._all():
            if last is not None and last.id != finding.id:
                yield last
            last = finding
        if last is not None:
            yield last

    def _all(self) -> Iterator[Finding]:
        for entry, outcomes, host in Runs(self.corpus).outcomes(self.runs):
            new = outcomes[-1]
            if len(outcomes) == 1:
                state = state_of(new, recorded_fails=entry.fails)
            else:
                state = state_of_two(outcomes[0], new)
            signature = entry.signature if new.result in _SILENT else new.signature
            finding = Finding(
                *(entry.id, entry.name, entry.bucket, state, signature, entry.signature, outcomes, host)
            )
            yield compare(finding, self.baseline.get(entry.id), self.today)

    def buckets(self) -> list[Counted]:
        """Return a row for each bucket and state, worst first, then by how many they are."""
        rows: dict[tuple[str, State], Counted] = {}
        for each in self.findings():
            key = (each.bucket, each.state)
            known = rows.get(key)
            told = each.detail if each.state is State.CANNOT_RUN else each.signature
            if each.state is State.FLAKY:
                told = f"{each.detail}: {each.signature}"
            row = known or Counted(each.bucket, each.state, told, 0, each.name)
            rows[key] = replace(row, count=row.count + 1)
        order = list(State)
        return sorted(rows.values(), key=lambda row: (order.index(row.state), -row.count, row.bucket))

    def summary(self, seconds: float) -> Summary:
        """Count the findings by state, by host, and those that rest on earlier replays."""
        states: Counter[State] = Counter()
        hosts: dict[str, tuple[int, int]] = {}
        expired: list[str] = []
        not_run = 0
        for each in self.findings():
            states[each.state] += 1
            not_run += sum(not outcome.replayed for outcome in each.outcomes)
            failures, bundles = hosts.get(each.host, (0, 0))
            silent = each.outcomes[-1].result is Result.PASSES
            hosts[each.host] = (failures + (not silent), bundles + 1)
            if each.expired and len(expired) < 20:
                expired.append(f"the baseline's entry for {each.name} ({each.id}) expired on {each.expired}")
        shards = sorted(f"{run.shard[0]}/{run.shard[1]}" for run in self.runs if run.shard[1] > 1)
        warning = warning_about_hosts(hosts)
        return Summary(
            str(self.corpus.directory),
            self.runs[0].interpreters,
            {state: states[state] for state in State if state in states},
            *(Runs(self.corpus).replays(self.runs), not_run, seconds, ", ".join(shards)),
            (*self.corpus.notes, *expired, *([warning] if warning else [])),
        )

    def violations(self, policy: frozenset[str]) -> int:
        """Return how many findings a policy forbids; what the baseline has accepted is not among them."""
        return sum(
            (each.state.value in policy and not each.accepted) or (EXPIRED in policy and bool(each.expired))
            for each in self.findings()
        )
