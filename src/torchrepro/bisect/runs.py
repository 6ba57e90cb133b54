"""One run of a bundle or a script under a setting; and the runs of earlier commands, which are kept.

A function and frozen data, so that a run can be handed to any `concurrent.futures.Executor`: on another
machine it makes the environment there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from torchrepro.bisect.environments import environment_for
from torchrepro.bisect.installers import Stopped, stopping
from torchrepro.bisect.scripts import run_script
from torchrepro.bisect.series import Setting
from torchrepro.engine.line_file import append_line, read_lines
from torchrepro.engine.other_python import Interpreter, ReplaySettings, ask_interpreter, replay
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.nouns.errors import TorchReproError, refused_by_system

RECORDED = "as recorded"
_PASS = "pass"
_SCRIPT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Task:
    """What is run, under which setting."""

    target: Path
    is_script: bool
    setting: Setting
    time_limit: float | None = None
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run showed."""

    signature: str = ""
    """Of the failure; empty if it passes or cannot run."""
    reproduces: bool = False
    """It is the failure that the bundle recorded."""
    cannot_run: str = ""
    said: str = ""
    seconds: float = 0.0
    code: str = ""
    """The normalised code that the compiler generated."""
    torch: str = ""
    commit: str = ""
    python: str = ""
    made_in: float = 0.0
    """Seconds that its environment took when it was made; 0: an interpreter of the user."""
    megabytes: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def state(self) -> str | None:
        """A word that is equal where the outcome is: what the search compares. None: it cannot run."""
        if self.cannot_run:
            return None
        return RECORDED if self.reproduces else self.signature or _PASS

    @property
    def passes(self) -> bool:
        return self.state == _PASS


def observe(task: Task, on_step: Callable[[str], None] = lambda step: None) -> Observation:
    """Run a task once. Whatever keeps it from running is the answer, and no exception."""
    try:
        return _observe(task, on_step)
    except Stopped:
        raise
    except (TorchReproError, OSError) as exc:
        told = exc if isinstance(exc, TorchReproError) else refused_by_system(exc)
        return Observation(cannot_run=str(told or exc).partition("\n")[0])


def _observe(task: Task, on_step: Callable[[str], None]) -> Observation:
    setting, environ, seconds, megabytes = task.setting, dict(task.setting.environ), 0.0, 0
    if setting.recipe is not None:
        made = environment_for(setting.recipe, on_step)
        interpreter, seconds, megabytes = made.interpreter, made.seconds, made.megabytes
        environ = {**made.environ, **environ}
    else:
        interpreter = _interpreter(setting.python, not task.is_script)  # a script needs torch alone
    on_step("running")
    if stopping.is_set():
        raise Stopped("stopped")
    facts = (interpreter.torch, interpreter.commit, interpreter.version, seconds, megabytes)
    if task.is_script:
        limit = task.time_limit or _SCRIPT_SECONDS
        ran = run_script(task.target, interpreter.python, environ, limit)
        failed = str(ran.signature) if ran.signature is not None and not ran.cannot_run else ""
        return Observation(failed, False, ran.cannot_run, ran.said, ran.seconds, ran.code, *facts)
    told, code = replay(task.target, interpreter, ReplaySettings(task.time_limit, task.trusted, environ))
    failed = told.signature if told.kind is not None and told.kind.fails else ""
    said = told.cannot_run or failed or "passes"
    seen = Observation(failed, told.reproduces, told.cannot_run, said, told.seconds, code, *facts)
    return replace(seen, notes=told.notes)


@lru_cache
def _interpreter(python: Path, judge: bool) -> Interpreter:
    return ask_interpreter(python, judge=judge)


class KeptRuns:
    """The runs of earlier commands on the same target: a line each, written as soon as it is known."""

    def __init__(self, identity: Mapping[str, object]) -> None:
        digest = _digest(identity)
        self._path = cache_directory() / "bisect" / f"{digest}.jsonl"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def of(self, setting: Setting) -> list[Observation]:
        """Return the runs under a setting, in order."""
        wanted = _key(setting)
        return [kept.seen for kept in read_lines(self._path, _Kept) if kept.key == wanted]

    def keep(self, setting: Setting, seen: Observation) -> None:
        """Keep a run; one that could not run is tried again by the next command."""
        if not seen.cannot_run:
            append_line(self._path, _Kept(_key(setting), seen))

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Kept:
    key: str
    seen: Observation


def _key(setting: Setting) -> str:
    """Return what the outcome under a setting depends on, besides the target."""
    if setting.recipe is not None:
        of = setting.recipe.name
    else:
        try:
            told = _interpreter(setting.python, False)
            of = f"{told.python} {told.version} {told.torch} {told.commit}"
        except TorchReproError:
            of = str(setting.python)
    return _digest({"python": of, "environ": dict(setting.environ)})


def _digest(data: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:24]
