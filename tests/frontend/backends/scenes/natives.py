"""Functions in C that call special methods of the user's objects: they must be right there too."""

from __future__ import annotations

import bisect
import heapq
import json
import math
from collections.abc import Iterator
from typing import Any

import torch

from tests.frontend.harness import Capture, outcome, scene, tensor


class Noted:
    """Special methods leave a trace in the object; but for those that C asks for hints, and for hashes."""

    def __init__(self, n: int) -> None:
        self.n, self.calls = n, 0

    def _noted(self, value: Any) -> Any:
        self.calls += 1
        return value

    def __str__(self) -> str:
        return self._noted(f"s{self.n}.{self.calls}")

    def __repr__(self) -> str:
        return self._noted(f"r{self.n}.{self.calls}")

    def __lt__(self, other: Any) -> bool:
        return self._noted(self.n < other.n)

    def __eq__(self, other: object) -> bool:
        return self._noted(isinstance(other, Noted) and self.n == other.n)

    def __hash__(self) -> int:
        return hash(self.n)

    def __add__(self, other: Any) -> Any:
        return self._noted(Noted(self.n + getattr(other, "n", other)))

    __radd__ = __add__

    def __index__(self) -> int:
        return self._noted(self.n)

    def __float__(self) -> float:
        return self._noted(float(self.n))

    def __len__(self) -> int:
        return self.n

    def __bool__(self) -> bool:
        return self._noted(self.n > 1)

    def __iter__(self) -> Iterator[int]:
        self.calls += 1
        return iter(range(self.n))

    def __getitem__(self, index: int) -> int:
        return self._noted(index * self.n)

    def __contains__(self, item: Any) -> bool:
        return self._noted(item == self.n)

    def __neg__(self) -> int:
        return self._noted(-self.n)

    def __divmod__(self, other: int) -> Any:
        return self._noted(divmod(self.n, other))


USES: dict[str, Any] = {
    "percent": lambda a, b: "%s %r" % (a, b),
    "percent_of_one": lambda a, b: "%s" % a,
    "format_method": lambda a, b: "{} {!r} {x.n}".format(a, b, x=a),
    "text_of_a_list": lambda a, b: str([a, b]),
    "text_of_a_dict": lambda a, b: repr({"a": a, 1: (b,)}),
    "join": lambda a, b: ",".join(map(str, [a, b])),
    "sorted": lambda a, b: [each.n for each in sorted([b, a, b])],
    "sort_in_place": lambda a, b: [a, b].sort(),
    "largest": lambda a, b: max(a, b).n + min([a, b]).n,
    "sum": lambda a, b: sum([a, b]).n,
    "sum_from": lambda a, b: sum([a, b], 5).n,
    "equal_lists": lambda a, b: ([a, b] == [a, b], [a] == [b], (a,) != (b,)),
    "less_lists": lambda a, b: ([a, 1] < [b, 0], (a, b) < (b, a)),
    "in_a_list": lambda a, b: (a in [b], a in (b, a), [b, a].index(a), [a, b].count(b)),
    "equal_dicts": lambda a, b: {"k": a} == {"k": b},
    "a_set": lambda a, b: (len({a, b, a}), a in {b}),
    "a_dict_key": lambda a, b: ({a: 1}.get(b), {a: 1, b: 2}[a]),
    "remove": lambda a, b: len([each for each in [a, b] if each != a]),
    "heap": lambda a, b: heapq.heappop(h := [a, b]).n,
    "heap_push": lambda a, b: [heapq.heappush(h := [b], a), h[0].n],
    "bisect": lambda a, b: bisect.bisect([a], b),
    "slice": lambda a, b: [0, 1, 2, 3, 4][a:b],
    "index": lambda a, b: [0, 1, 2, 3, 4][a],
    "repeat": lambda a, b: [0] * a,
    "range": lambda a, b: list(range(a, b)),
    "math": lambda a, b: (math.sqrt(a), math.floor(2.5), float(a), int(b), round(1.234, a)),
    "all_and_any": lambda a, b: (all([a, b]), any([a, b]), bool(a), not b),
    "filter": lambda a, b: len(list(filter(None, [a, b]))),
    "length": lambda a, b: (len(a), len([a, b])),
    "unpacking": lambda a, b: ([*a], (*b, 1), dict(zip(a, b)), list(enumerate(a))),
    "extend": lambda a, b: (x := [], x.extend(a), x.__iadd__(b), x)[-1],
    "tuple_and_set": lambda a, b: (tuple(a), set(b), frozenset(a), list(reversed([a, b]))[0].n),
    "sum_of_iterable": lambda a, b: (sum(a), max(b), sorted(b), list(map(str, a))),
    "contains": lambda a, b: (1 in a, 3 in b),
    "divmod": lambda a, b: (divmod(a, 2), -a, abs(-3)),
    "hash": lambda a, b: (hash(a) == hash(b), hash((a, 1)) == hash((a, 1))),
    "string_methods": lambda a, b: ("x".ljust(a, "."), "abc".center(b)),
    "bytes": lambda a, b: bytes([a, b]),
    "json": lambda a, b: json.dumps({"n": a.n, "items": [b.n]}),
    "isinstance": lambda a, b: (isinstance(a, Noted), type(a) is type(b), callable(a)),
    "chained": lambda a, b: (a < b < Noted(9), a == b == a),
    "format": lambda a, b: (format(a.n, "03d"), f"{a}", f"{b!r:>8}", f"{a.n:{b.n}d}"),
    "dict_update": lambda a, b: (d := {}, d.update({a: 1}), d.update({b: 2}), len(d))[-1],
    "set_operations": lambda a, b: (len({a} | {b}), len({a, b} - {a}), {a} <= {a, b}),
}


HASHING = frozenset({"a_set", "a_dict_key", "hash", "dict_update", "set_operations", "unpacking"})
"""How often equality is asked for depends on the table."""


def _scene(name: str, use: Any) -> None:
    def play(capture: Capture) -> Iterator[Any]:
        def function(a: Any, b: Any, x: torch.Tensor) -> Any:
            return use(a, b), x + a.n

        call = capture(function)
        for first, second in ((1, 2), (2, 2), (3, 2), (1, 2)):
            a, b = Noted(first), Noted(second)
            yield outcome(call, a, b, tensor()), () if name in HASHING else (a.calls, b.calls)
        a = Noted(2)
        yield outcome(call, a, a, tensor()), () if name in HASHING else a.calls

    play.__name__ = f"native_{name}"
    scene(play)


for _name, _use in USES.items():
    _scene(_name, _use)
