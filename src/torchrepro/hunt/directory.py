"""The directory of a hunt: what was judged, what failed, what it belongs to.

    hunt.json         which hunt it is: its number, from which all seeds follow, its torch, its user's mark
    programs.jsonl    each program that was judged, a line: it is only appended to
    sources/          bundles from which some generators make programs
    failing/SEED/     each program that failed, as a bundle
    corpus/           the same bundles as a corpus (`torchrepro corpus list DIR/corpus`)
    buckets/          what `hunt/triage.py` has found about them

For its other files see `engine/search/run_directory.py`. Needs no torch.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from torchrepro.bundle.provenance import is_mark, mark_of
from torchrepro.bundle.read import read_small_file
from torchrepro.corpus.index import Corpus
from torchrepro.engine.line_file import append
from torchrepro.engine.search.run_directory import Entry, RunDirectory, write_json
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind

NO_PROGRAM = "no_program"
"""The seed leads to nothing that eager runs and capture would keep in one graph."""
SUSPECT = "suspect"
"""It failed in the company of others, and is judged again alone."""
NOT_JUDGED = "not_judged"
"""torchrepro itself failed."""
REDUCING = "reduce"
"""The phase of a job that reduces a program and saves it."""
SORTED = "sorted"
"""A failure got its bucket."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a seed: a kind of verdict, or a word of this module."""

    seed: str
    kind: str
    summary: str = ""
    signature: str = ""
    bundle: str = ""
    """Where a program that fails was saved; empty if it was not."""
    not_saved: str = ""
    """Why not."""
    bucket: str = ""

    @property
    def fails(self) -> bool:
        return self.kind in set(Kind) and Kind(self.kind).fails


@dataclass(frozen=True, slots=True)
class About:
    """Which hunt it is."""

    seed: str
    """Its number, in hexadecimal."""
    torch: str = ""
    """The version that is hunted; empty until its first process has imported it."""
    commit: str = ""
    python: str = ""
    """The interpreter with that torch."""
    mark: str = ""
    """Of the user who hunts in this directory, for all of this."""


@dataclass(frozen=True, slots=True)
class HuntDirectory(RunDirectory):
    """The paths in the directory of a hunt."""

    left: ClassVar[tuple[str, ...]] = ("scratch", "cache")

    about = Entry("hunt.json")
    log = Entry("programs.jsonl")
    sources = Entry("sources")
    failing = Entry("failing")
    corpus = Entry("corpus")
    buckets = Entry("buckets")

    def number(self, wanted: int | None) -> int:
        """Return the number of the hunt: that of an earlier run here, unless another one is wanted."""
        known = self.known
        if known is not None and not self.is_mine(known):
            raise TorchReproError(
                f"{self.path} is a hunt that was not begun here by you: it was sent, moved or copied",
                next_step="choose a new directory with --out; torchrepro hunt report reads this one",
            )
        foreign = [entry.name for entry in self.path.iterdir() if entry.name != "lock"]
        if known is None and foreign:
            raise TorchReproError(
                f"{self.path} holds something else ({', '.join(sorted(foreign)[:3])})",
                next_step="choose an empty or a new directory with --out",
            )
        number = secrets.randbits(24) if known is None else int(known.seed, 16)
        number = number if wanted is None else wanted
        self.write(replace(known or About(""), seed=f"{number:x}"))
        return number

    @property
    def known(self) -> About | None:
        """Which hunt is in the directory; None if none was begun."""
        try:
            about = msgspec.json.decode(read_small_file(self.about), type=About)
            int(about.seed, 16)
            return about
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError) as exc:
            raise TorchReproError(
                f"{self.about} is damaged ({exc})",
                next_step="remove it, or choose another directory with --out",
            ) from exc

    def belong_to(self, torch: str, commit: str, python: str) -> None:
        """Record the torch that is hunted here; raise if it was another one so far."""
        known = self.known
        assert known is not None, "a hunt has its number first"
        if known.torch and (known.torch, known.commit) != (torch, commit):
            raise TorchReproError(
                f"{self.path} is a hunt with torch {known.torch} ({known.commit[:7]}), "
                f"and this is torch {torch} ({commit[:7]})",
                next_step=f"choose another directory with --out, or continue it with --python {known.python}",
            )
        self.write(replace(known, torch=torch, commit=commit, python=python))

    def write(self, about: About) -> None:
        """Say which hunt is in the directory, as its user."""
        marked = replace(about, mark=mark_of("hunt", *self._marked_facts(about)))
        write_json(self.about, msgspec.to_builtins(marked))

    def is_mine(self, about: About) -> bool:
        """Return whether this user has written this here."""
        return is_mark(about.mark, "hunt", *self._marked_facts(about))

    def _marked_facts(self, about: About) -> tuple[str, ...]:
        return *self._place(), about.seed, about.torch, about.commit, about.python

    def append(self, judged: Iterable[Judged]) -> None:
        """Log programs, by one write: a line is there whole, or not at all unless the machine fails."""
        append(self.log, b"".join(msgspec.json.encode(_short(each)) + b"\n" for each in judged))

    def keep(self, judged: Iterable[Judged]) -> None:
        """Add failing bundles to the corpus, which is made if there is none."""
        bundles = [Path(each.bundle) for each in judged if each.fails and each.bundle]
        if bundles or not self.corpus.exists():
            with Corpus(self.corpus, create=True) as corpus:
                for bundle in bundles:
                    corpus.add(bundle)

    def judged(self) -> Iterator[Judged]:
        """Yield what was logged; a line that a killed process has not finished is ignored."""
        try:
            lines = self.log.read_bytes().splitlines()
        except FileNotFoundError:
            return  # any other error is one: a hunt must not forget what it has found
        for line in lines:
            with suppress(msgspec.MsgspecError, ValueError):
                yield msgspec.json.decode(line, type=Judged)


@dataclass(slots=True)
class Tally:
    """What a hunt has found so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Judged] = field(default_factory=dict)
    """By seed."""
    buckets: dict[str, list[str]] = field(default_factory=dict)
    """The seeds of each bucket."""
    seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, judged: Iterable[Judged]) -> Tally:
        tally = cls()
        for each in judged:
            tally.take(each)
        return tally

    def take(self, judged: Judged) -> None:
        """Count what became of a seed."""
        self.seen.add(judged.seed)
        if judged.kind == SORTED:
            self.buckets.setdefault(judged.bucket, []).append(judged.seed)
            return
        self.kinds[judged.kind] += 1
        if judged.fails:
            self.failures[judged.seed] = judged

    def has_enough(self, new: int | None, before: Collection[str]) -> bool:
        """Return whether so many `new` buckets were found, besides those `before`; None: never."""
        return new is not None and len(self.buckets.keys() - before) >= new

    @property
    def programs(self) -> int:
        """How many programs were judged."""
        return self.kinds.total() - self.kinds[NO_PROGRAM] - self.kinds[NOT_JUDGED]

    def status(self, seconds: float, before: int) -> str:
        """Return how far a hunt is that has judged all but the first `before` programs in so many seconds."""
        rate = 60 * (self.programs - before) / max(seconds, 0.1)
        failures = f"{len(self.failures)} failures, {len(self.buckets)} buckets"
        return f"{self.programs:,} programs ({rate:.0f}/min), {failures}"

    @property
    def without_bucket(self) -> list[Judged]:
        """The failures that have no bucket yet."""
        known = {seed for seeds in self.buckets.values() for seed in seeds}
        return [each for seed, each in self.failures.items() if seed not in known]

    @property
    def unsorted(self) -> list[Judged]:
        """Those that were saved, so that they can be sorted."""
        return [each for each in self.without_bucket if each.bundle]


def _short(judged: Judged) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(judged).items() if value}
