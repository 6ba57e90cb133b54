"""A job of several gloo ranks that play a scene (started by test_ranks_processes.py).

`python rank_driver.py SCENE WORLD_SIZE INIT_METHOD DIRECTORY`: each rank writes `DIRECTORY/RANK.json`, one
entry for each thing it saw. The ranks are forked from one process that has imported torch, to save time.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torchrepro.ranks.agreement import Failure, Ranks


class Actor:
    """One rank: what it does, and the record of what it saw."""

    def __init__(self, rank: int, world_size: int, init_method: str, directory: Path) -> None:
        self.rank = rank
        self.world_size = world_size
        self.init_method = init_method
        self.notes: list[str] = []
        self._record: dict[str, Any] = {}
        self._file = directory / f"{rank}.json"

    def join(self) -> None:
        dist.init_process_group(
            "gloo", init_method=self.init_method, rank=self.rank, world_size=self.world_size
        )

    def ranks(self, timeout: float = 30.0) -> Ranks:
        ranks = Ranks.current(timeout=timeout, note=self.notes.append)
        assert ranks is not None
        return ranks

    def saw(self, name: str, value: Any) -> None:
        self._record[name] = value
        self._file.write_text(json.dumps({**self._record, "notes": self.notes}))

    def agree(self, name: str, event: str, *, failing: int | None = None, timeout: float = 30.0) -> None:
        failure = Failure(f"boom at {event}", f"/bundles/{self.rank}") if failing == self.rank else None
        started = time.monotonic()
        agreement = self.ranks(timeout).agree(event, failure)
        seconds = time.monotonic() - started
        self.saw(name, {**asdict(agreement), "seconds": seconds, "message": str(agreement.error())})

    def all_reduce(self) -> float:
        """The user's own collective: it must go on working beside the exchange."""
        value = torch.ones(1)
        dist.all_reduce(value)
        return float(value)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def failing_and_dying(actor: Actor) -> None:
    """Failures one after the other, each caught by the program; then a death."""
    actor.saw("before", Ranks.current() is None)
    actor.join()
    actor.saw("run_id", actor.ranks().run_id(f"run-of-{actor.rank}"))
    actor.agree("healthy", "graph 0 compiled")
    actor.agree("first_event", "graph 0 first call", failing=2)
    actor.agree("other_event", "graph 5 compiled" if actor.rank == 1 else "graph 1 compiled", failing=1)
    actor.agree("host_fails", "graph 1 first call", failing=0)
    actor.agree("healthy_again", "graph 2 compiled")
    actor.saw("all_reduce", actor.all_reduce())
    if actor.rank == 3:
        actor.ranks().announce("/bundles/unfinished")
        actor.die()
    actor.agree("death", "graph 3 compiled")


def losing_the_store(actor: Actor) -> None:
    """Two groups one after the other on the same port; in the second the host of the store is killed."""
    actor.join()
    actor.agree("first_group", "graph 0 compiled")
    actor.all_reduce()
    dist.destroy_process_group()
    gc.collect()
    actor.saw("between", Ranks.current() is None)
    actor.join()
    actor.agree("second_group", "graph 0 compiled")
    actor.all_reduce()
    if actor.rank == 0:
        actor.die()
    actor.agree("death", "graph 1 compiled")
    actor.agree("after_death", "graph 2 compiled")


def out_of_step(actor: Actor) -> None:
    """One rank compiles what the other does not; later it fails."""
    actor.join()
    actor.saw("run_id", actor.ranks(1.0).run_id(f"run-of-{actor.rank}"))
    actor.agree("healthy", "graph 0 compiled")
    if actor.rank == 1:
        actor.agree("alone", "graph 1 compiled")
        actor.agree("alone_again", "graph 2 compiled")
    actor.saw("all_reduce", actor.all_reduce())
    actor.agree("together", "graph 1 first call")
    actor.all_reduce()
    if actor.rank == 0:
        time.sleep(1)
    actor.agree("failure", "graph 3 compiled", failing=1)


def leaving(actor: Actor) -> None:
    """A rank whose part is over ends before the other has compiled its last graph."""
    actor.join()
    actor.agree("healthy", "graph 0 compiled")
    if actor.rank == 0:
        actor.agree("alone", "graph 1 compiled")


SCENES: dict[str, Callable[[Actor], None]] = {
    scene.__name__: scene for scene in (failing_and_dying, losing_the_store, out_of_step, leaving)
}


def main() -> None:
    scene, world_size, init_method, directory = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    actors = [Actor(rank, int(world_size), init_method, Path(directory)) for rank in range(int(world_size))]
    processes = [fork.Process(target=SCENES[scene], args=(actor,)) for actor in actors]
    for process in processes:
        process.start()
    # A rank that is killed stays a zombie while its parent waits for the others: it counts as gone.
    for process in processes:
        process.join()
    print(json.dumps([process.exitcode for process in processes]))


if __name__ == "__main__":
    main()
