"""Rows of the truth table on structure, types, Python values, integers and the NaN and Inf pattern."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any

import numpy as np
import torch
from truth_pair import INF, NAN, T, bad, changed, good, randn

from torchrepro.nouns.verdict import Blame, Difference

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Bag:
    def __init__(self, value: Any) -> None:
        self.value = value


class Spiteful:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison, please")

    __hash__ = None  # type: ignore[assignment]


def _loop(value: float) -> list[Any]:
    loop: list[Any] = [T([value])]
    loop.append(loop)
    return loop


STRUCTURE = [
    bad("a vector against a row", lambda: (T([1.0, 2, 3]), T([[1.0, 2, 3]])), Difference.SHAPE),
    good("a vector against a vector", lambda: (T([1.0, 2, 3]), T([1.0, 2, 3]))),
    bad("a scalar tensor against one element", lambda: (T(1.0), T([1.0])), Difference.SHAPE),
    bad("float32 against float64", lambda: (T([1.0]), T([1.0]).double()), Difference.DTYPE),
    good("dtypes free", lambda: (T([1.0]), T([1.0]).double()), exact_dtype=False),
    good("bfloat16 against float32, dtypes free", lambda: (T([1.1]).bfloat16(), T([1.1])), exact_dtype=False),
    bad("int32 against int64", lambda: (T([1]).int(), T([1])), Difference.DTYPE),
    bad("a tensor against a number", lambda: (T(1.0), 1.0), Difference.TYPE),
    bad("a number against a tensor", lambda: (1.0, T(1.0)), Difference.TYPE),
    bad("an int against a float", lambda: (1, 1.0), Difference.TYPE),
    bad("a bool against an int", lambda: (True, 1), Difference.TYPE),
    bad("None against a tensor", lambda: (None, T(1.0)), Difference.TYPE),
    bad("a tensor against None", lambda: (T(1.0), None), Difference.TYPE),
    good("None twice", lambda: (None, None)),
    good("a graph's tuple against a compiled list", lambda: ((T(1.0), T(2)), [T(1.0), T(2)])),
    bad("a list inside against a tuple", lambda: ([[T(1.0)]], [(T(1.0),)]), Difference.STRUCTURE),
    bad("a list against a dict", lambda: ([T(1.0)], {"a": T(1.0)}), Difference.STRUCTURE),
    bad("one output missing", lambda: ([T(1.0), T(2.0)], [T(1.0)]), Difference.STRUCTURE),
    bad("a key missing", lambda: ({"a": 1, "b": 2}, {"a": 1}), Difference.STRUCTURE),
    good("keys in another order", lambda: ({"a": 1, "b": 2}, {"b": 2, "a": 1})),
    bad("a named tuple against a tuple", lambda: (Point(1, 2), (1, 2)), Difference.STRUCTURE),
    good("a named tuple", lambda: (Point(1, T(2.0)), Point(1, T(2.0)))),
    good("torch.Size against tuple", lambda: ([torch.Size([2, 3])], [(2, 3)])),
    good("a dataclass", lambda: (Output(T([1.0])), Output(T([1.0])))),
    bad("a dataclass with a wrong field", lambda: (Output(T([1.0])), Output(T([2.0])))),
    bad(
        "a dataclass that lost a field", lambda: (Output(T([1.0]), T(1.0)), Output(T([1.0]))), Difference.TYPE
    ),
    bad("an object's attribute", lambda: (Bag(T([1.0])), Bag(T([3.0])))),
    good("an object's attribute, equal", lambda: (Bag(T([1.0])), Bag(T([1.0])))),
    bad("comparing raises", lambda: (Spiteful(), Spiteful())),
    good("the truth lacks a leaf", lambda: ([T(1.0), T(2.0)], [T(1.0), T(2.0)], [T(1.0).double()])),
    good("the truth holds None", lambda: ({"a": T(1.0)}, {"a": T(1.0)}, {"a": None})),
    good("the truth has another shape", lambda: (T([1.0, 2]), T([1.0, 2]), T([1.0]).double())),
    good("a value that contains itself", lambda: (_loop(1.0), _loop(1.0))),
    bad(
        "strides, when asked",
        lambda: (torch.zeros(2, 3), torch.zeros(3, 2).t()),
        Difference.STRIDE,
        check_stride=True,
    ),
    good("strides, when not asked", lambda: (torch.zeros(2, 3), torch.zeros(3, 2).t())),
    good(
        "the stride of a dimension of one",
        lambda: (torch.zeros(3, 1).as_strided((3, 1), (1, 1)), torch.zeros(3, 8).as_strided((3, 1), (1, 7))),
        check_stride=True,
    ),
    good("requires_grad is not compared", lambda: (T([1.0], requires_grad=True), T([1.0]))),
    good("a parameter is a tensor", lambda: (torch.nn.Parameter(T([1.0])), T([1.0]))),
    bad("one side on meta", lambda: (T([1.0]), torch.empty(1, device="meta")), Difference.DEVICE),
    good("both on meta", lambda: (torch.empty(3, device="meta"), torch.empty(3, device="meta"))),
]

PYTHON_VALUES = [
    good("strings", lambda: ("a", "a")),
    bad("other strings", lambda: ("a", "b")),
    bad("other bytes", lambda: (b"a", b"b")),
    good("NaN twice", lambda: (NAN, NAN)),
    bad("NaN and a number", lambda: (1.0, NAN), Difference.NON_FINITE),
    bad("a number where NaN was", lambda: (NAN, 1.0)),
    good("a float from float32", lambda: (0.1, 0.10000000149011612)),
    bad("a float off by a thousandth", lambda: (1.0, 1.001)),
    good("a float that the truth confirms", lambda: (1.001, 1.0, 1.0), Blame.EAGER),
    bad("int 5000 against 5001", lambda: (5000, 5001)),
    bad("a complex number's imaginary part", lambda: (1 + 2j, 1 + 2.1j)),
    good("dtypes", lambda: (torch.float32, torch.float32)),
    bad("other dtypes", lambda: (torch.float32, torch.float64)),
    bad("other devices", lambda: (torch.device("cpu"), torch.device("meta"))),
    good("enums", lambda: (Colour.RED, Colour.RED)),
    bad("other enums", lambda: (Colour.RED, Colour.BLUE)),
    bad("sets", lambda: ({1, 2}, {1, 3})),
    bad("slices", lambda: (slice(0, 3), slice(0, 4))),
    bad("ranges", lambda: (range(3), range(4))),
    good(
        "a normal distribution",
        lambda: (torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.0, 1.0)),
    ),
    bad(
        "another normal distribution",
        lambda: (torch.distributions.Normal(0.0, 1.0), torch.distributions.Normal(0.0, 2.0)),
    ),
    good("ignoring what does not float", lambda: ([1, "a", T([1])], [2, "b", T([2])]), ignore_non_fp=True),
    bad(
        "ignoring what does not float, but this does",
        lambda: ([1, T([1.0])], [2, T([2.0])]),
        ignore_non_fp=True,
    ),
    good("numpy arrays", lambda: (np.ones(3), np.ones(3))),
    bad("numpy arrays that differ", lambda: (np.ones(3), np.array([1, 1, 2.0]))),
    bad("numpy dtypes", lambda: (np.ones(3), np.ones(3, dtype="float32")), Difference.DTYPE),
    bad("a numpy array against a list", lambda: (np.ones(2), [1.0, 1.0]), Difference.TYPE),
    good("a reversed numpy view", lambda: (np.arange(3)[::-1], np.array([2, 1, 0]))),
    bad("numpy strings", lambda: (np.array(["a"]), np.array(["b"]))),
    bad("numpy scalars", lambda: (np.float32(1), np.float32(2))),
]

INTEGERS = [
    good(
        "codes of a quantiser that eager rounds no better", lambda: (T([3, 8, 5]), T([3, 7, 6]), T([3, 7, 5]))
    ),
    bad("codes where eager agrees with the truth", lambda: (T([3, 7, 5]), T([3, 7, 6]), T([3, 7, 5]))),
    bad("codes that are garbage beside a rounding of eager", lambda: (T([3, 8]), T([3, 99]), T([3, 7]))),
    bad(
        "wrong far more often than eager",
        lambda: (torch.arange(50).index_fill(0, T([4]), 5), torch.arange(50) + 1, torch.arange(50)),
    ),
    bad("a quantiser's codes in strict mode", lambda: (T([8]), T([7]), T([7])), strict=True),
    bad("int tensor 5000 against 5001", lambda: (T([5000]), T([5001]))),
    bad("int64 beyond 2**53", lambda: (T([2**53]), T([2**53 + 1]))),
    bad(
        "uint64 beyond 2**63",
        lambda: (T([2**64 - 1], dtype=torch.uint64), T([2**64 - 2], dtype=torch.uint64)),
    ),
    good("uint64", lambda: (T([2**64 - 1], dtype=torch.uint64), T([2**64 - 1], dtype=torch.uint64))),
    bad(
        "one bool of many",
        lambda: (
            torch.zeros(10**6, dtype=torch.bool),
            changed(torch.zeros(10**6, dtype=torch.bool), 77, True),
        ),
    ),
    bad("uint16", lambda: (T([1], dtype=torch.uint16), T([2], dtype=torch.uint16))),
    bad("an argmax that moved", lambda: (T([3, 1, 2]), T([3, 1, 1]))),
]

NON_FINITE = [
    bad("a wrong element beside NaN", lambda: (T([NAN, 1, 2]), T([NAN, 50, 2]))),
    good("NaN in the same place", lambda: (T([NAN, 1, 2]), T([NAN, 1, 2]))),
    bad("NaN in the same place, equal_nan off", lambda: (T([NAN, 1]), T([NAN, 1])), equal_nan=False),
    bad("a wrong element beside Inf", lambda: (T([INF, 1]), T([INF, 50]))),
    good("Inf in the same place", lambda: (T([INF, 1]), T([INF, 1]))),
    bad("the sign of Inf", lambda: (T([INF, 1]), T([-INF, 1]))),
    bad("a new NaN", lambda: (T([1.0, 2]), T([1.0, NAN])), Difference.NON_FINITE),
    bad("a new Inf", lambda: (T([1.0, 2]), T([1.0, INF])), Difference.NON_FINITE),
    bad(
        "a new NaN that the truth contradicts",
        lambda: (T([1.0, 2]), T([1.0, NAN]), T([1.0, 2]).double()),
        Difference.NON_FINITE,
    ),
    bad("a lost NaN", lambda: (T([1.0, NAN]), T([1.0, 0]), T([1.0, NAN]).double())),
    bad("a lost NaN, no truth", lambda: (T([1.0, NAN]), T([1.0, 0]))),
    bad("NaN became Inf", lambda: (T([1.0, NAN]), T([1.0, INF]))),
    good("eager's NaN is wrong", lambda: (T([1.0, NAN]), T([1.0, 2]), T([1.0, 2]).double()), Blame.EAGER),
    good("eager's Inf is wrong", lambda: (T([1.0, INF]), T([1.0, 2]), T([1.0, 2]).double()), Blame.EAGER),
    bad(
        "eager's NaN is wrong and so is the compiled value",
        lambda: (T([1.0, NAN]), T([1.0, 9]), T([1.0, 2]).double()),
    ),
    good(
        "both wrong in the same way",
        lambda: (T([1.0, NAN]), T([1.0, NAN]), T([1.0, 2]).double()),
        Blame.NOBODY,
    ),
    good(
        "the truth is beyond half's range",
        lambda: (T([INF, 1]).half(), T([INF, 1]).half(), T([7e4, 1]).double()),
    ),
    good(
        "the compiled one rightly overflows",
        lambda: (T([65504.0, 1]).half(), T([INF, 1]).half(), T([7e4, 1]).double()),
    ),
    good(
        "at the edge of half's range",
        lambda: (T([65504.0, 1]).half(), T([INF, 1]).half(), T([65510.0, 1]).double()),
    ),
    bad(
        "overflow that the truth does not have",
        lambda: (T([6e4, 1]).half(), T([INF, 1]).half(), T([6e4, 1]).double()),
        Difference.NON_FINITE,
    ),
    good("masked scores", lambda: (T([-INF, 0.5, 1]), T([-INF, 0.5, 1]), T([-INF, 0.5, 1]).double())),
    bad(
        "NaN in one lane of a million",
        lambda: (randn(1 << 20).float(), changed(randn(1 << 20).float(), 99, NAN), randn(1 << 20)),
        Difference.NON_FINITE,
    ),
    bad("an imaginary NaN", lambda: (T([1 + 1j]), T([complex(1, NAN)])), Difference.NON_FINITE),
]
