"""Sort a failing program into its bucket: by a known rule if there is one, else minified and located.

What is compiled for it is compiled in processes of its own. Killed at any moment, it goes on where it was:
the searches keep what they know in the directory of the bucket, which counts once `bucket.json` is in it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.read import MANIFEST, PARTIAL_SUFFIX, read_manifest
from torchrepro.corpus.index import copy_members
from torchrepro.engine.check_bundle import ask_about_bundle
from torchrepro.engine.search.run_directory import write_json
from torchrepro.hunt.buckets import BucketDirectory, Bucketed, Recognised, bucket_for, buckets_in, read
from torchrepro.locate.settings import LocateSettings, locate_search
from torchrepro.minify.run_directory import MinifySettings, minify_search
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.results import Minified
from torchrepro.nouns.verdict import Signature
from torchrepro.report.bucket import bucket_of
from torchrepro.report.run_files import verdict_in

_SECONDS_TO_MATCH = 120.0
_SHARE_TO_MINIFY = 0.7


def triage(
    bundle: Path,
    seed: str,
    directory: Path,
    *,
    seconds: float | None = 540.0,
    jobs: int | None = None,
) -> Bucketed:
    """Return the bucket, in `directory`, of the failing program of a seed; make one if it is a new failure.

    `seconds` are for minifying and locating together; None: until both have finished.
    """
    began = time.monotonic()
    failure = _failure_of(bundle)
    directory.mkdir(parents=True, exist_ok=True)
    known = list(buckets_in(directory))
    for bucket in known:
        member = next((one for one in bucket.members() if one.seed == seed), None)
        if member is not None:
            return _answer(bucket, seed, member.recognised, began)
    found, notes = _matching(bundle, failure, known)
    if found is not None:
        return _add(found, seed, Recognised.RULE, began)

    home = bucket_for(directory, seed)
    _put(bundle, home)
    limit = None if seconds is None else seconds * _SHARE_TO_MINIFY
    minified = minify_search(home.bundle, MinifySettings(jobs=jobs, time_limit=limit)).answer()
    minimal = Path(minified.bundle)
    failure = _failure_of(minimal)
    found, more = _matching(minimal, failure, known)
    if found is not None:
        return _merge(home, found, seed, Recognised.MINIMAL, began)
    left = None if seconds is None else max(30.0, seconds - (time.monotonic() - began))
    try:
        locate_search(minimal, LocateSettings(jobs=jobs, time_limit=left)).answer()
    except TorchReproError as exc:
        more += (f"not located: {exc.fact}",)
    bucket_is = bucket_of(home.bundle)
    for other in known:
        if (about := other.about) is not None and about.bucket == bucket_is.fingerprint:
            return _merge(home, other, seed, Recognised.BUCKET, began)
    rule, without = _rule_of(minified, failure)
    if rule.get("rule"):
        write_json(home.rule, rule["rule"])
    made = Bucketed(
        bucket=bucket_is.fingerprint,
        seed=seed,
        recognised=Recognised.NEW,
        directory=str(home.path),
        signature=bucket_is.signature,
        culprit=bucket_is.culprit,
        reason=rule.get("words", ""),
        minimal=minified.minimal,
        seconds=round(time.monotonic() - began, 1),
        notes=(*notes, *more, *without, *minified.notes),
    )
    home.finish(made)
    return made


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a bundle fails, and in which results."""

    signature: Signature
    paths: tuple[str, ...]


def _failure_of(bundle: Path) -> _Failure:
    manifest = read_manifest(bundle)
    verdict = verdict_in(manifest.verdict)
    if verdict is None or not verdict.fails:
        raise TorchReproError(
            f"{bundle} has no recorded failure", next_step=f"torchrepro check {bundle} tells whether it fails"
        )
    wrong = verdict.comparison.differing if verdict.comparison is not None else ()
    return _Failure(manifest.expected or Signature.of(verdict), tuple(leaf.path for leaf in wrong))


def _put(bundle: Path, home: BucketDirectory) -> None:
    """Copy a bundle to where its bucket is to be; what an interrupted run has left there is used again."""
    if not (home.bundle / MANIFEST).is_file():
        shutil.rmtree(home.path, ignore_errors=True)
        partial = home.path / f".bundle{PARTIAL_SUFFIX}"
        copy_members(bundle, partial)
        partial.rename(home.bundle)


def _matching(
    bundle: Path, failure: _Failure, known: Sequence[BucketDirectory]
) -> tuple[BucketDirectory | None, tuple[str, ...]]:
    """Return the first bucket whose rule a failing bundle satisfies; and a note if that cannot be told."""
    candidates = []
    for bucket in known:
        rule = read(bucket.rule, dict)
        if rule is not None and msgspec.convert(rule["signature"], Signature).matches(failure.signature):
            candidates.append((bucket, rule))
    if not candidates:
        return None, ()
    payload = {"rules": [rule for _, rule in candidates], "paths": failure.paths}
    answer, notes = _asked("torchrepro.hunt.known:match", bundle, payload)
    number = answer.get("number")
    return (None if number is None else candidates[number][0]), notes


def _rule_of(minified: Minified, failure: _Failure) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the rule that follows from a minimal repro and its explanation, as data and in words."""
    if not minified.minimal:
        return {}, ("no rule: the repro is not minimal",)
    facts = (minified.explanation or {}).get("facts", [])
    payload = {"facts": facts, **msgspec.to_builtins(failure)}
    return _asked("torchrepro.hunt.known:rule_of", Path(minified.bundle), payload)


def _asked(job: str, bundle: Path, payload: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what a job answers about a bundle; empty, with a note, if it gave no answer."""
    try:
        return ask_about_bundle(job, bundle, payload, time_limit=_SECONDS_TO_MATCH), ()
    except (TorchReproError, HarnessError) as exc:
        return {}, (str(exc).splitlines()[0],)


def _add(bucket: BucketDirectory, seed: str, how: Recognised, began: float) -> Bucketed:
    bucket.add(seed, how)
    return _answer(bucket, seed, how, began)


def _merge(
    home: BucketDirectory, bucket: BucketDirectory, seed: str, how: Recognised, began: float
) -> Bucketed:
    """Add a program to a bucket in place of the one that was prepared for it."""
    shutil.rmtree(home.path, ignore_errors=True)
    return _add(bucket, seed, how, began)


def _answer(bucket: BucketDirectory, seed: str, how: Recognised, began: float) -> Bucketed:
    about = bucket.about
    assert about is not None, "only finished buckets are known"
    seconds = round(time.monotonic() - began, 1)
    return replace(about, seed=seed, recognised=how, seconds=seconds, notes=())
