"""Run a hunt in its search process, continue one, replay one of its programs. Needs no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from torchrepro.engine.processes.child import OnMessage
from torchrepro.engine.processes.fork_safety import hide_devices
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    judged_in_isolation,
    raise_reported,
    result_in_isolation,
)
from torchrepro.engine.processes.limits import end_leftovers
from torchrepro.engine.search.process import ONE_THREAD, SearchRequest, run_search
from torchrepro.engine.search.run_directory import held, make_directory, seed_here
from torchrepro.hunt.directory import NO_PROGRAM, HuntDirectory, Tally
from torchrepro.hunt.registry import chosen_generators
from torchrepro.hunt.settings import Failure, Hunted, HuntSettings
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Verdict

_REPLAY_SECONDS = 300.0
BY_USER = "stopped by the user"


def hunt(
    out: Path,
    settings: HuntSettings | None = None,
    *,
    seed: int | None = None,
    on_message: OnMessage = lambda message: None,
) -> Hunted:
    """Hunt in a directory, and continue where an earlier hunt in it stopped; `seed` chooses the programs.

    The first Ctrl-C ends it with what was found so far.
    """
    settings = settings or HuntSettings()
    chosen_generators(settings.generators)  # a wrong name is an error at once
    make_directory(out, "choose another directory with --out")
    directory = HuntDirectory(out.absolute())
    began = time.monotonic()
    with held(directory) as lock:
        settings = replace(settings, seed=directory.number(seed))
        before = Tally.of(directory.judged()).programs
        end_leftovers(directory.mark)
        directory.clear()
        for place in (directory.failing, directory.buckets):
            place.mkdir(exist_ok=True)
        request = SearchRequest(
            job="torchrepro.hunt.loop:hunt",
            bundle="",
            directory=str(directory.path),
            settings=msgspec.to_builtins(settings),
            seed=str(seed_here()),
            parent=os.getpid(),
            asked=time.monotonic(),
            lock=lock,
        )
        environ = {
            **compiler_environment(),
            **ONE_THREAD,
            "TORCHINDUCTOR_CACHE_DIR": str(directory.cache),
        }
        hide_devices(environ)
        stopped, seconds, notes = "", 0.0, ()
        try:
            outcome = run_search(request, environ=environ, on_message=on_message)
            raise_reported(outcome)
            if outcome.result is None:
                died = f"the hunt's process died ({outcome.death}); the same command continues from there"
                raise HarnessError(f"{died}\n{outcome.output_tail}")
            stopped, seconds = str(outcome.result["stopped"]), float(outcome.result["seconds"])
            notes = tuple(outcome.result["notes"])
        except KeyboardInterrupt:
            stopped, seconds = BY_USER, time.monotonic() - began
        finally:
            directory.clear()
        tally = Tally.of(directory.judged())
    of_seed = {seed: bucket for bucket, seeds in tally.buckets.items() for seed in seeds}
    return Hunted(
        directory=str(directory.path),
        seed=f"{settings.seed:x}",
        programs=tally.programs,
        no_programs=tally.kinds[NO_PROGRAM],
        kinds={kind: count for kind, count in sorted(tally.kinds.items()) if kind != NO_PROGRAM},
        failures=tuple(
            Failure(
                each.seed, each.signature, each.summary, each.bundle, each.not_saved, of_seed.get(seed, "")
            )
            for seed, each in tally.failures.items()
        ),
        buckets={bucket: tuple(seeds) for bucket, seeds in tally.buckets.items()},
        judged_now=tally.programs - before,
        seconds=round(seconds, 1),
        stopped=stopped,
        notes=notes,
    )


@dataclass(frozen=True, slots=True)
class Replayed:
    """A program of a hunt that was made again."""

    seed: str
    script: str
    """Its source: empty where the seed leads to no program."""
    verdict: Verdict | None
    bundle: str = ""


def replay(
    seed: str,
    *,
    sources: Sequence[Path] = (),
    bundle: Path | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Replayed:
    """Make the program of a seed again and judge it alone, in a process of its own."""
    payload = {"seed": seed, "sources": [str(path) for path in sources]}
    environ = compiler_environment()
    script = result_in_isolation(
        "torchrepro.hunt.replay:script_of",
        {**payload, "bundle": str(bundle or "")},
        time_limit=_REPLAY_SECONDS,
        environ=environ,
        on_phase=on_phase,
        unfinished=f"the program of {seed} could not be made",
    )
    if not script:
        return Replayed(seed, "", None)
    verdict = judged_in_isolation(
        "torchrepro.hunt.replay:judge",
        payload,
        time_limit=_REPLAY_SECONDS,
        environ=environ,
        on_phase=on_phase,
    )
    return Replayed(seed, script, verdict, str(bundle or ""))


def sources_of(out: Path | None) -> list[Path]:
    """Return the bundles from which the hunt in a directory makes programs."""
    if out is None:
        return []
    if not out.is_dir():
        raise TorchReproError(f"{out} is no directory of a hunt", next_step="name the --out of the hunt")
    return sorted(HuntDirectory(out.absolute()).sources.glob("*"))
