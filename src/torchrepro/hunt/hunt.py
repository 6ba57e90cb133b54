"""Run a hunt in its search process, continue one, replay one of its programs. Needs no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import InvalidVersion, Version

from torchrepro.bisect.environments import Recipe, environment_for
from torchrepro.engine.other_python import Interpreter, ask_interpreter, own_package
from torchrepro.engine.processes.child import OnMessage
from torchrepro.engine.processes.fork_safety import hide_devices
from torchrepro.engine.processes.fresh_process import (
    compiler_environment,
    judged_in_isolation,
    raise_reported,
    result_in_isolation,
    understood,
)
from torchrepro.engine.processes.limits import end_leftovers
from torchrepro.engine.search.process import BY_USER, ONE_THREAD, SearchRequest, run_search
from torchrepro.engine.search.run_directory import held, make_directory
from torchrepro.hunt.directory import NO_PROGRAM, HuntDirectory, Tally
from torchrepro.hunt.registry import chosen_generators
from torchrepro.hunt.settings import Failure, Hunted, HuntSettings
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Verdict

_REPLAY_SECONDS = 300.0
_OF_GENERATORS = ("expecttest", "transformers")
"""What the operator database imports, and what has graphs for windows: installed with another torch too."""


@dataclass(frozen=True, slots=True)
class OtherTorch:
    """Whose torch is hunted: that of an interpreter, or a version; if neither, the one that is installed."""

    python: Path | None = None
    version: str = ""

    @property
    def chosen(self) -> bool:
        return self.python is not None or bool(self.version)

    def interpreter(self, on_step: Callable[[str], None] = lambda step: None) -> Interpreter | None:
        """Return the interpreter; None: this one.

        The environment of a version is made the first time (`bisect/environments.py`).
        """
        if self.python is not None and self.version:
            raise TorchReproError("--python and --torch exclude each other", next_step="give one of them")
        if self.python is not None:
            return ask_interpreter(self.python)
        if not self.version:
            return None
        try:
            version = Version(self.version)
        except InvalidVersion:
            raise TorchReproError(
                f"{self.version!r} is no version of torch", next_step="write --torch 2.15.0"
            ) from None
        return environment_for(Recipe(f"torch=={version}", more=_for_generators()), on_step).interpreter


def _for_generators() -> tuple[str, ...]:
    """Return the requirements of generators, in the versions that are installed here."""
    found = {each.name: each.version for each in metadata.distributions() if each.name in _OF_GENERATORS}
    found.setdefault(_OF_GENERATORS[0], "")
    return tuple(f"{name}=={version}" if version else name for name, version in sorted(found.items()))


@contextmanager
def process_of(interpreter: Interpreter | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the Python of a process, empty for this one, and its variables: it sees no device."""
    environ = compiler_environment()
    hide_devices(environ)
    if interpreter is None:
        yield "", environ
        return
    with own_package() as own:
        yield str(interpreter.python), {**environ, **own}


def hunt(
    out: Path,
    settings: HuntSettings | None = None,
    *,
    seed: int | None = None,
    other: OtherTorch | None = None,
    on_message: OnMessage = lambda message: None,
) -> Hunted:
    """Hunt in a directory, and continue where an earlier hunt in it stopped; `seed` chooses the programs.

    The first Ctrl-C ends it with what was found so far.
    """
    with begin(out, settings or HuntSettings(), seed=seed, other=other, on_message=on_message) as hunting:
        began = time.monotonic()
        try:
            searched = hunting.search(hunting.settings, on_message)
        except KeyboardInterrupt:
            searched = Searched(BY_USER, time.monotonic() - began)
        return hunting.hunted(searched)


@dataclass(frozen=True, slots=True)
class Searched:
    """How a search process ended."""

    stopped: str
    """Why it stopped early; empty if it did not."""
    seconds: float
    notes: tuple[str, ...] = ()
    """What the sources of the programs lack."""


@dataclass(frozen=True, slots=True)
class Hunting:
    """A hunt that has begun: its directory, which is held, and how its process is started."""

    directory: HuntDirectory
    settings: HuntSettings
    other: OtherTorch
    lock: int
    python: str
    """Empty: this one."""
    environ: Mapping[str, str]
    judged_before: int

    def search(self, settings: HuntSettings, on_message: OnMessage = lambda message: None) -> Searched:
        """Hunt in the search process, and return how that ended."""
        request = SearchRequest(
            job="torchrepro.hunt.loop:hunt",
            bundle="",
            directory=str(self.directory.path),
            settings=msgspec.to_builtins(settings),
            seed="",  # of the interpreter that hunts, which knows it
            parent=os.getpid(),
            asked=time.monotonic(),
            lock=self.lock,
        )
        try:
            outcome = run_search(request, environ=self.environ, on_message=on_message, python=self.python)
            raise_reported(outcome)
            if outcome.result is None:
                died = f"the hunt's process died ({outcome.death}); the same command continues from there"
                raise HarnessError(f"{died}\n{outcome.output_tail}")
            return understood(outcome.result, Searched, strict=False)
        finally:
            self.directory.clear()

    def hunted(self, searched: Searched) -> Hunted:
        """Return what is known now, of this hunt and those before in the directory."""
        tally = Tally.of(self.directory.judged())
        of_seed = {seed: bucket for bucket, seeds in tally.buckets.items() for seed in seeds}
        return Hunted(
            directory=str(self.directory.path),
            seed=f"{self.settings.seed:x}",
            programs=tally.programs,
            no_programs=tally.kinds[NO_PROGRAM],
            kinds={kind: count for kind, count in sorted(tally.kinds.items()) if kind != NO_PROGRAM},
            failures=tuple(
                Failure(
                    each.seed,
                    each.signature,
                    each.summary,
                    each.bundle,
                    each.not_saved,
                    of_seed.get(seed, ""),
                )
                for seed, each in tally.failures.items()
            ),
            buckets={bucket: tuple(seeds) for bucket, seeds in tally.buckets.items()},
            judged_now=tally.programs - self.judged_before,
            seconds=round(searched.seconds, 1),
            stopped=searched.stopped,
            notes=searched.notes,
        )


@contextmanager
def begin(
    out: Path,
    settings: HuntSettings,
    *,
    seed: int | None = None,
    other: OtherTorch | None = None,
    on_message: OnMessage = lambda message: None,
) -> Iterator[Hunting]:
    """Begin a hunt, or continue one, in a directory that no other command uses meanwhile."""
    other = other or OtherTorch()
    chosen_generators(settings.generators)  # a wrong name is an error at once
    interpreter = other.interpreter(lambda step: on_message({"step": step}))
    make_directory(out, "choose another directory with --out")
    directory = HuntDirectory(out.absolute())
    with held(directory) as lock, process_of(interpreter) as (python, environ):
        wanted = interpreter.torch if interpreter is not None else ""
        settings = replace(settings, seed=directory.number(seed), torch=wanted)
        end_leftovers(directory.mark)
        directory.clear()
        for place in (directory.failing, directory.buckets):
            place.mkdir(exist_ok=True)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(directory.cache)}
        environ = {**environ, **ONE_THREAD, **cache}
        before = Tally.of(directory.judged()).programs
        yield Hunting(directory, settings, other, lock, python, environ, before)


@dataclass(frozen=True, slots=True)
class Replayed:
    """A program of a hunt that was made again."""

    seed: str
    script: str
    """Its source: empty where the seed leads to no program."""
    verdict: Verdict | None


def replay(
    seed: str,
    *,
    sources: Sequence[Path] = (),
    other: OtherTorch | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Replayed:
    """Make the program of a seed again and judge it alone, in a process of its own."""
    payload = {"seed": seed, "sources": [str(path) for path in sources]}
    with process_of((other or OtherTorch()).interpreter(on_phase)) as (python, environ):
        how: dict[str, Any] = {
            "time_limit": _REPLAY_SECONDS,
            "environ": environ,
            "on_phase": on_phase,
            "python": python,
        }
        script = result_in_isolation(
            "torchrepro.hunt.replay:script_of",
            payload,
            unfinished=f"the program of {seed} could not be made",
            **how,
        )
        if not script:
            return Replayed(seed, "", None)
        verdict = judged_in_isolation("torchrepro.hunt.replay:judge", payload, **how)
    return Replayed(seed, script, verdict)


def sources_of(out: Path | None) -> list[Path]:
    """Return the bundles from which the hunt in a directory makes programs."""
    if out is None:
        return []
    if not out.is_dir():
        raise TorchReproError(f"{out} is no directory of a hunt", next_step="name the --out of the hunt")
    return sorted(HuntDirectory(out.absolute()).sources.glob("*"))
