"""Small corpora for tests: bundles that no compiler has seen, and an executor that makes up their replays."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from torchrepro.corpus.replays import Answer, Request
from torchrepro.engine.other_python import Interpreter, Replayed
from torchrepro.nouns.verdict import Kind

OLD = Interpreter(Path("/old/python"), "3.11.0", "2.12.0", "0" * 40, "")
NEW = Interpreter(Path("/new/python"), "3.11.0", "2.13.0", "1" * 40, "")
FAILS = Replayed(Kind.MISMATCH, "mismatch", True, "", 1.0, "a")
OTHERWISE = Replayed(Kind.CRASH, "crash | backend | SIGSEGV", False, "", 1.0, "a")
PASSES = Replayed(Kind.PASS, "pass", False, "", 1.0, "a")
LOST = Replayed(cannot_run="its process died (SIGKILL)")

_GRAPH = """# torchrepro graph 1. Data in the shape of Python: it is parsed, never executed.
class Graph:
    def forward(self, x):
        y = x + {number}
        return y
"""


def write_bundle(path: Path, number: int, template: Path, *, kind: str = "mismatch") -> Path:
    """Write a bundle like `template`, of other content, without torch."""
    path.mkdir(parents=True)
    manifest = json.loads((template / "manifest.json").read_text())
    manifest["expected"] = {**(manifest["expected"] or {}), "kind": kind}
    (path / "manifest.json").write_text(json.dumps(manifest))
    (path / "graph.py").write_text(_GRAPH.format(number=number))
    (path / "tensors.safetensors").write_bytes((template / "tensors.safetensors").read_bytes())
    return path


class MadeUp(Executor):
    """Answers requests at once from a function, and notes what it was asked."""

    def __init__(self, answer: Callable[[Request, int], Replayed], *, host: str = "here", stop_at: int = -1):
        self.asked: list[tuple[str, int, bool]] = []
        self._answer, self._host, self._stop_at = answer, host, stop_at

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        (request,) = (each for each in args if isinstance(each, Request))
        key = (request.bundle, request.side, request.only_code)
        if len(self.asked) == self._stop_at:
            raise KeyboardInterrupt
        number = self.asked.count(key)
        self.asked.append(key)
        future: Future[Any] = Future()
        replayed = self._answer(request, number)
        future.set_result(Answer(request, replayed, f"code {replayed.code}\n", self._host, "tools"))
        return future
