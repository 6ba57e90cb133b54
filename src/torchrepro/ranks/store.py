"""JobStore: the store through which the ranks of a job found one another, used without disturbing them.

Each call is made in a thread that can be abandoned: torch waits for an answer without a limit, and a machine
that loses its power sends none.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")


class StoreLost(Exception):
    """The store does not answer, or no longer exists."""


class JobStore:
    """Plain text under keys of our own."""

    def __init__(self, store: Store, prefix: str, *, timeout: float = 10.0) -> None:
        self._prefix = prefix
        self._timeout = timeout
        """Seconds after which a call that is not answered means that the store is lost."""
        self._line = _Line()
        self._reach = self._line.call(lambda: _way_to(store), timeout)

    def set(self, values: Mapping[str, str], *, timeout: float | None = None) -> None:
        """Write all of them, in this order."""

        def write(store: Any) -> None:
            if _is_tcp(store):
                # One message, which is not answered: at the end of a job the host of the store may be gone,
                # and torch prints a page for the second message to it, but nothing for the first.
                store.multi_set(list(values), list(values.values()))
                return
            for key, value in values.items():
                store.set(key, value)

        self._do(write, timeout)

    def add(self, key: str, amount: int) -> int:
        return int(self._do(lambda store: store.add(key, amount)))

    def first(self, key: str, value: str) -> str:
        """Return the value that the first rank to call this has set, which may be ours."""
        found: bytes = self._do(lambda store: store.compare_set(key, "", value))
        return found.decode()

    def has(self, *keys: str) -> bool:
        """Return whether all of them have been set."""
        return bool(self._do(lambda store: store.check(list(keys))))

    def get(self, key: str) -> str | None:
        """Return the value, or None if it is not set. Never waits: torch prints warnings about waits."""

        def read(store: Any) -> str | None:
            return store.get(key).decode() if store.check([key]) else None

        return self._do(read)

    def delete(self, *keys: str) -> None:
        def remove(store: Any) -> None:
            for key in keys:
                store.delete_key(key)

        self._do(remove)

    def close(self) -> None:
        self._line.close()

    def _do(self, operation: Callable[[Any], T], timeout: float | None = None) -> T:
        def prefixed() -> T:
            from torch.distributed import PrefixStore  # type: ignore[attr-defined]

            store = self._reach()
            if store is None:
                raise StoreLost("the process group has been destroyed")
            return operation(PrefixStore(self._prefix, store))

        return self._line.call(prefixed, self._timeout if timeout is None else timeout)


def _way_to(store: Store) -> Callable[[], Store | None]:
    """Return how to reach the store later, without keeping it alive.

    A TCP store gets a second connection: the first may be held by a thread that waits on it, and the program
    may set time limits on it. A store that outlives its process group would keep the port, or the file, with
    the old keys for the group that comes next; a second connection does not. `clone`: Checked on torch 2.11
    to 2.15.
    """
    if _is_tcp(store):
        own: Store = store.clone()  # type: ignore[attr-defined]
        return lambda: own
    return weakref.ref(store)


def _is_tcp(store: Any) -> bool:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, TCPStore)


class _Line:
    """A thread that makes one call after the other, and a limit on the wait for each answer."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._lost = False
        threading.Thread(target=_answer, args=(self._calls,), name="torchrepro-ranks", daemon=True).start()

    def call(self, function: Callable[[], T], limit: float) -> T:
        if self._lost:
            raise StoreLost("the store was lost before")
        answers: queue.SimpleQueue[tuple[T, Exception | None]] = queue.SimpleQueue()
        self._calls.put((function, answers))
        try:
            result, error = answers.get(timeout=limit)
        except queue.Empty:
            error = TimeoutError(f"no answer for {limit:g} s")
        if error is None:
            return result
        self._lost = True
        self.close()
        raise StoreLost(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")

    def close(self) -> None:
        self._calls.put(None)


def _answer(calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]] | None]) -> None:
    while (call := calls.get()) is not None:
        function, answers = call
        try:
            answers.put((function(), None))
        except Exception as exc:
            answers.put((None, exc))
        # Neither the answer nor the store in it may live on in this frame until the next call.
        del call, function, answers
