"""The runs of a corpus: what was replayed with which interpreters.

The outcome of a bundle follows from its replays in the run. `CORPUS/runs/ID.jsonl` has the run; the tables of
the index are made again from these files. Runs of shards with the same settings are shown as one after
`corpus merge`.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.corpus.database import decoded
from torchrepro.corpus.findings import Outcome, outcome_of
from torchrepro.corpus.index import Corpus, Entry, entry_of
from torchrepro.engine.line_file import append_line, read_lines
from torchrepro.engine.other_python import Interpreter, Replayed
from torchrepro.ranks.process import answers


@dataclass(frozen=True, slots=True)
class Run:
    """One pass over a corpus, or over a shard of it."""

    id: str
    interpreters: tuple[Interpreter, ...]
    repeat: int
    shard: tuple[int, int]

    @property
    def key(self) -> str:
        """Equal for the shards of one pass on several machines."""
        versions = [f"{each.torch} {each.commit} {each.triton} {each.version}" for each in self.interpreters]
        return f"{versions} {self.repeat} {self.shard[1]}"


@dataclass(slots=True)
class Progress:
    """How far a run is: for the user's screen."""

    total: int = 0
    done: int = 0
    replays: int = 0
    doing: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def message(self) -> dict[str, object]:
        """What `cli/progress.py` shows of it."""
        return {"step": self.doing, "count": (self.done, self.total)}


class Runs:
    """The runs of an open corpus."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self._database = corpus.database
        self._directory = corpus.directory / "runs"
        self._directory.mkdir(exist_ok=True)
        if self._database.execute("SELECT count(*) FROM runs").fetchone()[0] == 0:
            for path in sorted(self._directory.glob("*.jsonl")):
                self._index(path)

    def start(
        self,
        interpreters: tuple[Interpreter, ...],
        repeat: int,
        shard: tuple[int, int],
        *,
        resume: str,
        fresh: bool,
    ) -> tuple[Run, bool]:
        """Return a run, and whether it is one that was killed on this host and is continued.

        That has to have the same `resume`, which says what was asked for. `fresh`: continue none.
        """
        host, pid = platform.node(), os.getpid()
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = self._database.execute(
                "SELECT run, pid FROM runs WHERE finished = 0 AND host = ? AND resume = ? ORDER BY id",
                (host, resume),
            ).fetchall()
            dead = [row[0] for row in rows if row[1] == pid or not answers(row[1])]
            if dead and not fresh:
                run = decoded(dead[-1], Run)
                self._database.execute("UPDATE runs SET pid = ? WHERE id = ?", (pid, run.id))
                return run, True
            run = Run(new_run_id(), interpreters, repeat, shard)
            append_line(self._directory / f"{run.id}.jsonl", run)
            self._database.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, 0)",
                (run.id, _encoded(run), resume, host, pid),
            )
        return run, False

    def finish(self, run: Run) -> None:
        with self._database:
            self._database.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run.id,))
            self._database.execute("DELETE FROM gates WHERE run = ?", (run.id,))

    def outcome(self, run: Run, bundle: str, side: int) -> Outcome | None:
        """Return what the replays of a bundle say; None while more are needed."""
        replays = self.corpus.replays(run.id, bundle, side)
        return outcome_of(replays, run.repeat) if replays else None

    def gate(self, run: Run, bundle: str, side: int, code: str) -> None:
        """Keep the digest of the code that would be generated; empty if that is unknown."""
        with self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?)", (run.id, bundle, side, code)
            )

    def gated(self, run: Run, bundle: str, side: int) -> str | None:
        row = self._database.execute(
            "SELECT code FROM gates WHERE run = ? AND bundle = ? AND side = ?", (run.id, bundle, side)
        ).fetchone()
        return None if row is None else str(row[0])

    def outcomes(self, runs: Sequence[Run]) -> Iterator[tuple[Entry, tuple[Outcome, ...], str]]:
        """Yield each bundle that has an outcome with every interpreter of its run, and the host of the last.

        Bundles are in the order of their ids.
        """
        by_id = {run.id: run for run in runs}
        marks = ", ".join("?" * len(runs))
        found = self._database.execute(
            "SELECT b.id, b.name, b.bucket, b.signature, b.fails, b.culprit, b.torch, b.seconds, "
            "r.run, r.side, r.host, r.kept, r.replayed FROM replays r JOIN bundles b ON b.id = r.bundle "
            f"WHERE r.run IN ({marks}) ORDER BY b.id, r.run, r.side, r.id",
            tuple(by_id),
        )
        for _, group in groupby(found, key=lambda row: (row[0], row[8])):
            rows = list(group)
            run, host = by_id[rows[0][8]], rows[-1][10]
            outcomes = []
            for _, own in groupby(rows, key=lambda row: row[9]):
                kept, texts = zip(*(row[11:] for row in own), strict=True)
                replays = [decoded(text, Replayed) for text in texts]
                outcomes.append(outcome_of(replays, run.repeat, kept=any(kept)))
            known = tuple(each for each in outcomes if each is not None)
            if len(known) == len(run.interpreters):
                yield entry_of(rows[0]), known, host

    def replays(self, runs: Sequence[Run]) -> int:
        """Return how many replays have been made in runs."""
        marks = ", ".join("?" * len(runs))
        count = f"SELECT count(*) FROM replays WHERE NOT kept AND run IN ({marks})"
        return int(self._database.execute(count, [run.id for run in runs]).fetchone()[0])

    def latest(self) -> list[Run]:
        """Return the last run of the corpus; if it was of a shard, the last runs of the other shards too."""
        rows = self._database.execute("SELECT run FROM runs ORDER BY id DESC LIMIT 1000").fetchall()
        runs = [decoded(row[0], Run) for row in rows]
        found: dict[tuple[int, int], Run] = {}
        for run in runs:
            if run.key == runs[0].key:
                found.setdefault(run.shard, run)
        return list(found.values())

    def merge(self, other: Path) -> None:
        """Take over the runs of another corpus."""
        for path in sorted((other / "runs").glob("*.jsonl")):
            own = self._directory / path.name
            if path.is_symlink() or not path.is_file() or own.exists():
                continue
            partial = own.with_name(f".{own.name}.{new_run_id()}")
            shutil.copyfile(path, partial)
            partial.replace(own)
            self._index(own)

    def _index(self, path: Path) -> None:
        for run in read_lines(path, Run):
            with self._database:
                self._database.execute(
                    "INSERT OR IGNORE INTO runs VALUES (?, ?, '', '', 0, 1)", (run.id, _encoded(run))
                )


def _encoded(run: Run) -> str:
    return msgspec.json.encode(run, enc_hook=str).decode()  # a path is text


def warning_about_hosts(hosts: Mapping[str, tuple[int, int]]) -> str:
    """Return a warning where one host of several has most failures; `hosts`: failures, bundles."""
    failures, bundles = (sum(counts) for counts in zip(*hosts.values(), strict=True))
    if len(hosts) < 2 or failures < 8:
        return ""
    host, (most, own) = max(hosts.items(), key=lambda row: row[1])
    if most < 0.8 * failures or own > 0.8 * bundles:
        return ""
    return (
        f"{most} of {failures} failures are on host {host}, which ran {own} of {bundles}: suspect that host"
    )
