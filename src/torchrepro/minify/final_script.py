"""The end product: the best as a bundle with a script, and the proof, in a fresh process, that it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.read import SCRIPT
from torchrepro.engine.baseline import Failure
from torchrepro.engine.store import put_in_place
from torchrepro.engine.verify_script import settle
from torchrepro.minify.command_oracle import CommandOracle
from torchrepro.minify.search import Found
from torchrepro.nouns.verdict import Kind
from torchrepro.script.document import Entry
from torchrepro.script.save_bundle import save_bundle

_HANG_SECONDS = 60.0
"""How long a script that hangs is waited for: a fresh process imports torch first."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Where the script is, and whether it was seen to fail as the original does."""

    script: Path
    reproduces: bool
    notes: tuple[str, ...] = ()


def settled_by_script(
    found: Found, target: Path, *, environ: Mapping[str, str], header: Sequence[str], repeats: int
) -> Settled:
    """The script has the last word: run in a fresh process, before anybody sees it.

    One that fails now and then is run up to `repeats` times.
    """
    save_over(found, target)
    hangs = found.verdict.kind is Kind.HANG
    limit = _HANG_SECONDS if hangs else 120.0 + 4 * found.verdict.seconds
    settled = settle(
        found.repro,
        found.verdict,
        target,
        time_limit=limit,
        environ=environ,
        header=header,
        repeats=repeats,
    )
    notes = [settled.script.remark] if settled.script.entry is Entry.INTERNAL else []
    if not settled.reproduces:
        notes += [f"a script was tried, and {verified.how}" for _, verified in settled.tried]
    return Settled(settled.path, settled.reproduces, tuple(note for note in notes if note))


def settled_by_command(found: Found, failure: Failure, oracle: CommandOracle, target: Path) -> Settled:
    """The command has the last word, on the bundle as it is handed over."""
    bundle = save_over(found, target)
    verdict = oracle.verdict_on(bundle)
    reproduces = failure.shown_by(verdict)
    return Settled(bundle / SCRIPT, reproduces, () if reproduces else (f"the last time: {verdict}",))


def save_over(found: Found, target: Path) -> Path:
    """Write a bundle in the place of a former one, in one step."""
    fresh = target.with_name(f".{target.name}.{new_run_id()}")
    put_in_place(save_bundle(found.repro, fresh, verdict=found.verdict), target)
    return target
