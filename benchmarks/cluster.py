"""What a query costs on a cluster: the driver's own time, Ray's latency, transfers; and what that limits.

    python -m benchmarks.cluster --on ray

With `--nodes N` it starts a Ray cluster of N nodes with a core each on this machine first. What the driver
does is measured in processor time, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any

import torch

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fresh_process import compiler_environment
from torchrepro.engine.queries import Queries
from torchrepro.engine.remote.messages import Blob, Site, versions_here
from torchrepro.engine.remote.ray_cluster import RayExecutor, ray_cluster
from torchrepro.engine.remote.relay import relay
from torchrepro.engine.remote.remote_executor import RemoteExecutor
from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import chosen_passes, search
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

_STORE = 256 << 20
_JUDGE = "torchrepro.engine.jobs:judge"


@contextmanager
def _nodes(count: int) -> Iterator[None]:
    """Run a cluster on this machine for the body, if a number of nodes is given."""
    if not count:
        yield
        return
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": _STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        os.environ["RAY_ADDRESS"] = cluster.address
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1, object_store_memory=_STORE)
        yield
    finally:
        cluster.shutdown()


def _repro(ops: int, elements: int) -> Repro:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        for _ in range(ops):
            x = torch.sin(x) + 1
        return (x * w.sum(),)

    return Repro(torch.fx.symbolic_trace(function), (torch.ones(8), torch.rand(elements)))


def _median(measure: Callable[[], float], times: int) -> float:
    return statistics.median(measure() for _ in range(times))


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def _ray_itself(pool: RayExecutor) -> None:
    print("| Ray alone | |\n|---|---|")
    _seconds(lambda: wait([pool.submit(abs, 1) for _ in range(20)]))
    one = _median(lambda: _seconds(lambda: pool.submit(abs, 1).result()), 50)
    print(f"| an empty task, there and back | {one * 1e3:.1f} ms |")
    many = _seconds(lambda: wait([pool.submit(abs, 1) for _ in range(500)])) / 500
    print(f"| each of 500 empty tasks, submitted at once | {many * 1e3:.2f} ms |")
    blob = Blob("64 MiB", os.urandom(64 << 20))
    first = _seconds(lambda: pool.submit(_size, blob).result())
    later = _median(lambda: _seconds(lambda: pool.submit(_size, blob).result()), 5)
    print(f"| a task with a blob of 64 MiB, the first time | {first * 1e3:.0f} ms |")
    print(f"| a later one | {later * 1e3:.0f} ms |")


def _size(blob: Blob) -> int:
    return len(blob.content)


def _queries(pool: RayExecutor) -> float:
    """Print what queries of several sizes cost; return the driver's seconds for a small one."""
    print("\n| a query | driver: write and send | until its outcome is back | in its child |")
    print("|---|---|---|---|")
    site = Site("benchmark", compiler_environment(), False, versions_here())
    with relay(pool, site, 1) as channel, Executor(1) as here, RemoteExecutor(channel, here) as remote:
        _query(remote, _repro(1, 8))  # starts a host
        found = []
        for ops, elements in ((1, 8), (200, 8), (1, 16 << 20)):  # new values each time
            rows = [_query(remote, _repro(ops, elements)) for _ in range(3)]
            driver, total, child = (statistics.median(column) for column in zip(*rows, strict=True))
            found.append(driver)
            name = f"{ops} ops, {elements * 4 / 2**20:.0f} MiB of values"
            print(f"| {name} | {driver * 1e3:.1f} ms | {total:.2f} s | {child:.2f} s |")
    return found[0]


def _query(remote: RemoteExecutor, repro: Repro) -> tuple[float, float, float]:
    task = Task(_JUDGE, repro, {"time_limit": 120.0}, time_limit=120.0)
    started = time.perf_counter()
    busy = time.thread_time()
    remote.start(task)
    driver = time.thread_time() - busy
    _, outcome = remote.wait()
    return driver, time.perf_counter() - started, outcome.seconds


class _Told:
    """An oracle that runs nothing: a candidate fails as long as it calls `cos` before `tanh`."""

    workers = 16

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            called = [node.target for node in candidate.graph.graph.nodes]
            fails = torch.cos in called and torch.tanh in called[called.index(torch.cos) :]
            yield index, Verdict(Kind.MISMATCH if fails else Kind.PASS)


def _search_itself() -> float:
    """Return the seconds that a search of 200 ops takes for each query, if verdicts cost nothing."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        for number in range(100):
            x = torch.cos(x) if number == 20 else torch.tanh(x) if number == 70 else torch.sin(x) + 1
        return (x,)

    repro = Repro(torch.fx.symbolic_trace(function), (torch.rand(64, 64),))
    problem = Problem(Queries(repro, Verdict(Kind.MISMATCH), _Told()))
    started = time.thread_time()
    search(problem, chosen_passes(("bypass", "arguments", "shapes", "values"), ()))
    each = (time.thread_time() - started) / problem.queries.asked
    print(f"\nThe search itself: {each * 1e3:.1f} ms for each of {problem.queries.asked} queries (200 ops).")
    return each


def _limits(serial: float, queries: Sequence[float]) -> None:
    """Print how many queries a driver keeps going: Amdahl with its own time as the serial part."""
    print(
        f"\n| seconds of a query | cores that one driver keeps busy | speed-up on 1,000 (at {serial:.4f} s) |"
    )
    print("|---|---|---|")
    for query in queries:
        share = serial / (serial + query)
        print(f"| {query:g} | {query / serial:,.0f} | {1 / (share + (1 - share) / 1000):,.0f} |")


def main(arguments: Any = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--on", default="ray")
    parser.add_argument("--nodes", type=int, default=0)
    given = parser.parse_args(arguments)
    with _nodes(given.nodes), ray_cluster(given.on) as cluster:
        pool = cluster.executor("benchmark")
        _ray_itself(pool)
        _limits(_queries(pool) + _search_itself(), (0.5, 2.0, 10.0, 60.0))


if __name__ == "__main__":
    main()
