"""Search for the cause of a failure where it happened: in forks of the failing process.

No import, no warm-up and no second run of the failure are needed. Where forks do not work, a fresh process
takes over, and a line says why. The program waits, or goes on until its end (`WatchSettings.go_on`).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from torchrepro.bundle.read import read_manifest
from torchrepro.catch.session import stop_watching
from torchrepro.engine.processes.child import Child
from torchrepro.engine.processes.fork_here import start_fork, why_not_here
from torchrepro.engine.search.process import Search, Start
from torchrepro.locate.settings import locate_search
from torchrepro.minify.run_directory import MinifySettings, minify_search
from torchrepro.nouns.errors import DoesNotFail, TorchReproError, in_a_line, say
from torchrepro.nouns.results import Located, Minified
from torchrepro.state.ambient import reset_configs


class SearchHere:
    """The searches about one bundle, in a thread of this process, which forks them off."""

    def __init__(self, bundle: Path, verbs: tuple[str, ...], *, explain: bool = True) -> None:
        self.bundle = bundle
        self.found: list[Minified | Located] = []
        self._searches: Mapping[str, Callable[..., Search[Any]]] = {
            "minify": partial(minify_search, bundle, MinifySettings(explain=explain)),
            "locate": partial(locate_search, bundle),
        }
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
        except Exception as exc:  # the program goes on, and the bundle is there
            say(f"the search failed ({in_a_line(exc)}); torchrepro minify {self.bundle} tries again")

    def _answer(self, verb: str) -> Minified | Located:
        reason = why_not_here()
        if not reason:
            try:
                return self._found(verb, self._fork)
            except DoesNotFail:
                raise
            except TorchReproError as exc:
                reason = exc.fact
        say(f"searching in a fresh process: {reason}")
        return self._found(verb, None)

    def _found(self, verb: str, start: Start | None) -> Minified | Located:
        found: Minified | Located = self._searches[verb](start=start).answer()
        return found

    def _fork(self, environ: Mapping[str, str]) -> Child:
        keep = read_manifest(self.bundle).ambient.left_out
        child = start_fork(environ, partial(_begin, keep))
        self._search = child.process.pid
        return child


def _begin(keep: tuple[str, ...]) -> None:
    """Begin in the child: watch nothing, with the settings of a fresh process but for those to keep."""
    stop_watching()
    reset_configs(keep)
