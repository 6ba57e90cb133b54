"""Anything in the world may change between two calls: a captured function notices whatever it has read.

`changing_world.py` has the world. A function reads one thing of it, in one of the ways that Python has; it is
called again after each of many changes, and a twin of it, in a twin of the world, is called by Python.
"""

from __future__ import annotations

import os
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from tests.frontend.differential import changing_world
from tests.frontend.harness import Counting, eager, under_test
from torchrepro.frontend.runtime.cache import CaptureLimitWarning
from torchrepro.hunt.observation import Facts, facts_of, first_difference

START = 'X, Y, O, L, R, K = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3), OBJ, LST, (1,), {"a": 1}'
STATE = re.findall(
    r"\w+", "NUM LST NEST TUP DCT SET DEQ OD DD BYT NT SNS LS DS OBJ OBJ2 GET SLO WD DAT T1 T3 NET"
)


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


READS = lines(changing_world.READS)
CHANGES = lines(changing_world.CHANGES) + 2 * lines(changing_world.ARGUMENTS) + lines(changing_world.MODES)
MODES = frozenset(lines(changing_world.MODES))

MISSED = {
    "OBJ.v": [
        "Base.__getattribute__ = lambda self, name: 5 if name == 'v' else object.__getattribute__(self, name)"
    ],
    "OBJ.k": ["OBJ.k = 4", "Base.k = property(lambda self: 99)"],
    "OBJ.m()": ["Sub.__bases__ = (Other,)"],
    "str(OBJ)": ["del Base.__str__; Base.__repr__ = lambda self: 'repr'"],
    "list(OBJ)": ["Sub.__iter__ = lambda self: iter((9,))", "del Sub.__iter__", "del Base.__getitem__"],
    "OBJ in BYKEY": ["OBJ.v = 2"],
    "BYKEY[OBJ]": ["Sub.__hash__ = lambda self: 4"],
    "isinstance(OBJ, Base)": ["Sub.__bases__ = (Root,)"],
    "isinstance(OBJ, Root)": ["Sub.__bases__ = (Plain,)"],
    "isinstance(OBJ, Sub)": ["Meta.__instancecheck__ = lambda cls, value: False"],
    "isinstance(OBJ, collections.abc.Callable)": ["del Base.__call__"],
    "isinstance(OBJ, collections.abc.Sequence)": ["collections.abc.Sequence.register(Sub)"],
    "type(OBJ).__mro__": ["Sub.__bases__ = (Other,)"],
    "Sub.mk": ["Meta.mk = 2"],
    "Sub.mm()": ["Meta.mm = lambda cls: 4"],
    "Sub.__name__": ["Sub.__name__ = 'Renamed'"],
    "'m' in Sub.__dict__": ["del Sub.m"],
    "getattr(Sub, 'nope', 3)": ["Root.nope = 5"],
    "super(Sub, OBJ).m()": ["Sub.__bases__ = (Other,)"],
    "Base()": ["Base.__new__ = lambda cls, *a: object.__new__(Other)"],
    "WD.d": ["Desc.__get__ = lambda self, obj, kind=None: 44"],
    "WD.n": ["WD.__dict__['n'] = 3", "NonData.__set__ = lambda self, obj, value: None"],
    "hasattr(SLO, 'c')": ["SLO.c = 5"],
    "getattr(MOD, 'zz', 0)": ["MOD.zz = 4"],
    "MOD.yy": ["MOD.__getattr__ = lambda name: 77"],
    "vars(MOD)['val']": ["MOD.val = 2"],
    "cached(1)": ["NUM = 5", "cached.cache_clear()"],
    "Slots[1]": ["Slots.__class_getitem__ = classmethod(lambda cls, key: key)"],
    "fractions.Fraction(FRC) * 2": ["FRC = fractions.Fraction(1, 3)"],
    "json.dumps(LST, default=lambda value: NUM)": ["LST.append(OBJ)", "NUM = 3"],
    "X.untyped_storage().data_ptr() == Y.untyped_storage().data_ptr()": ["Y = X[:]"],
    "func.__name__": ["func.__name__ = 'fn'"],
    "func.__doc__": ["func.__doc__ = 'doc'"],
    "func.__dict__": ["del func.note"],
    "ITEMG(LST)": ["ITEMG = operator.itemgetter(1)"],
    "len(MP)": ["MP = types.MappingProxyType({'a': 5})"],
    "DD.get('zz', -1)": ["DD['zz'] = 4", "DD = defaultdict(int, a=1)"],
    "bool(OD)": ["OD.clear()"],
    "NET.lin is NET.ml[0]": ["NET.lin = NET.ml[0]"],
    "NET(x).requires_grad": ["Net.__call__ = lambda self, x: x * 13"],
    "len(list(NET.modules()))": ["NET.lin = NET.ml[0]"],
    "NET(x)": [
        "NET.register_full_backward_hook(lambda *_: None)",
        "NET.register_forward_pre_hook(lambda m, i: 2 * i[0])",
    ],
    "'{0.v}'.format(OBJ)": ["OBJ = OBJ2"],
    "list(LS)": ["ListSub.__iter__ = lambda self: iter((5, 6))", "LS = ListSub([1, 2, 3])"],
    "LS[0]": ["ListSub.__getitem__ = lambda self, index: NUM", "NUM = 3", "LS.append(1)"],
    "DS['a']": ["DictSub.__getitem__ = lambda self, key: NUM", "NUM = 3", "DS.clear()"],
}
"""What was read, and the changes that once were not noticed, or that guards made trouble with."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")
    os.environ.pop("TR_FUZZ", None)


class World:
    """A function that reads, and all that there is to read."""

    def __init__(self, read: str, way: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.space: dict[str, Any] = {"__name__": "changing_world"}
        self.change(changing_world.WORLD)
        self.change(f"def f(x, y, o, l, d=1, *rest, dd=2, **kw):\n    return [{read}]")
        self.change(START)
        self.call = way(self.space["f"])

    def change(self, text: str) -> str | None:
        """Gives the error that came of it: what a change wants to change may not be there."""
        torch.manual_seed(0)
        try:
            exec(compile(text, "<changing world>", "exec", dont_inherit=True), self.space)
        except Exception as error:
            return type(error).__name__
        return None

    def told(self) -> Facts:
        world = self.space
        torch.manual_seed(0)
        try:
            result = self.call(*(world[name] for name in "XYOL"), *world["R"], **world["K"])
            return facts_of({"result": result})  # inside: reading a lazy `map` runs the user's function
        except Exception as error:
            return {"error": type(error).__name__}

    def state(self) -> Facts:
        return facts_of({name: self.space[name] for name in STATE if name in self.space})


def first_missed(read: str, changes: Sequence[str]) -> str | None:
    """The first call in which Python and a captured function differ, and how."""
    mine = World(read, lambda function: under_test()(function, Counting(), False))
    twin = World(read, lambda function: eager(function, Counting(), False))
    for number, change in enumerate(["pass", *changes]):
        failed = twin.change(change)
        if change not in MODES:
            assert mine.change(change) == failed
        difference = first_difference(twin.told(), mine.told())
        if difference is not None:
            return f"{number}: after {change!r}: {difference}"
    return first_difference(twin.state(), mine.state())


def related(read: str) -> list[str]:
    """Changes of what has a name in common with an expression."""
    families = [{"OBJ", "OBJ2", "Sub", "Base", "Root", "Meta", "METH", "o"}, {"NET", "Net"}]
    names = set(re.findall(r"\w+", read))
    for family in families:
        names |= family if names & family else set()
    return [change for change in CHANGES if names & set(re.findall(r"\w+", change))]


def random_changes(read: str, rng: random.Random, count: int) -> list[str]:
    near = related(read) or CHANGES
    return [rng.choice(near if rng.random() < 0.8 else CHANGES) for _ in range(count)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", MISSED)
def test_a_change_that_was_missed_once(read: str) -> None:
    assert first_missed(read, MISSED[read]) is None


def check(reads: Sequence[str], seed: int, count: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", CaptureLimitWarning) if count <= 8 else None
        for read in reads:
            changes = random_changes(read, random.Random(f"{seed} {read}"), count)
            missed = first_missed(read, changes)
            assert missed is None, (read, changes, missed)


def test_random_changes() -> None:
    check(random.Random(0).sample(READS, 30), 0, 6)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_random_changes(seed: int) -> None:
    check(READS, seed, 40)
