"""A job of two gloo ranks that play scenes (started by test_frontend_ranks_processes.py and ..._traces.py).

`python frontend_rank_driver.py INIT_METHOD DIRECTORY SCENES`: each rank writes `DIRECTORY/RANK.json`, what it
saw in each scene. The ranks are forked from one process that has imported torch, to save time. Scenes stand
in frontend_rank_scenes.py; each has a process group of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import frontend_rank_scenes
import torch.distributed as dist


def play(rank: int, init_method: str, directory: Path, scenes: list[str]) -> None:
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=2)
    saw: dict[str, Any] = {}
    for scene in scenes:
        group = dist.new_group([0, 1])
        started = time.monotonic()
        try:
            found = getattr(frontend_rank_scenes, scene)(rank, group)
        except Exception as exc:
            found = {"error": type(exc).__name__, "text": str(exc)}
        saw[scene] = {"seconds": time.monotonic() - started, **found}
        (directory / f"{rank}.json").write_text(json.dumps(saw))


def main() -> None:
    init_method, directory, *scenes = sys.argv[1:]
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=play, args=(rank, init_method, Path(directory), scenes)) for rank in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
