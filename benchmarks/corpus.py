"""Throughput and memory of `torchrepro corpus`: `python -m benchmarks.corpus --sizes 100 --stand-in 10000`.

`--sizes` replays that many tiny bundles for real, two times each, because they pass. The throughput is
compared with what the cores could do if nothing but queries cost time: the seconds that each query of the run
took, divided by the number of jobs. `--stand-in` measures the index and the scheduling alone: in place of a
replay it starts `true`, a process that does nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from torchrepro.corpus.index import Corpus
from torchrepro.corpus.replays import Answer, Plan, Request, replay_corpus
from torchrepro.corpus.survey import Survey
from torchrepro.engine.other_python import Replayed, ask_interpreter
from torchrepro.engine.processes.limits import usable_cores
from torchrepro.nouns.verdict import Kind

_BUNDLE = """
import sys, torch
from pathlib import Path
from torchrepro import Compiler, Kind, Repro, Signature, save_bundle
graph = torch.fx.symbolic_trace(lambda x: (torch.cos(x) + 1,))
repro = Repro(graph, (torch.ones(4),), compiler=Compiler("aot_eager"), expected=Signature(Kind.MISMATCH))
save_bundle(repro, Path(sys.argv[1]))
"""


def write_bundles(directory: Path, count: int) -> list[Path]:
    """Write tiny bundles of different content: one is saved, the others are it with another constant."""
    subprocess.run([sys.executable, "-c", _BUNDLE, directory / "0"], check=True)
    graph = (directory / "0" / "graph.py").read_text()
    members = {path.name: path.read_bytes() for path in (directory / "0").iterdir() if path.is_file()}
    for number in range(1, count):
        own = directory / str(number)
        own.mkdir()
        # Without provenance.json it would be a stranger's, and the sandbox would be measured too.
        for name, content in members.items():
            if name not in ("provenance.json", "graph.py", "repro.py"):
                (own / name).write_bytes(content)
        (own / "graph.py").write_text(graph.replace(" + 1", f" + {number + 1}"))
    return [directory / str(number) for number in range(count)]


class StandIn(Executor):
    """Starts a process that does nothing for each request."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        return self._pool.submit(self._run, *(each for each in args if isinstance(each, Request)))

    @staticmethod
    def _run(request: Request) -> Answer:
        subprocess.run(["true"], check=True)
        return Answer(
            request, Replayed(Kind.MISMATCH, "mismatch", True, "", 0.01, "code"), "", "here", "tools"
        )


class Timed(ThreadPoolExecutor):
    """Runs requests as the default executor does, and sums up the seconds that they take."""

    seconds = 0.0

    def submit(self, function: Any, /, *args: Any, **more: Any) -> Future[Any]:
        return super().submit(self._run, function, *args, **more)

    def _run(self, function: Any, *args: Any) -> Any:
        started = time.monotonic()
        answer = function(*args)
        self.seconds += time.monotonic() - started
        return answer


def peak_memory() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(count: int, jobs: int, *, stand_in: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="torchrepro-bench-") as scratch:
        directory = Path(scratch)
        bundles = write_bundles(directory / "bundles", count)
        before = peak_memory()
        started = time.monotonic()
        with Corpus(directory / "corpus", create=True) as corpus:
            for bundle in bundles:
                corpus.add(bundle)
            adding = time.monotonic() - started
            interpreter = ask_interpreter(Path(sys.executable))
            # Trusted: the sandbox of a stranger's bundle is measured by benchmarks/sandbox.py.
            plan = Plan((interpreter,), jobs=jobs, run_all=True, trusted=("bundle",))
            executor = StandIn(jobs) if stand_in else Timed(jobs)
            started = time.monotonic()
            run, progress = replay_corpus(corpus, plan, executor=executor)
            seconds = time.monotonic() - started
            started = time.monotonic()
            survey = Survey(corpus, [run])
            summary = survey.summary(seconds)
            survey.buckets()
            reading = time.monotonic() - started
            started = time.monotonic()
            corpus.rebuild()
            rebuilding = time.monotonic() - started
        busy = getattr(executor, "seconds", 0.0)
        return {
            "bundles": count,
            "jobs": jobs,
            "stand_in": stand_in,
            "states": {state.value: number for state, number in summary.states.items()},
            "added_per_second": round(count / adding, 1),
            "replays": progress.replays,
            "replays_per_second": round(progress.replays / seconds, 3),
            "seconds_of_a_query": round(busy / progress.replays, 3),
            "over_ideal_percent": round(100 * (seconds * jobs / busy - 1), 1) if busy else None,
            "summary_seconds": round(reading, 3),
            "rebuild_seconds": round(rebuilding, 3),
            "memory_before_mib": round(before, 1),
            "memory_peak_mib": round(peak_memory(), 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="100", help="bundles to replay, by comma")
    parser.add_argument("--stand-in", default="", help="bundles with a process that does nothing, by comma")
    parser.add_argument("--jobs", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path, help="append results to this file")
    given = parser.parse_args()
    for text, stand_in in ((given.sizes, False), (given.stand_in, True)):
        for count in filter(None, text.split(",")):
            found = json.dumps(measure(int(count), given.jobs, stand_in=stand_in))
            print(found, flush=True)
            if given.json is not None:
                given.json.parent.mkdir(parents=True, exist_ok=True)
                with given.json.open("a") as file:
                    file.write(found + "\n")


if __name__ == "__main__":
    main()
