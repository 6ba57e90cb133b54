"""The buckets of a hunt on disk: failures that are one bug, found once and counted from then on.

    BUCKETS/NAME/bundle/            the first failing program
    BUCKETS/NAME/bundle.minified/   what `minify` made of it; `located/` in its minimal bundle
    BUCKETS/NAME/bucket.json        `Bucketed`: written last, so a directory without it is unfinished
    BUCKETS/NAME/rule.json          the rule by which further failures are recognised (`known.py`)
    BUCKETS/NAME/seeds.jsonl        each program of the bucket, a line
    BUCKETS/NAME/gate.json          whether it is worth an issue (`filing.py`)
    BUCKETS/NAME/report.json        what a report says of it (`report.py`)

Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from torchrepro.bundle.read import read_small_file
from torchrepro.engine.line_file import append
from torchrepro.engine.search.run_directory import minified_beside, write_json
from torchrepro.nouns.errors import TorchReproError

Data = TypeVar("Data")
_SEED = re.compile(r"[^\w.-]+")
_FINGERPRINT = re.compile(r"[\w-]{1,64}", re.ASCII)


class Recognised(StrEnum):
    """How a failure got into its bucket."""

    NEW = "new"
    """It is the first one."""
    RULE = "rule"
    """By the rule of the bucket; nothing was compiled."""
    MINIMAL = "minimal"
    """It became a minimal repro that satisfies the rule of the bucket."""
    SIGNATURE = "signature"
    """It is a reduced Python program with the signature of one in the bucket."""
    BUCKET = "bucket"
    """Its signature, minimal graph and failing pass are those of the bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucketed:
    """The bucket of a failing program, and how it was recognised."""

    bucket: str
    """The fingerprint (`report/bucket.py`)."""
    seed: str
    recognised: Recognised
    directory: str
    """The directory of the bucket."""
    signature: str = ""
    culprit: str = ""
    reason: str = ""
    """The rule, in words."""
    minimal: bool = False
    """Whether the search for the minimal repro finished, and its script was seen to fail."""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def new(self) -> bool:
        return self.recognised is Recognised.NEW


@dataclass(frozen=True, slots=True)
class Member:
    """A failing program of a bucket."""

    seed: str
    recognised: Recognised


@dataclass(frozen=True, slots=True)
class BucketDirectory:
    """The files of one bucket."""

    path: Path

    @property
    def bundle(self) -> Path:
        return self.path / "bundle"

    @property
    def minified(self) -> Path:
        return minified_beside(self.bundle)

    @property
    def rule(self) -> Path:
        return self.path / "rule.json"

    @property
    def gate(self) -> Path:
        return self.path / "gate.json"

    @property
    def told(self) -> Path:
        return self.path / "report.json"

    @property
    def about(self) -> Bucketed | None:
        """The answer about its first program; None while there is none."""
        found = read(self.path / "bucket.json", Bucketed)
        # A report on somebody else's hunt names files after it.
        return found if found is not None and _FINGERPRINT.fullmatch(found.bucket) else None

    def finish(self, bucketed: Bucketed) -> None:
        self.add(bucketed.seed, bucketed.recognised)
        write_json(self.path / "bucket.json", msgspec.to_builtins(bucketed))

    def add(self, seed: str, recognised: Recognised) -> None:
        """Add a program, by one write; one that is there already is counted once (`members`)."""
        append(self.path / "seeds.jsonl", msgspec.json.encode(Member(seed, recognised)) + b"\n")

    def members(self) -> tuple[Member, ...]:
        """Return its programs in their order; a line that a killed process has not finished is ignored."""
        found: dict[str, Member] = {}
        try:
            lines = read_small_file(self.path / "seeds.jsonl").splitlines()
        except OSError:
            return ()
        for line in lines:
            member = _decoded(line, Member)
            if member is not None:
                found.setdefault(member.seed, member)
        return tuple(found.values())


def bucket_for(directory: Path, seed: str) -> BucketDirectory:
    """Return where the bucket of a program would be, if it is a new one."""
    return BucketDirectory(directory / _SEED.sub("_", seed)[:80])


def buckets_in(directory: Path) -> Iterator[BucketDirectory]:
    """Yield the finished buckets of a directory, by name."""
    if not directory.is_dir():
        raise TorchReproError(
            f"{directory} has no buckets", next_step="name the --out of a hunt that has sorted its failures"
        )
    for path in sorted(directory.iterdir()):
        found = BucketDirectory(path)
        if path.is_dir() and not path.is_symlink() and found.about is not None:
            yield found


def read(path: Path, kind: type[Data]) -> Data | None:
    """Read what this module's functions wrote; None where it is missing or damaged."""
    try:
        return _decoded(read_small_file(path), kind)
    except OSError:
        return None


def _decoded(text: bytes, kind: type[Data]) -> Data | None:
    try:
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except (msgspec.MsgspecError, ValueError):
        return None
