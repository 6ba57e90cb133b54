"""Search for the cause of a failure where it happened: in forks of the failing process.

No import, no warm-up and no second run of the failure are needed. Where forks do not work, a fresh process
takes over, and a line says why. If the program uses a device, that process is started when the first graph
on the device is compiled, so that it has imported torch when something fails. The program waits, or goes on
until its end (`WatchSettings.go_on`).
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.session import stop_watching
from torchrepro.engine.processes.child import Child
from torchrepro.engine.processes.fork_safety import (
    query_devices_without_driver,
    start_fork,
    why_not_here,
)
from torchrepro.engine.processes.fresh_process import compiler_environment, start_interpreter
from torchrepro.engine.processes.limits import MARK, end_leftovers
from torchrepro.engine.search.process import ONE_THREAD, Search
from torchrepro.engine.search.run_directory import RunDirectory
from torchrepro.locate.settings import locate_search
from torchrepro.minify.run_directory import MinifySettings, minify_search
from torchrepro.nouns.errors import DoesNotFail, HarnessError, TorchReproError, in_a_line, say
from torchrepro.nouns.results import Located, Minified
from torchrepro.state.ambient import reset_configs


class Standby:
    """A search process that imports torch and the compiler while the program runs. It uses no device yet."""

    def __init__(self) -> None:
        self._mark = f"standby-{new_run_id()}"
        environ = {**compiler_environment(), **ONE_THREAD, MARK: self._mark}
        query_devices_without_driver(environ)
        self._child = start_interpreter(environ)
        modules = ("torchrepro.minify.job", "torchrepro.locate.job")
        job = "torchrepro.engine.search.setup:stand_by"
        self._child.ask({"job": job, "payload": {"modules": modules}, "silent": True})

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def start(self, environ: Mapping[str, str]) -> AbstractContextManager[Child]:
        """Return the process, for one search after the other: it is ended by `end` alone."""
        return nullcontext(self._child)

    def end(self) -> None:
        self._child.end()
        end_leftovers(self._mark)


class SearchHere:
    """The searches about one bundle, in a thread of this process, which forks them off."""

    def __init__(
        self, bundle: Path, verbs: tuple[str, ...], standby: Standby | None = None, *, explain: bool = True
    ) -> None:
        self.bundle = bundle
        self.found: list[Minified | Located] = []
        self._searches: Mapping[str, Callable[[], Search[Any]]] = {
            "minify": partial(minify_search, bundle, MinifySettings(explain=explain)),
            "locate": partial(locate_search, bundle),
        }
        self._standby = standby
        self._search: int | None = None
        self._thread = threading.Thread(
            target=self._run, args=(verbs,), name="torchrepro-search", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the answers. The first Ctrl-C ends the search with its best so far, the second raises."""
        interrupted = False
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                if interrupted or self._search is None:
                    raise
                interrupted = True
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(self._search, signal.SIGINT)

    def _run(self, verbs: tuple[str, ...]) -> None:
        try:
            for verb in verbs:
                say(f"{verb} {self.bundle}")
                self.found.append(self._answer(verb))
        except DoesNotFail as healthy:
            say(in_a_line(healthy))
        except Exception as exc:  # the program continues, and the bundle is there
            say(f"the search failed ({in_a_line(exc)}); torchrepro minify {self.bundle} tries again")
        finally:
            if self._standby is not None:
                self._standby.end()
                for result in self.found:
                    shutil.rmtree(RunDirectory(Path(result.directory)).cache, ignore_errors=True)

    def _answer(self, verb: str) -> Minified | Located:
        search = self._searches[verb]()
        reason = why_not_here()
        if not reason:
            try:
                return self._result_of(replace(search, start=self._fork))
            except DoesNotFail:
                raise
            except TorchReproError as exc:
                reason = exc.fact
        say(f"searching in a fresh process: {reason}")
        if self._standby is not None:
            self._search = self._standby.pid
            try:
                return self._result_of(replace(search, start=self._standby.start, started_before=True))
            except HarnessError as exc:  # it died, perhaps for lack of memory
                say(f"searching in another fresh process: {in_a_line(exc)}")
                self._standby.end()
                self._standby, self._search = None, None
        return self._result_of(search)

    def _result_of(self, search: Search[Any]) -> Minified | Located:
        found: Minified | Located = search.answer()
        return found

    def _fork(self, environ: Mapping[str, str]) -> Child:
        keep = read_manifest(self.bundle).ambient.left_out
        child = start_fork(environ, partial(_prepare, keep))
        self._search = child.process.pid
        return child


def _prepare(keep: tuple[str, ...]) -> None:
    """Prepare the child: stop the watch, and reset all settings but those to keep."""
    stop_watching()
    reset_configs(keep)
