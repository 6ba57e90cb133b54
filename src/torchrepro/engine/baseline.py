"""Establish the baseline of a search: whether the original fails, how, and whether it is flaky.

A failure that was recorded here, with the same torch, needs no run: the record is one. `minify` then runs
the original only if nothing smaller fails. Otherwise it is run once, and more often only if it does not fail
as recorded, or if it is quick and `locate` is going to draw conclusions from candidates that pass. Whether a
failure is flaky is measured on the result of the search, which is small (`measure`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from torchrepro.bundle.manifest import Manifest
from torchrepro.engine.oracle import Oracle
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import DoesNotFail, TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, Signature, Verdict

_GRADIENT, _INPUT, _RESULT = "grad", "inputs", "out"


@dataclass(frozen=True, slots=True)
class Failure:
    """The original's failure. `differences` and `places` are empty where no values were compared."""

    signature: Signature
    differences: frozenset[Difference] = frozenset()
    """How the worst leaf differs; a value that is not finite is worse than any other."""
    places: frozenset[str] = frozenset()
    """Where leaves differ in that way: `out`, `inputs`, `state`, `python`, or `grad` alone."""

    @classmethod
    def of(cls, verdict: Verdict) -> Failure:
        signature, comparison = Signature.of(verdict), verdict.comparison
        worst = None if comparison is None else comparison.worst
        if comparison is None or worst is None or worst.same:
            return cls(signature)
        telling = Difference.NON_FINITE if verdict.kind is Kind.NON_FINITE else worst.difference
        return cls(signature, frozenset({telling}), _places(comparison, telling))

    def shown_by(self, verdict: Verdict) -> bool:
        """Return whether a verdict shows this failure, and not another one."""
        if not verdict.fails or not self.signature.matches(Signature.of(verdict)):
            return False
        if not self.differences or verdict.comparison is None:
            return True
        # What is only written to an input was computed by ops whose results a piece of the graph returns.
        places = self.places | {_RESULT} if _INPUT in self.places else self.places
        return any(places & _places(verdict.comparison, difference) for difference in self.differences)


def _places(comparison: Comparison, difference: Difference) -> frozenset[str]:
    """Return the first part of the path of each leaf that differs in this way; `grad` only if alone."""
    found = {leaf.where.part for leaf in comparison.differing if leaf.difference is difference}
    return frozenset(found - {_GRADIENT} or found)


RUNS = 3
LONG = 10.0
"""What takes more seconds than this is not repeated if it fails as recorded."""
_MORE_RUNS = 12
_WRONG_PASS = 0.01
"""How often a candidate that fails may be taken for one that passes."""
_REPEATS = 30


@dataclass(frozen=True, slots=True)
class Original:
    """How the original fails, and in how many of its runs."""

    verdict: Verdict
    runs: int
    """Zero: only the record says that it fails."""
    failing: int
    note: str = ""

    @property
    def is_flaky(self) -> bool:
        return self.failing < self.runs

    @property
    def rate(self) -> str:
        """How often it fails, in words; empty if always."""
        return f"fails in {self.failing} of {self.runs} runs" if self.is_flaky else ""

    @property
    def notes(self) -> list[str]:
        """What the user should know about it."""
        return [note for note in (self.note, self.rate) if note]

    @property
    def repeats(self) -> int:
        """Runs after which a candidate counts as passing."""
        if not self.is_flaky:
            return 1
        # A rate measured in a few runs is uncertain, so half a failure less is assumed.
        cautious = max(self.failing - 0.5, 0.5) / self.runs
        return min(_REPEATS, math.ceil(math.log(_WRONG_PASS) / math.log(1 - cautious)))


def read_original(path: Path) -> Original | None:
    """Return the baseline that another search has stored; None if there is none."""
    try:
        return msgspec.convert(json.loads(path.read_bytes()), Original)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


_RECORDED_SECONDS = 75.0
"""Assumed seconds of a run at least: the program may have found compiled code in a cache."""


def recorded_here(manifest: Manifest, *, took: float = 0.0) -> Original | None:
    """Return the recorded failure as the baseline, if torch and the machine are those it was recorded with.

    None if it took less than some seconds, or if code of the user is part of it that could not be kept.
    """
    if manifest.verdict is None or manifest.ambient.left_out:
        return None
    if not manifest.environment.computes_as(Environment.capture()):
        return None
    verdict = Verdict.from_dict(manifest.verdict)
    if not verdict.fails or verdict.seconds < took:
        return None
    hangs = verdict.kind is Kind.HANG
    return Original(
        verdict if hangs else replace(verdict, seconds=max(verdict.seconds, _RECORDED_SECONDS)), 0, 0
    )


def establish(repro: Repro, oracle: Oracle, *, repeat_quick: bool = False) -> Original:
    """Run the original; more often if it does not fail as recorded, or is quick and `repeat_quick`."""
    recorded = repro.expected if repro.expected is not None and repro.expected.kind.fails else None
    verdicts = _run(repro, oracle, 1)
    seen_before = recorded is None or recorded.matches(Signature.of(verdicts[0]))
    if not (verdicts[0].fails and seen_before) or (repeat_quick and verdicts[0].seconds <= LONG):
        verdicts += _run(repro, oracle, RUNS - 1)
    # A failure that needs what the bundle could not keep is not flaky: it is not there.
    lost = repro.ambient.left_out if not any(verdict.fails for verdict in verdicts) else ()
    if not lost and not _agree(verdicts, recorded):
        verdicts += _run(repro, oracle, _MORE_RUNS)
    failures = [verdict for verdict in verdicts if verdict.fails]
    if not failures:
        passes = any(verdict.kind is Kind.PASS for verdict in verdicts)
        missing = f"; the bundle could not keep the setting {', '.join(lost)}, which is code" if lost else ""
        raise (DoesNotFail if passes else TorchReproError)(
            f"it does not fail here, in {len(verdicts)} runs: {verdicts[0]}{missing}",
            next_step="define that code at the top level of a module, and catch the failure again"
            if lost
            else "run it where it fails, or check the versions with torchrepro show",
        )
    wanted = _wanted(failures, recorded)
    same = [verdict for verdict in failures if wanted.matches(Signature.of(verdict))]
    otherwise = recorded is not None and not recorded.matches(wanted)
    note = f"it fails otherwise than recorded ({recorded})" if otherwise else ""
    return Original(same[0], len(verdicts), len(same), note)


def measure(repro: Repro, verdict: Verdict, oracle: Oracle, *, runs: int = RUNS) -> Original:
    """Measure in `runs` runs how often a repro fails that has failed once with this verdict."""
    failure = Failure.of(verdict)
    verdicts = [verdict, *_run(repro, oracle, runs - 1)]
    if not all(map(failure.shown_by, verdicts)):
        verdicts += _run(repro, oracle, _MORE_RUNS)
    return Original(verdict, len(verdicts), sum(map(failure.shown_by, verdicts)))


def _run(repro: Repro, oracle: Oracle, times: int) -> list[Verdict]:
    return [verdict for _, verdict in oracle.judge([repro] * times)]


def _agree(verdicts: list[Verdict], recorded: Signature | None) -> bool:
    """Return whether all runs agree. A recorded failure that no run shows may be flaky: no agreement."""
    first = Signature.of(verdicts[0])
    alike = all(first.matches(Signature.of(verdict)) for verdict in verdicts)
    return alike and (first.kind.fails or recorded is None)


def _wanted(failures: list[Verdict], recorded: Signature | None) -> Signature:
    """Return the recorded failure if a run shows it, else the most frequent one."""
    signatures = [Signature.of(verdict) for verdict in failures]
    if recorded is not None and any(recorded.matches(signature) for signature in signatures):
        return recorded
    return Counter(signatures).most_common(1)[0][0]
