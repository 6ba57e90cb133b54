"""What random Python programs are made around: parameters, arguments of the calls, the world they read."""

from __future__ import annotations

import re

PARAMETERS = "a, b, n=2, m=3, t=0.5, s='up', flag=True, xs=(), c=None, box=None, *more, **named"
PREAMBLE = (
    "x, y, z, v, u = a, b, a + b, a, b * 0.5",
    "i, kept, log, ns, d = 0, None, [], [n, m, 3], {'p': a, 'q': b}",
)
RESULT = "return x, y, z, v, n, m, i, t, s, xs, ns, c, d, log, kept"
SHARED = "x, y, z, v, u, n, m, i, t, s, xs, ns, c, d, log, kept"
HARNESS = """

def build():
    return program, ()


def call(function, inputs):
    effects = []
    for arguments in calls():
        try:
            result = function(**arguments)
        except Exception as error:
            result = type(error).__name__, str(error)
        effects.append((result, arguments))
    return effects


if __name__ == "__main__":
    print("eager   ", call(program, ()))
    print("compiled", call(torch.compile(program, backend="eager"), ()))
"""

ARGUMENTS = {
    "a": (
        "a = torch.linspace(-1, 2, 12).reshape(3, 4)",
        "a = torch.linspace(2, -1, 12).reshape(3, 4)",
        "a = torch.linspace(-2, 2, 20).reshape(5, 4)",
        "a = torch.linspace(-2, 2, 24).reshape(6, 4)",
        "a = torch.linspace(-1, 1, 4).reshape(1, 4)",
        "a = torch.linspace(-1, 3, 24).reshape(6, 4)[::2]",
        "a = torch.linspace(-1, 3, 12).reshape(4, 3).t()",
    ),
    "b": (
        "b = torch.linspace(1, -1, a.numel()).reshape(a.shape)",
        "b = torch.linspace(1, -1, a.numel()).reshape(a.shape).requires_grad_() * 1",
        "b = a * 2",
        "b = a",
        "b = a[:]",
        "b = torch.ones_like(a).requires_grad_()",
    ),
    "n": ("2", "3", "4", "0", "1", "-3", "7"),
    "m": ("3", "2", "5", "-2", "6"),
    "t": ("0.5", "0.75", "1.5", "-2.25", "3.0", "1.0"),
    "s": ("'up'", "'down'", "''", "'a b'"),
    "flag": ("True", "True", "False", "1", "None"),
    "xs": ("[a * 0.5]", "[a * 0.5, b]", "[]", "[a, a]", "[a * 0.5, b * 2, a + 1]"),
    "c": ("{'k': 1, 'up': 2}", "{'up': 3}", "{'k': 1, 'up': 2, 'j': 5}", "{}", "Defaults(k=4)"),
    "box": ("Box(a * 0.5)", "Box(b)", "Small(a + 1)", "Box(a * 0.25, 4)"),
}
WORLD = (
    "global STATE, SCALE, NET, COUNTER, PAIR",
    "STATE, SCALE, NET, COUNTER, PAIR = {'count': 0, 'items': []}, 2, Net(), counter(1), Pair(3)",
    "Box.limit, scaled.__defaults__ = 3, (0.5,)",
)
CHANGES = (
    "STATE['count'] = 7",
    "STATE['items'].append(2)",
    "SCALE = 3",
    "NET.scale = 3",
    "NET.eval()",
    "NET.history.clear()",
    "NET.mean = torch.ones(())",
    "COUNTER()",
    "COUNTER = counter(5)",
    "PAIR.left = 4",
    "PAIR.items = [1]",
    "Box.limit = 5",
    "scaled.__defaults__ = (0.25,)",
    "STATE = {'count': 2, 'items': [1]}",
    "NET.extra = 4",
    "NET.layers.append(torch.nn.Tanh())",
)

MODULES = ("collections", "contextlib", "dataclasses", "enum", "functools", "itertools", "math", "operator")
_DEFINITIONS = """
class Stop(Exception):
    def __init__(self, number=0, *rest):
        super().__init__(number, *rest)
        self.number = number


class Noting:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallow and kind is Stop


class Box:
    limit = 3

    def __init__(self, value, count=0):
        self.value, self.count = value, count

    def bump(self, by=1):
        self.count = (self.count + by) % self.limit
        return self.count

    def loud(self, value):
        self.count += 1
        print("loud", self.count)
        self.value = value * 0.5
        return value + self.value

    @property
    def half(self):
        return self.value * 0.5

    @half.setter
    def half(self, value):
        self.value = value * 2
        self.count += 1

    @classmethod
    def of(cls, value):
        return cls(value, cls.limit)

    def __len__(self):
        return self.count % 4

    def __contains__(self, number):
        return number < self.count

    def __getitem__(self, index):
        if isinstance(index, int) and index > 2:
            raise IndexError(index)
        return self.value * index if isinstance(index, int) else getattr(self, index)

    def __setitem__(self, name, value):
        setattr(self, name, value)

    def __call__(self, value, by=1):
        self.bump(by)
        return value + self.value

    def __eq__(self, other):
        return isinstance(other, Box) and self.count == other.count

    def __hash__(self):
        return 7

    def __lt__(self, other):
        return self.count < other.count

    def __add__(self, number):
        return type(self)(self.value + number, self.count + 1)

    def __iadd__(self, number):
        self.count += number
        return self

    def __repr__(self):
        return f"Box({self.count})"


class Small(Box):
    limit = 2

    def bump(self, by=1):
        return super().bump(by) + 1

    def __getattr__(self, name):
        if name.startswith("no_"):
            return len(name)
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, abs(value) if name == "count" else value)


class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.left <= 0:
            raise StopIteration
        self.left -= 1
        return self.left


class Defaults(dict):
    def __missing__(self, key):
        self[key] = len(key)
        return self[key]


class Stack(list):
    top = None

    def push(self, value):
        self.append(value)
        self.top = value
        return self


class Color(enum.Enum):
    UP = "up"
    DOWN = "down"


@dataclasses.dataclass
class Pair:
    left: int
    right: object = None
    items: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.left + len(self.items)


@dataclasses.dataclass(frozen=True, order=True)
class Key:
    first: int
    second: str = "k"


Point = collections.namedtuple("Point", ["across", "down"], defaults=[0])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.layers = torch.nn.ModuleList([torch.nn.ReLU(), torch.nn.Identity()])
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4))
        self.scale, self.count, self.history = 1, 0, []

    def forward(self, x):
        self.count += 1
        if self.training:
            self.mean.mul_(0.5).add_(x.detach().sum() * 0.125)
            self.history.append(self.count)
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.mean * self.weight


def scaled(value, k=0.5, *more, shift=0.0, **named):
    return value * (k + sum(more) + sum(named.values())) + shift


def counter(start):
    count = start

    def step(by=1):
        nonlocal count
        count = (count + by) % 9
        return count

    return step


def counted(values, limit=2):
    for number, value in enumerate(values):
        if number >= limit:
            return "limit"
        yield value
    return "all"


def delegating(values, log):
    log.append((yield from counted(values)))
    yield from reversed(values)


def echo(log):
    sent = 0
    try:
        while True:
            sent = yield sent * 2
            if sent is None:
                return
    except Stop as error:
        log.append(error.number)
        yield -1
    finally:
        log.append("closed")


def noisy_values(values):
    for value in values:
        print("next")
        yield value


def stops(n):
    if n > 1:
        raise Stop(n)
    return n


def noisy(value):
    if isinstance(value, torch.Tensor):
        value = value * 2
    print("noisy", type(value).__name__)
    return value + 1 if isinstance(value, torch.Tensor) else value


def noisy_stops(n, value):
    value = value + 1
    print("stops", n)
    if n > 1:
        raise Stop(n, "noisy")
    return value


def remember(value, memory=[]):
    memory.append(value)
    return len(memory) % 5


def down(n, value):
    return value if n <= 0 else down(n - 1, value * 0.5) + n


def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(function(*args, **kwargs))

    return wrapper


@contextlib.contextmanager
def entered(log, value):
    log.append("enter")
    try:
        yield value * 2
    except Stop:
        log.append("stopped")
        raise
    finally:
        log.append("exit")


@torch.no_grad()
def without_grad(value):
    return value * 2 + torch.is_grad_enabled()


def add_to(target, value):
    target += value
    return target
"""
DEFINITIONS = {
    (re.search(r"^(?:class |def )?(\w+)", re.sub(r"^@.*\n", "", text, flags=re.M)) or [""])[1]: text.strip()
    for text in _DEFINITIONS.strip().split("\n\n\n")
}
"""Definitions that templates may name, by name."""
