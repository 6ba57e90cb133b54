"""What became of the bundles of a corpus: the outcome of replays, the state of a bundle, and all findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from torchrepro.engine.other_python import Interpreter, Replayed

SILENT_RUNS = 2
"""A failure is fixed after this many passes in a row, each in a fresh process with fresh caches."""


class State(StrEnum):
    """What a user wants to know of a bundle, worst first."""

    REGRESSED = "regressed"
    FAILS_OTHERWISE = "fails-otherwise"
    CANNOT_RUN = "cannot-run"
    FLAKY = "flaky"
    STILL_FAILS = "still-fails"
    BASELINE_ONLY = "baseline-only"
    FIXED = "fixed"
    PASSES = "passes"

    @property
    def fails(self) -> bool:
        return self in (State.REGRESSED, State.FAILS_OTHERWISE, State.STILL_FAILS, State.FLAKY)


WORDS = {state: state.value.replace("-", " ") for state in State} | {
    State.BASELINE_ONLY: "only the baseline fails"
}
WORDS_OF_TWO = WORDS | {
    State.FAILS_OTHERWISE: "fails on both, other signature",
    State.STILL_FAILS: "fails on both, same signature",
    State.PASSES: "passes on both",
}


class Result(StrEnum):
    """What the replays of a bundle with one interpreter say together."""

    FAILS = "fails"
    FAILS_OTHERWISE = "fails-otherwise"
    PASSES = "passes"
    FLAKY = "flaky"
    CANNOT_RUN = "cannot-run"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the replays of a bundle with one interpreter, and what it rests on."""

    result: Result
    signature: str = ""
    failed: int = 0
    runs: int = 0
    """The replays that ran; what could not run says nothing."""
    reason: str = ""
    """Why it cannot run."""
    seconds: float = 0.0
    code: str = ""
    replayed: bool = True
    """False: an earlier outcome, of the same code compiled by the same tools."""


def outcome_of(replays: Sequence[Replayed], repeat: int, *, kept: bool = False) -> Outcome | None:
    """Return what replays say together; None while more are needed: `repeat`, and two before it passes.

    `kept`: they are earlier ones.
    """
    ran = [each for each in replays if not each.cannot_run]
    failing = [each for each in ran if each.kind is not None and each.kind.fails]
    same = [each for each in failing if each.reproduces]
    lost = len(replays) - len(ran)
    wanted = max(repeat, SILENT_RUNS) if ran and len(failing) < len(ran) else repeat
    if len(ran) < wanted and lost < SILENT_RUNS:
        return None
    seconds = sum(each.seconds for each in replays) / max(1, len(replays))
    codes = {each.code for each in ran}
    code = codes.pop() if len(codes) == 1 else ""
    shown = (same or failing or ran or list(replays))[0]
    facts = (len(failing), len(ran), "", seconds, code, not kept)
    if len(ran) < wanted:
        reasons = [each.cannot_run for each in replays if each.cannot_run]
        return Outcome(Result.CANNOT_RUN, "", len(failing), len(ran), reasons[0], seconds)
    if not failing:
        return Outcome(Result.PASSES, "pass", *facts)
    if len(failing) < len(ran) or 0 < len(same) < len(ran):
        return Outcome(Result.FLAKY, shown.signature, *facts)
    return Outcome(Result.FAILS if same else Result.FAILS_OTHERWISE, shown.signature, *facts)


def state_of(outcome: Outcome, *, recorded_fails: bool) -> State:
    """Compare an outcome with the recorded failure of a bundle."""
    match outcome.result:
        case Result.CANNOT_RUN:
            return State.CANNOT_RUN
        case Result.FLAKY:
            return State.FLAKY
        case Result.PASSES:
            return State.FIXED if recorded_fails else State.PASSES
        case Result.FAILS:
            return State.STILL_FAILS if recorded_fails else State.REGRESSED
    return State.FAILS_OTHERWISE


def state_of_two(old: Outcome, new: Outcome) -> State:
    """Compare the outcomes of the baseline and of the candidate. What could not run is no baseline."""
    results = (old.result, new.result)
    if Result.CANNOT_RUN in results:
        return State.CANNOT_RUN
    if Result.FLAKY in results:
        return State.FLAKY
    if new.result is Result.PASSES:
        return {Result.PASSES: State.PASSES, Result.FAILS: State.FIXED}.get(old.result, State.BASELINE_ONLY)
    if old.result is Result.PASSES:
        return State.REGRESSED
    return State.STILL_FAILS if old.signature == new.signature else State.FAILS_OTHERWISE


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one bundle, as every output shows it."""

    id: str
    name: str
    bucket: str
    state: State
    signature: str
    """Of the last outcome; of the recorded failure where that is none."""
    recorded: str
    outcomes: tuple[Outcome, ...]
    """With each interpreter: one, or the baseline's and the candidate's."""
    host: str = ""
    issue: str = ""
    accepted: bool = False
    """The baseline file has it so, and the entry has not expired."""
    expired: str = ""
    """The date on which its entry in the baseline file expired."""

    @property
    def detail(self) -> str:
        """What the state does not say: how often, why, whether it was run."""
        last = self.outcomes[-1]
        lost = next((each for each in self.outcomes if each.result is Result.CANNOT_RUN), None)
        if lost is not None:
            side = "" if len(self.outcomes) == 1 else "baseline: " if lost is not last else "candidate: "
            return f"{side}{lost.reason}"
        shaky = next((each for each in self.outcomes if each.result is Result.FLAKY), None)
        if shaky is not None:
            return f"{shaky.failed} of {shaky.runs} runs fail"
        return "" if last.replayed else "same generated code, not run"


@dataclass(frozen=True, slots=True)
class Counted:
    """How many bundles of a bucket are in a state."""

    bucket: str
    state: State
    signature: str
    """Of the example; why it cannot run, or how often it fails, where that is the state."""
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What heads every output of a run."""

    corpus: str
    interpreters: tuple[Interpreter, ...]
    states: dict[State, int]
    replays: int
    not_run: int
    """Outcomes of earlier replays that hold, because the generated code is the same."""
    seconds: float
    shard: str = ""
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> dict[State, str]:
        return WORDS if len(self.interpreters) == 1 else WORDS_OF_TWO

    @property
    def total(self) -> int:
        return sum(self.states.values())
