"""Whether two ways to write a call are the same one: run both on fake tensors and compare.

Two calls are the same if they reach the dispatcher as the same operators on the same arguments. Where a
compiler takes an operator apart before it sees it, that is done here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchrepro.judge.leaves import tensors_in
from torchrepro.state.fake_run import Decompositions, FakeRun, OperatorLog, identity
from torchrepro.torch_api.pytree import tree_leaves


class SameCall:
    """Tells whether two ways to write a call are the same one."""

    def __init__(self, run: FakeRun, decompositions: Decompositions | None = None) -> None:
        self._run = run
        self._tables: list[Decompositions] = [{}, *([decompositions] if decompositions else [])]

    def __call__(self, first: Callable[[], Any], second: Callable[[], Any], arguments: Sequence[Any]) -> bool:
        """Whether both reach the dispatcher alike, as they are or as the compiler takes them apart."""
        return any(self._alike(first, second, arguments, table) for table in self._tables)

    def _alike(
        self,
        first: Callable[[], Any],
        second: Callable[[], Any],
        arguments: Sequence[Any],
        table: Decompositions,
    ) -> bool:
        known = {identity(tensor): f"argument {path}" for path, tensor in tensors_in(list(arguments))}
        seen = []
        for call in (first, second):
            log = OperatorLog(table, known)
            try:
                with self._run.around(), log:
                    seen.append((log.calls, log.described(tree_leaves(call()))))
            except Exception:
                return False  # this way to write it does not take these arguments
        return bool(seen[0] == seen[1])
