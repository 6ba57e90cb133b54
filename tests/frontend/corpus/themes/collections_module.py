"""`collections`: OrderedDict, defaultdict, deque, Counter, ChainMap, and the abstract classes."""

from __future__ import annotations

import collections
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence

import torch

from tests.frontend.corpus.registry import case


class Output(OrderedDict):
    """As `transformers` has them: items are attributes as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        for key, value in self.items():
            object.__setattr__(self, key, value)

    def to_tuple(self):
        return tuple(self[key] for key in self)

    def __getitem__(self, key):
        if isinstance(key, str):
            return super().__getitem__(key)
        return self.to_tuple()[key]


class Frozen(Mapping):
    def __init__(self, data):
        self.data = data

    def __getitem__(self, key):
        return self.data[key]

    def __iter__(self):
        return iter(self.data)

    def __len__(self):
        return len(self.data)


@case
def ordered_dict(a, b):
    table = OrderedDict([("x", a), ("y", b)])
    table.move_to_end("x")
    table["z"] = 1
    first = next(iter(table))
    table.move_to_end("z", last=False)
    return table, first, list(table), table.popitem(last=False), list(reversed(table))


@case
def ordered_dict_equality(a, b):
    x, y = OrderedDict(p=1, q=2), OrderedDict(q=2, p=1)
    return x == y, x == dict(y), list(x.items()), a


@case
def default_dict(a, b):
    table = defaultdict(list)
    for index, value in enumerate((a, b, a)):
        table[index % 2].append(value)
    counts = defaultdict(int, {"z": 5})
    counts["a"] += 1
    return table, counts, counts.default_factory is int, dict(counts)


@case
def default_dict_with_a_lambda(a, b):
    table = defaultdict(lambda: torch.zeros(4))
    table["x"] = table["x"] + a
    table["y"] += b.sum()
    return table["x"], table["y"], "z" in table, table.get("z")


@case
def deque_methods(a, b):
    queue = deque([1, 2, 3])
    queue.append("r")
    queue.appendleft("l")
    queue.rotate(1)
    last, first = queue.pop(), queue.popleft()
    queue.extend([7, 8])
    queue.extendleft([5, 6])
    queue.reverse()
    queue.insert(1, "i")
    queue.remove(7)
    return (
        list(queue),
        last,
        first,
        queue.index("i"),
        queue.count(8),
        len(queue),
        queue[0],
        queue.copy() == queue,
        a,
    )


@case
def deque_with_a_limit(a, b):
    window = deque(maxlen=2)
    for step in range(4):
        window.append(a + step)
    return sum(window), window.maxlen, window


@case
def deque_as_a_queue(a, b):
    queue = deque([a])
    steps = 0
    while queue and steps < 3:
        item = queue.popleft()
        queue.append(item + b)
        steps += 1
    return queue[0], steps


@case
def counter(a, b):
    count = Counter("hello")
    count.update("low")
    count["z"] = 2
    count.subtract({"l": 1})
    return count.most_common(1), count["missing"], sorted(count.elements())[:3], count.total(), a * count["l"]


@case
def counter_arithmetic(a, b):
    x, y = Counter(a=3, b=1), Counter(a=1, c=2)
    return x + y, x - y, x & y, x | y, Counter([1, 1, 2]) == {1: 2, 2: 1}, a


@case
def chain_map(a, b):
    merged = ChainMap({"x": a}, {"x": b, "y": 2})
    child = merged.new_child({"z": 1})
    return merged["x"], merged["y"], "q" in merged, len(child), child["z"], sorted(child), merged.get("q", 5)


@case
def model_output(a, b):
    output = Output(hidden=a + b, pooled=a.mean(0))
    return output, output.hidden, output[0], output["pooled"], output.to_tuple(), list(output.keys())


@case
def mapping_of_the_user(a, b):
    table = Frozen({"x": a, "y": b})
    return (
        table["x"] + table["y"],
        "x" in table,
        list(table.keys()),
        table.get("z", 1),
        dict(**table),
        len(table),
    )


@case
def user_dict(a, b):
    table = UserDict(x=a)
    table["y"] = b
    return table["x"] * table["y"], sorted(table), table.data


@case
def abstract_classes(a, b):
    return (
        isinstance([], Sequence),
        isinstance({}, Mapping),
        isinstance({}, MutableMapping),
        isinstance("x", Iterable),
        isinstance(torch.relu, Callable),
        isinstance(3, Iterable),
        issubclass(list, collections.abc.MutableSequence),
        isinstance((1,), collections.abc.Hashable),
        a,
    )


@case(make=lambda size: (OrderedDict(x=torch.randn(size, 4), y=torch.randn(size, 4)),))
def ordered_dict_as_argument(table):
    table["z"] = table["x"] + table["y"]
    table.move_to_end("x")
    return table["z"], list(table)


@case(make=lambda size: (torch.randn(size, 4), deque([1, 2], maxlen=3), defaultdict(list, {"k": [1]})))
def deque_and_defaultdict_as_arguments(a, queue, table):
    queue.append(a)
    queue.append("full")
    table["k"].append(a)
    table["new"].append(2)
    return queue[-2] + 1, table


@case(make=lambda size: (torch.randn(size, 4), Counter(a=1)))
def counter_as_argument(a, count):
    count.update("ab")
    return a * count["a"]
