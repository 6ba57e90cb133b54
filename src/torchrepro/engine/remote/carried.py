"""Call a function on another machine with a file or a bundle of this one: its content travels along.

A `Blob` goes through Ray's object store once for each node, however many calls refer to it.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchrepro.bundle.read import MEMBERS, PROVENANCE
from torchrepro.engine.remote.messages import Blob
from torchrepro.engine.remote.ray_cluster import RayExecutor

Task = TypeVar("Task")
Answer = TypeVar("Answer")


def submit_with(
    executor: concurrent.futures.Executor,
    function: Callable[[Task], Answer],
    task: Task,
    field: str,
    *,
    label: str,
) -> concurrent.futures.Future[Answer]:
    """Submit `function(task)`; the file or bundle at the path in this field of the task travels along.

    Ray's dashboard lists it under the label.
    """
    path: Path = getattr(task, field)
    submit = partial(executor.submit_as, label) if isinstance(executor, RayExecutor) else executor.submit
    return submit(_call, function, task, field, path.name, path.is_dir(), _packed(path))


def _packed(path: Path) -> Blob:
    files = [path / name for name in (*MEMBERS, PROVENANCE)] if path.is_dir() else [path]
    content = msgspec.msgpack.encode({file.name: file.read_bytes() for file in files if file.is_file()})
    return Blob(hashlib.sha256(content).hexdigest(), content)


def _call(
    function: Callable[[Any], Answer], task: Any, field: str, name: str, is_directory: bool, blob: Blob
) -> Answer:
    with tempfile.TemporaryDirectory(prefix="torchrepro-carried-", ignore_cleanup_errors=True) as scratch:
        place = Path(scratch, name)
        if is_directory:
            place.mkdir()
        for member, content in msgspec.msgpack.decode(blob.content, type=dict[str, bytes]).items():
            (place / member if is_directory else place).write_bytes(content)
        return function(replace(task, **{field: place}))
