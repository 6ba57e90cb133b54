"""Data classes and enumerations."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto

import torch

from tests.frontend.corpus.registry import case

OLD_ASDICT = sys.version_info < (3, 12)
"""Before Python 3.12 `asdict` copies even numbers with `copy.deepcopy`, which is a graph break each time."""


@dataclass
class Config:
    width: int = 4
    names: list = field(default_factory=list)
    scale: float = 0.5


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 2

    @property
    def product(self):
        return self.x * self.n


@dataclass
class Checked:
    x: torch.Tensor
    total: torch.Tensor = field(init=False)

    def __post_init__(self):
        self.total = self.x.sum()


@dataclass(kw_only=True, slots=True)
class Keywords:
    a: torch.Tensor
    b: int = 1


@dataclass
class Derived(Config):
    depth: int = 3


@dataclass(order=True)
class Ranked:
    rank: int
    name: str = field(compare=False, default="")


class Color(Enum):
    RED = 1
    GREEN = 2

    @property
    def label(self):
        return self.name.lower()

    @classmethod
    def first(cls):
        return cls.RED


class Level(IntEnum):
    LOW = 1
    HIGH = 5


class Mode(StrEnum):
    SUM = "sum"
    MEAN = "mean"


class Options(Flag):
    NONE = 0
    BIAS = auto()
    GATE = auto()


class Bits(IntFlag):
    A = 1
    B = 2


@case
def data_class(a, b):
    config = Config(width=2)
    config.names.append("x")
    config.scale *= 2
    return a * config.width * config.scale, config, Config() == Config(), Config().names is Config().names


@case
def frozen_data_class(a, b):
    value = Frozen(a)
    try:
        value.n = 3
    except dataclasses.FrozenInstanceError:
        return value.product, value


@case
def post_init(a, b):
    checked = Checked(a)
    return checked.total, checked


@case
def keyword_only_with_slots(a, b):
    value = Keywords(a=a, b=3)
    return value.a * value.b, value


@case(breaks=14 if OLD_ASDICT else 0)
def replaced_and_converted(a, b):
    config = Config(3, ["n"])
    other = replace(config, width=9)
    return (
        other,
        asdict(config),
        astuple(config),
        [f.name for f in fields(config)],
        dataclasses.is_dataclass(config),
        a,
    )


@case(breaks=4 if OLD_ASDICT else 3)
def asdict_of_tensors(a, b):
    return asdict(Frozen(a + b, 3))


@case
def replace_of_a_frozen_one(a, b):
    return replace(Frozen(a), n=5).product, replace(Frozen(a), x=b)


@case
def derived_data_class(a, b):
    derived = Derived(depth=2)
    for _ in range(derived.depth):
        a = a * derived.scale
    return a, derived, isinstance(derived, Config)


@case(breaks=2)
def ordered_data_class(a, b):
    return (
        Ranked(1, "b") < Ranked(2, "a"),
        sorted([Ranked(2), Ranked(1)])[0].rank,
        Ranked(1, "x") == Ranked(1, "y"),
        repr(Ranked(1)),
        a,
    )


@case
def data_class_made_inside(a, b):
    @dataclass
    class Output:
        hidden: object
        loss: object = None

    output = Output(a + b)
    return output.hidden, output.loss is None


@case(make=lambda size: (Config(3, ["q"]), torch.randn(size, 4)))
def data_class_as_argument(config, a):
    config.names.append("r")
    config.width += 1
    return a * config.width, len(config.names)


@case(make=lambda size: (Frozen(torch.randn(size, 4)),))
def frozen_data_class_as_argument(value):
    return value.product + 1, value


@case
def loop_over_fields(a, b):
    frozen = Frozen(a, 3)
    return {f.name: getattr(frozen, f.name) for f in fields(frozen)}


@case
def enum_members(a, b):
    color = Color.GREEN
    return (
        a * color.value,
        color.name,
        color is Color.GREEN,
        color == Color.RED,
        color.label,
        Color.first() is Color.RED,
    )


@case
def enum_lookup(a, b):
    try:
        Color(9)
    except ValueError as error:
        return Color(1), Color["GREEN"], str(error), a


@case
def enum_iteration(a, b):
    return (
        [c.value for c in Color],
        len(Color),
        Color.RED in Color,
        list(Color.__members__),
        a * sum(c.value for c in Color),
    )


@case
def integer_enum(a, b):
    return (
        a * Level.HIGH,
        Level.LOW < 3,
        Level.HIGH + 1,
        Level(5) is Level.HIGH,
        isinstance(Level.LOW, int),
        [10, 20][Level.LOW],
    )


@case
def string_enum(a, b):
    mode = Mode("sum")
    return getattr(a, mode)() if mode == "sum" else a, f"{mode}", mode.upper(), mode is Mode.SUM


@case
def flags(a, b):
    options = Options.BIAS | Options.GATE
    return (
        Options.BIAS in options,
        bool(options & Options.GATE),
        options ^ Options.BIAS,
        (~Options.BIAS).value,
        Options.NONE.value,
        Bits.A | 2,
        a,
    )


@case
def enum_as_key_and_branch(a, b):
    table = {Color.RED: a, Color.GREEN: b}
    if Color.RED in table:
        return table[Color.GREEN], {c: 1 for c in Color}


@case(make=lambda size: (torch.randn(size, 4), Color.RED, Mode.MEAN))
def enums_as_arguments(a, color, mode):
    if color is Color.RED and mode == Mode.MEAN:
        return a.mean(), color, mode
    return a


@case
def enum_made_inside(a, b):
    Local = Enum("Local", ["X", "Y"])
    return Local.X.value, Local["Y"].value, a
