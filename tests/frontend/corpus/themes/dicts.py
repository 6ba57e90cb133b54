"""Dictionaries: all methods, views, and dictionaries that belong to the caller."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


def tensor_and_dict(size):
    return torch.randn(size, 4), {"x": torch.randn(size, 4), "n": 2}


class Settings(dict):
    def __missing__(self, key):
        return f"no {key}"

    def __getattr__(self, name):
        return self[name]


@case
def construction(a, b):
    return {"a": a, "b": b}, dict(a=a), dict([("k", 1)]), dict({"z": 2}, y=3), {**{"m": 1}, "n": b}, {}


@case
def reading(a, b):
    table = {"a": a, 1: b, None: 3}
    return table["a"] + table[1], table.get("a"), table.get("q"), table.get("q", 7), table[None], len(table)


@case
def writing_and_deleting(a, b):
    table = {}
    table["a"] = a
    table["b"] = b
    table["a"] = a + 1
    del table["b"]
    table.update(c=3)
    table.update({"d": 4}, e=5)
    table.update([("f", 6)])
    return table


@case
def pop_variants(a, b):
    table = {"a": a, "b": b, "c": 1}
    x = table.pop("a")
    y = table.pop("zz", None)
    key, value = table.popitem()
    return x, y, key, value, table


@case
def pop_of_a_missing_key(a, b):
    try:
        {}.pop("x")
    except KeyError as error:
        return error.args, str(error), a


@case
def setdefault(a, b):
    table = {"x": [a]}
    table.setdefault("x", []).append(b)
    table.setdefault("y", []).append(1)
    return table, table.setdefault("z")


@case
def fromkeys_and_copy(a, b):
    table = dict.fromkeys(["p", "q"], 0)
    other = table.copy()
    other["p"] = a
    return table, other, dict.fromkeys("ab"), dict(other)


@case
def merge_operators(a, b):
    x, y = {"a": a, "k": 1}, {"b": b, "k": 2}
    z = x | y
    x |= y
    return z, x, {**x, **y}


@case
def views(a, b):
    table = {"a": a, "b": b}
    return (
        list(table.keys()),
        list(table.values()),
        [k for k, v in table.items()],
        list(table),
        len(table.items()),
    )


@case
def views_follow_the_dict(a, b):
    table = {"x": 1}
    keys = table.keys()
    table["y"] = 2
    return list(keys), "y" in keys, a


@case
def set_operations_on_views(a, b):
    x, y = {"a": 1, "b": 2}, {"b": 2, "c": 3}
    return (
        sorted(x.keys() & y.keys()),
        sorted(x.keys() | y.keys()),
        sorted(x.keys() - y.keys()),
        sorted(x.items() & y.items()),
        sorted(x.keys() ^ {"a", "z"}),
        x.keys() == {"a", "b"},
        x.keys() <= {"a", "b", "c"},
        x.keys().isdisjoint(["q"]),
        a,
    )


@case
def iteration(a, b):
    table = {"a": a, "b": b}
    total = 0
    for key in table:
        total = total + table[key]
    for key, value in table.items():
        total = total * 2 + value
    return total, list(reversed(table)), [*table], {*table}, max(table)


@case
def membership_and_equality(a, b):
    table = {"a": 1, 2: "b"}
    return "a" in table, "b" not in table, table == {2: "b", "a": 1}, table != {}, 1 in table.values(), a


@case
def nested(a, b):
    table = {"outer": {"inner": [a]}}
    table["outer"]["inner"].append(b)
    table["outer"]["n"] = len(table["outer"]["inner"])
    return table


@case
def order_of_insertion(a, b):
    table = {"z": 1, "a": 2}
    table["m"] = 3
    del table["z"]
    table["z"] = 4
    return list(table), list(table.values()), a


@case
def missing_key(a, b):
    try:
        return {"x": 1}["y"]
    except KeyError as error:
        return repr(error), a


@case
def clear_and_truth(a, b):
    table = {"a": a}
    full = bool(table)
    table.clear()
    return full, bool(table), table, b


@case(make=tensor_and_dict)
def argument_dict_is_read(a, table):
    return a * table["n"] + table["x"], table.get("missing", a)


@case(make=tensor_and_dict)
def argument_dict_is_written(a, table):
    table["y"] = a + table["x"]
    table["n"] += 1
    del table["x"]
    return table["y"]


@case(make=tensor_and_dict)
def argument_dict_is_returned_changed(a, table):
    table.update(x=a, z=[a])
    return table


@case(make=tensor_and_dict)
def argument_dict_as_keywords(a, table):
    def inner(x, n=1, **rest):
        return x * n, rest

    return inner(**table), inner(a, **{"m": 5})


@case(
    make=lambda size: ({"layers": [{"w": torch.randn(size, 4)}, {"w": torch.randn(size, 4), "skip": True}]},)
)
def configuration_like_argument(config):
    total = 0
    for layer in config["layers"]:
        if layer.get("skip", False):
            continue
        total = total + layer["w"]
    return total, len(config["layers"])


@case
def keys_of_many_types(a, b):
    table = {
        1: "int",
        "1": "str",
        (1,): "tuple",
        None: "none",
        True: "bool",
        torch.float32: "dtype",
        2.5: "float",
    }
    return table[1], table["1"], table[(1,)], table[a.dtype], table[2.5], len(table), b


@case
def objects_as_keys(a, b):
    first, second = object(), object()
    table = {first: a, second: b}
    return table[first] + 2 * table[second], first in table


@case
def subclass_with_missing(a, b):
    settings = Settings(scale=2)
    settings["bias"] = a
    return settings["scale"] * b + settings.bias, settings["depth"], settings


@case
def comprehension_and_filter(a, b):
    table = {name: value * 2 for name, value in {"a": a, "b": b}.items() if name != "b"}
    return table, {i: i**2 for i in range(3)}, {v: k for k, v in {"x": 1}.items()}


@case
def dispatch_by_name(a, b):
    table = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y}
    return [table[name](a, b) for name in ("add", "sub")]


@case
def dict_of_tensors_is_reduced(a, b):
    losses = {"one": a.sum(), "two": b.mean()}
    losses["total"] = sum(losses.values())
    return losses


@case
def change_while_iterating_is_an_error(a, b):
    table = {"x": 1}
    try:
        for key in table:
            table[key + "y"] = 2
    except RuntimeError as error:
        return str(error), a
