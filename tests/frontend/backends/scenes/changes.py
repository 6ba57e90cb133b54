"""What a captured function depends on changes between two calls: the result is right each time."""

from __future__ import annotations

import builtins
import copy
import enum
import functools
import itertools
import math
import operator
import os
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.frontend.harness import Capture, scene, tensor

SCALE: Any = 2
TABLE = {"scale": 2}
LIST = [1, 2]


def helper(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@scene
def a_global_number(capture: Capture) -> Iterator[Any]:
    global SCALE

    def function(x: torch.Tensor) -> Any:
        return x * SCALE

    call = capture(function)
    for SCALE in (2, 3, 2.0, True, 2, -1):  # noqa: B007
        yield call(tensor())
    SCALE = 2


@scene
def a_function_that_forgets_what_it_gave(capture: Capture) -> Iterator[Any]:
    @functools.lru_cache(maxsize=1)
    def memoised(step: int, *, more: int = 0) -> Any:
        return SCALE * step + more

    def function(x: torch.Tensor, step: int) -> Any:
        return x * memoised(step, more=1)

    global SCALE
    call = capture(function)
    for SCALE in (2, 3, 2.0):  # noqa: B007
        yield call(tensor(), 1)  # what it gave before, whatever the global is
    memoised.cache_clear()
    yield call(tensor(), 1)
    for SCALE in (4, 5):  # noqa: B007
        yield call(tensor(), 2)  # there is room for one
        yield call(tensor(), 1)
    SCALE = 2


@scene
def a_global_of_another_type(capture: Capture) -> Iterator[Any]:
    global SCALE

    def function(x: torch.Tensor) -> Any:
        return x * 2 if SCALE is None else x + len(SCALE) if isinstance(SCALE, str) else x * SCALE

    call = capture(function)
    for SCALE in (2, None, "abc", tensor(4, seed=1), "ab", None):  # noqa: B007
        yield call(tensor())
    SCALE = 2


@scene
def an_attribute_hook_that_counts(capture: Capture) -> Iterator[Any]:
    asked: list[str] = []

    class Watched:
        def __init__(self) -> None:
            self.n = 3

        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return object.__getattribute__(self, name)

        def method(self) -> int:
            return self.n

    def function(x: torch.Tensor, thing: Watched | None) -> Any:
        thing = thing or Watched()
        return x * thing.method()

    call = capture(function)
    yield call(tensor(), None), list(asked)
    yield call(tensor(4), Watched()), list(asked)


@scene
def a_memoised_function_with_effects(capture: Capture) -> Iterator[Any]:
    asked: list[Any] = []

    @functools.cache
    def fibonacci(n: int) -> int:
        asked.append(n)
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def function(x: torch.Tensor) -> Any:
        asked.append("before")
        y = x * fibonacci(5)
        asked.append("after")
        return y, list(asked)

    call = capture(function)
    for size in (3, 3, 5):
        yield call(tensor(size))
    yield fibonacci(6), list(asked)


@scene
def a_class_gains_special_methods(capture: Capture) -> Iterator[Any]:
    class Thing:
        def __init__(self) -> None:
            self.value = 1

    def answer(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (TypeError, AttributeError) as error:
            return type(error)

    def function(x: torch.Tensor, thing: Any) -> Any:
        asked = [lambda: thing + 1, lambda: -thing, lambda: thing[0], lambda: 1 in thing, lambda: len(thing)]
        asked += [
            lambda: thing < 1,
            lambda: [*thing],
            lambda: thing(),
            lambda: bool(thing),
            lambda: thing == 1,
        ]
        return x + thing.value, callable(thing), [answer(question) for question in asked]

    gained: dict[str, Callable[..., Any]] = {
        "__add__": lambda self, other: "add",
        "__neg__": lambda self: "neg",
        "__getitem__": lambda self, index: [5][index],
        "__contains__": lambda self, value: True,
        "__len__": lambda self: 0,
        "__lt__": lambda self, other: "lt",
        "__iter__": lambda self: iter([7]),
        "__call__": lambda self: "call",
        "__bool__": lambda self: True,
        "__eq__": lambda self, other: "eq",
        "__format__": lambda self, spec: spec * 2,
        "__getattribute__": lambda self, name: 30,
    }
    call = capture(function)
    thing = Thing()
    yield call(tensor(), thing)
    for name, method in gained.items():
        setattr(Thing, name, method)
        yield call(tensor(), thing)


@scene
def a_descriptor_takes_the_place_of_a_value(capture: Capture) -> Iterator[Any]:
    class Weak:
        def __get__(self, owner: Any, kind: Any) -> Any:
            return 1

    class Strong:
        def __get__(self, owner: Any, kind: Any) -> Any:
            return 2

        def __set__(self, owner: Any, value: Any) -> None: ...

    class Thing:
        value: Any = Weak()
        other: Any = 5

    def function(x: torch.Tensor, thing: Thing) -> Any:
        return x + thing.value * thing.other

    call = capture(function)
    thing = Thing()
    yield call(tensor(), thing)
    vars(thing).update(value=50, other=60)
    yield call(tensor(), thing)
    Thing.value = Strong()
    yield call(tensor(), thing)
    Strong.__get__ = lambda self, owner, kind: 3  # type: ignore[method-assign]
    yield call(tensor(), thing)
    Thing.other = property(lambda self: 4)
    yield call(tensor(), thing)


@scene
def a_global_function(capture: Capture) -> Iterator[Any]:
    global helper
    before = helper

    def function(x: torch.Tensor) -> Any:
        return helper(x) * 2

    call = capture(function)
    yield call(tensor())
    helper = torch.relu  # type: ignore[assignment]
    yield call(tensor())
    helper = lambda x: x - 1  # noqa: E731
    yield call(tensor())
    helper = before
    yield call(tensor())


@scene
def the_code_of_a_function_it_calls(capture: Capture) -> Iterator[Any]:
    def inner(x: torch.Tensor) -> Any:
        return x + 1

    def other(x: torch.Tensor) -> Any:
        return x - 1

    def function(x: torch.Tensor) -> Any:
        return inner(x)

    call = capture(function)
    yield call(tensor())
    inner.__code__ = other.__code__
    yield call(tensor())


@scene
def an_item_of_a_global_dict(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x * TABLE["scale"] + TABLE.get("bias", 0)

    call = capture(function)
    yield call(tensor())
    TABLE["scale"] = 3
    yield call(tensor())
    TABLE["bias"] = 1
    yield call(tensor())
    del TABLE["bias"]
    TABLE["scale"] = 2
    yield call(tensor())


@scene
def the_length_of_a_global_list(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        for item in LIST:
            x = x * item
        return x, len(LIST)

    call = capture(function)
    yield call(tensor())
    LIST.append(5)
    yield call(tensor())
    LIST[0] = 7
    yield call(tensor())
    LIST.pop()
    LIST[0] = 1
    yield call(tensor())


@scene
def a_name_that_was_a_builtin(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return x + len([1, 2])

    call = capture(function)
    yield call(tensor())
    globals()["len"] = lambda items: 10
    try:
        yield call(tensor())
    finally:
        del globals()["len"]
    yield call(tensor())


class Settings:
    depth = 1

    def __init__(self) -> None:
        self.scale: Any = 2
        self.names = ["a"]

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.scale + self.depth + len(self.names)


@scene
def an_attribute(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    call = capture(lambda x: settings.forward(x))
    for settings.scale in (2, 3, tensor(4, seed=2), 2):
        yield call(tensor())


@scene
def an_attribute_that_hides_that_of_the_class(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    call = capture(lambda x: settings.forward(x))
    yield call(tensor())
    settings.depth = 5
    yield call(tensor())
    del settings.depth
    yield call(tensor())


@scene
def an_attribute_of_the_class(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    call = capture(lambda x: settings.forward(x))
    yield call(tensor())
    Settings.depth = 9
    try:
        yield call(tensor())
    finally:
        Settings.depth = 1
    yield call(tensor())


@scene
def a_method_of_the_class(capture: Capture) -> Iterator[Any]:
    settings, before = Settings(), Settings.forward
    call = capture(lambda x: settings.forward(x))
    yield call(tensor())
    Settings.forward = lambda self, x: x - self.scale  # type: ignore[method-assign]
    try:
        yield call(tensor())
    finally:
        Settings.forward = before  # type: ignore[method-assign]
    yield call(tensor())


@scene
def an_attribute_that_appears(capture: Capture) -> Iterator[Any]:
    settings = Settings()
    call = capture(lambda x: x + getattr(settings, "extra", 0) + hasattr(settings, "flag"))
    yield call(tensor())
    settings.extra = 4  # type: ignore[attr-defined]
    yield call(tensor())
    settings.flag = None  # type: ignore[attr-defined]
    yield call(tensor())


@scene
def the_class_of_an_argument(capture: Capture) -> Iterator[Any]:
    class Other(Settings):
        def forward(self, x: torch.Tensor) -> Any:
            return -x

    call = capture(lambda settings, x: settings.forward(x))
    yield call(Settings(), tensor())
    yield call(Other(), tensor())
    changed = Settings()
    changed.__class__ = Other
    yield call(changed, tensor())


@scene
def a_closure(capture: Capture) -> Iterator[Any]:
    scale: Any = 2

    def function(x: torch.Tensor) -> Any:
        return x * scale

    call = capture(function)
    for scale in (2, 3, None, 2):
        if scale is not None:
            yield call(tensor())


@scene
def a_tensor_in_a_closure(capture: Capture) -> Iterator[Any]:
    weight = tensor(4, seed=1)

    def function(x: torch.Tensor) -> Any:
        return x * weight

    call = capture(function)
    yield call(tensor())
    weight = tensor(4, seed=2)
    yield call(tensor())
    weight = tensor(3, 4, seed=3).double()
    yield call(tensor())
    weight.zero_()
    yield call(tensor())


@scene
def the_defaults_of_a_function(capture: Capture) -> Iterator[Any]:
    def inner(x: torch.Tensor, scale: float = 2, *, bias: float = 0) -> Any:
        return x * scale + bias

    call = capture(lambda x: inner(x))
    yield call(tensor())
    inner.__defaults__ = (3,)
    yield call(tensor())
    inner.__kwdefaults__ = {"bias": 1}
    yield call(tensor())


@scene
def its_own_defaults(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, scale: float = 2, *, bias: float = 0) -> Any:
        return x * scale + bias

    call = capture(function)
    yield call(tensor())
    function.__defaults__ = (5,)
    function.__kwdefaults__ = {"bias": 7}
    yield call(tensor())
    yield call(tensor(), 2, bias=0)


@scene
def the_length_of_a_list(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, items: (x + sum(items), len(items)))
    for items in ([1], [1, 2], [], [2], [True], [1.0], (1,), [1]):
        yield call(tensor(), items)


@scene
def a_list_of_tensors(capture: Capture) -> Iterator[Any]:
    call = capture(lambda items: (sum(items), items[-1], len(items)))
    for count in (1, 2, 3, 1):
        yield call([tensor(seed=number) for number in range(count)])


@scene
def the_keys_of_a_dict(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, table: (x * table.get("scale", 1), list(table), "bias" in table))
    tables: list[Any] = [{"scale": 2}, {"scale": 3}, {}, {"bias": 1}, {"bias": 1, "scale": 2}]
    for table in [*tables, {"scale": 2, "bias": 1}, OrderedDict(scale=2), {1: 2}, {True: 2}]:
        yield call(tensor(), table)


@scene
def the_members_of_a_set(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, names: x * 2 if "double" in names else x + len(names))
    for names in ({"double"}, {"single"}, set(), {"single", "double"}, frozenset({"double"})):
        yield call(tensor(), names)


@scene
def the_type_of_a_number(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, n: (x * n, n, isinstance(n, int)))
    for n in (1, True, 1.0, 0, False, -0.0, 0.0, float("nan"), float("inf"), 2 + 0j, 1):
        yield call(tensor(), n)


@scene
def arguments_in_other_ways(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, scale: float = 2, *rest: Any, bias: float = 0, **named: Any) -> Any:
        return x * scale + bias, rest, named

    call = capture(function)
    yield call(tensor())
    yield call(tensor(), 3)
    yield call(tensor(), scale=3)
    yield call(tensor(), 3, "more", bias=1)
    yield call(tensor(), 3, "more", 4, other=1)
    yield call(tensor(), 3, "less", other=2)
    yield call(x=tensor())


@scene
def a_string(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, mode: getattr(x, mode)())
    for mode in ("sum", "mean", "max", "sum"):
        yield call(tensor(), mode)


@scene
def none_or_a_tensor(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, mask=None: x if mask is None else x * mask)
    yield call(tensor())
    yield call(tensor(), tensor(seed=1))
    yield call(tensor(), None)


@scene
def the_dtype(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * 2, x.dtype, x.sum()))
    for dtype in (torch.float32, torch.float64, torch.int32, torch.bool, torch.bfloat16, torch.float32):
        yield call(torch.ones(3, 4).to(dtype))


@scene
def the_shape(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * x.shape[0], x.view(-1), x.numel()))
    for shape in ((3, 4), (4, 3), (12,), (1, 4), (0, 4), (2, 2, 3), (3, 4)):
        yield call(tensor(*shape))


@scene
def the_stride(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x.is_contiguous(), x.stride(), x * 2, x.reshape(-1)))
    square = tensor(4, 4)
    for x in (square, square.t(), square[:, ::2], square.expand(2, 4, 4)[0], square[1:], square):
        yield call(x)


@scene
def the_layout_of_an_image(capture: Capture) -> Iterator[Any]:
    convolution = nn.Conv2d(2, 2, 1)
    nn.init.ones_(convolution.weight)
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    call = capture(lambda x: convolution(x))
    image = tensor(1, 2, 3, 3)
    yield call(image)
    yield call(image.to(memory_format=torch.channels_last))


@scene
def whether_gradients_are_wanted(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * 2, x.requires_grad, x.is_leaf))
    for wanted in (False, True, False):
        yield call(tensor().requires_grad_(wanted))
    yield call(tensor().requires_grad_() * 1)


@scene
def the_grad_mode(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * 2, torch.is_grad_enabled()))
    leaf = tensor().requires_grad_()
    yield call(leaf)
    with torch.no_grad():
        yield call(leaf)
    with torch.inference_mode():
        yield call(leaf)[0].requires_grad
    yield call(leaf)


@scene
def autocast(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: x @ x.t())
    yield call(tensor())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            yield call(tensor())
    yield call(tensor())


@scene
def the_default_dtype(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: torch.zeros(2) + x.sum())
    yield call(tensor())
    torch.set_default_dtype(torch.float64)
    try:
        yield call(tensor())
    finally:
        torch.set_default_dtype(torch.float32)
    yield call(tensor())


@scene
def the_training_flag(capture: Capture) -> Iterator[Any]:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(4, momentum=0.5))
    call = capture(lambda x: (model(x), model.training))
    for training in (True, False, True):
        model.train(training)
        torch.manual_seed(0)
        yield call(tensor())


@scene
def the_training_flag_of_a_child(capture: Capture) -> Iterator[Any]:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.1))
    call = capture(model.forward)
    for _ in range(2):
        torch.manual_seed(0)
        yield call(tensor())
        model[0].eval()


@scene
def the_parameters_of_a_module(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    call = capture(lambda x: layer(x))
    yield call(tensor())
    with torch.no_grad():
        layer.weight.add_(1)
    yield call(tensor())
    layer.weight = nn.Parameter(torch.eye(4))
    yield call(tensor())
    layer.bias = None
    yield call(tensor())
    layer.weight.requires_grad_(False)
    yield call(tensor())
    layer.double()
    yield call(tensor().double())


@scene
def the_children_of_a_module(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    call = capture(lambda x: model(x))
    yield call(tensor())
    model[1] = nn.Tanh()
    yield call(tensor())
    model.append(nn.Sigmoid())
    yield call(tensor())
    del model[2]
    yield call(tensor())


@scene
def the_hooks_of_a_module(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    call = capture(lambda x: layer(x))
    yield call(tensor())
    handle = layer.register_forward_hook(lambda module, args, output: output * 2)
    yield call(tensor())
    handle.remove()
    yield call(tensor())


@scene
def a_number_of_a_module(capture: Capture) -> Iterator[Any]:
    dropout, norm = nn.Dropout(0.5), nn.LayerNorm(4)
    call = capture(lambda x: norm(dropout(x)))
    for dropout.p, norm.eps in ((0.5, 1e-5), (0.0, 1e-5), (0.0, 1.0), (0.5, 1e-5)):
        torch.manual_seed(0)
        yield call(tensor())


@scene
def tensors_that_are_the_same(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, y: (x.add_(1), x * y, x is y))
    yield call(tensor(), tensor(seed=1))
    both = tensor()
    yield call(both, both)
    base = tensor(4, 4)
    yield call(base[:2], base[1:3])
    yield call(base[:2], base[2:])
    yield call(tensor(), tensor(seed=1))


@scene
def lists_that_are_the_same(capture: Capture) -> Iterator[Any]:
    def function(first: list[Any], second: list[Any]) -> Any:
        first.append(1)
        return len(second), first is second

    call = capture(function)
    yield call([], [])
    both: list[Any] = []
    yield call(both, both)
    yield call([], [])


@scene
def a_partial(capture: Capture) -> Iterator[Any]:
    def scaled(x: torch.Tensor, scale: float = 1) -> Any:
        return x * scale

    call = capture(lambda x, function: function(x))
    for scale in (2, 3):
        yield call(tensor(), functools.partial(scaled, scale=scale))
    yield call(tensor(), scaled)
    yield call(tensor(), torch.relu)


@dataclass(frozen=True)
class Frozen:
    scale: float
    name: str = "x"


@scene
def a_data_class(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, config: x * config.scale + len(config.name))
    first = Frozen(2.0)
    for config in (first, Frozen(3.0), replace(first, name="long"), SimpleNamespace(scale=1, name=""), first):
        yield call(tensor(), config)


Pair = namedtuple("Pair", "left right")


@scene
def a_named_tuple(capture: Capture) -> Iterator[Any]:
    call = capture(lambda pair: (pair[0] + pair[1], type(pair).__name__))
    yield call(Pair(tensor(), 1))
    yield call((tensor(), 1))
    yield call([tensor(), 1])
    yield call(Pair(tensor(), 2))


@scene
def what_a_name_is_after_a_break(capture: Capture) -> Iterator[Any]:
    global SCALE

    def function(x: torch.Tensor) -> Any:
        x = x + SCALE
        torch._dynamo.graph_break()
        return x * SCALE

    call = capture(function)
    for SCALE in (2, 3, 2):  # noqa: B007
        yield call(tensor())
    SCALE = 2


@scene
def which_way_the_data_goes(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    call = capture(function)
    for sign in (1, -1, 1, -1):
        yield call(torch.ones(3) * sign)


OLD: list[Any] = [1, 0, True, 1.0, None, "one", [1], 1]
"""What was there before 1 is stored: the first and last are equal to it, others only look so."""
STORED: Any = 1


@scene
def what_was_there_before_a_store_to_an_attribute(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, box: Any) -> Any:
        box.n = 1
        return x + 1

    call = capture(function)
    for old in OLD:
        box = SimpleNamespace(n=old)
        user = Settings()
        user.n = old  # type: ignore[attr-defined]
        yield call(tensor(), box), box, call(tensor(), user), user


@scene
def what_was_there_before_a_store_to_an_item(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, table: Any, items: Any) -> Any:
        table["n"] = 1
        items[0] = 1
        return x + 1

    call = capture(function)
    for old in OLD:
        table, items = {"n": old, "m": 2}, [old, 2]
        yield call(tensor(), table, items), table, items
    table = {"m": 2}
    yield call(tensor(), table, [3]), table


@scene
def what_was_there_before_a_store_to_a_global(capture: Capture) -> Iterator[Any]:
    global STORED

    def function(x: torch.Tensor) -> Any:
        global STORED
        STORED = 1
        return x + 1

    call = capture(function)
    for STORED in OLD:
        result = call(tensor())
        yield result, STORED
    STORED = 1


@scene
def what_was_there_before_a_store_to_a_closure(capture: Capture) -> Iterator[Any]:
    stored: Any = 1

    def function(x: torch.Tensor) -> Any:
        nonlocal stored
        stored = 1
        return x + 1

    call = capture(function)
    for old in OLD:
        stored = old
        yield call(tensor()), stored


@scene
def what_was_there_before_a_store_to_a_module(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4).requires_grad_(False)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)

    def function(x: torch.Tensor) -> Any:
        layer.seen = 1
        layer.last = x
        return layer(x)

    call = capture(function)
    for layer.seen in OLD:
        yield call(tensor()), layer.seen, layer.last


@scene
def a_store_of_what_is_there(capture: Capture) -> Iterator[Any]:
    """`x = x` is no change where it was captured, and must be none elsewhere."""

    def function(x: torch.Tensor, box: Any, other: Any) -> Any:
        box.value = other
        box.same = box.same
        return x + 1

    call = capture(function)
    first, second = [1], [1]
    box = SimpleNamespace(value=first, same=first)
    for old, new in ((first, first), (second, first), (first, second), (first, first)):
        box.value = old
        yield call(tensor(), box, new), box.value is new, box.same is first


@scene
def tensors_stored_over_tensors(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, box: Any, table: dict[str, Any]) -> Any:
        box.value = x
        table["x"] = x
        return x + 1

    call = capture(function)
    x = tensor()
    for old in (x, tensor(seed=1), None, x):
        box, table = SimpleNamespace(value=old), {"x": old}
        yield call(x, box, table), box.value is x, table["x"] is x


@scene
def functions_of_one_code_with_other_closures(capture: Capture) -> Iterator[Any]:
    def make(scale: Any, bias: Any = 0) -> Callable[[Any], Any]:
        def inner(x: torch.Tensor, factor: Any = bias) -> Any:
            return x * scale + factor

        return inner

    call = capture(lambda x, function: function(x))
    for function in (make(2), make(3), make(2.0), make(tensor(4, seed=1)), make(2, 1), make(2)):
        yield call(tensor(), function)


@scene
def captured_closures_of_one_code(capture: Capture) -> Iterator[Any]:
    def make(scale: Any) -> Callable[[Any], Any]:
        return capture(lambda x: x * scale)

    calls = [make(2), make(3), make(tensor(4, seed=1)), make(tensor(4, seed=2))]
    for call in (*calls, *calls):
        yield call(tensor())


@scene
def methods_of_other_objects(capture: Capture) -> Iterator[Any]:
    first, second = Settings(), Settings()
    second.scale = 5
    call = capture(lambda x, method: method(x))
    for method in (first.forward, second.forward, first.forward):
        yield call(tensor(), method)


@scene
def classes_of_one_name(capture: Capture) -> Iterator[Any]:
    def make(n: int) -> Any:
        class Local:
            scale = n

            def run(self, x: torch.Tensor) -> Any:
                return x * self.scale

        return Local

    call = capture(lambda x, kind: kind().run(x))
    first, second = make(2), make(3)
    for kind in (first, second, first):
        yield call(tensor(), kind)


@scene
def other_modules_of_one_class(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, module: module(x))
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        yield call(tensor(), nn.Linear(4, 4))
    yield call(tensor(), nn.Linear(4, 4, bias=False).requires_grad_(False))
    yield call(tensor(), nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
    yield call(tensor(), nn.Sequential(nn.Linear(4, 2), nn.Tanh()))


@scene
def other_objects_of_one_class(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, settings: settings.forward(x))
    for scale in (2, 2, 3, tensor(4, seed=1), tensor(4, seed=2)):
        settings = Settings()
        settings.scale = scale
        yield call(tensor(), settings)


@scene
def two_names_for_one_object(capture: Capture) -> Iterator[Any]:
    def function(first: Any, second: Any) -> Any:
        first.scale = 7
        return second.scale, first is second

    call = capture(function)
    one = Settings()
    for pair in ((Settings(), Settings()), (one, one), (Settings(), Settings())):
        yield call(*pair)


@scene
def an_item_that_is_also_an_argument(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, items: list[Any], table: dict[str, Any]) -> Any:
        items[0].append(1)
        return x + len(table["inner"]), items[0] is table["inner"], x is items[1]

    call = capture(function)
    for shared in (False, True, False):
        x, inner = tensor(), [0]
        items = [inner, x if shared else tensor()]
        yield call(x, items, {"inner": inner if shared else [0]})


@scene
def a_tensor_that_is_also_a_parameter(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4).requires_grad_(False)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)

    def function(x: torch.Tensor) -> Any:
        x.add_(1)
        return layer(x), x is layer.weight

    call = capture(function)
    for x in (tensor(4, 4), layer.weight, layer.weight.data, tensor(4, 4)):
        yield call(x)


@scene
def numbers_deep_in_constants(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, value: (x + 1, value, [type(v).__name__ for v in value]))
    values: list[Any] = [
        (1, (2.0,)),
        (1, (2,)),
        (True, (2.0,)),
        (1, (2.0,)),
        (0.0, (1,)),
        (-0.0, (1,)),
        ((1,), 1),
    ]
    for value in values:
        yield call(tensor(), value)


@scene
def numbers_in_lists(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, items: x * items[0] + items[1][0])
    for items in ([1, [2]], [1, [3]], [1.0, [2]], [True, [2]], [0.0, [0]], [-0.0, [0]], [1, [2]]):
        yield call(tensor(), items)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Width(int):
    pass


@scene
def numbers_that_are_more_than_numbers(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, n: (x * n, type(n).__name__, isinstance(n, enum.Enum)))
    for n in (1, Level.LOW, Width(1), True, Level.HIGH, 2, Width(2), 1):
        yield call(tensor(), n)


class Touchy:
    """Guards may not run code of the user."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        raise RuntimeError("asked for truth")

    def __len__(self) -> int:
        raise RuntimeError("asked for length")


@scene
def objects_that_cannot_be_compared(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, touchy, items: x * touchy.n + items[0].n)
    for first, second in ((1, 2), (1, 2), (3, 2)):
        yield call(tensor(), Touchy(first), [Touchy(second)])


@scene
def a_function_of_torch_is_replaced(capture: Capture) -> Iterator[Any]:
    before = nn.functional.relu
    call = capture(lambda x: nn.functional.relu(x))
    yield call(tensor())
    nn.functional.relu = lambda x: x * 10  # type: ignore[assignment]
    try:
        yield call(tensor())
    finally:
        nn.functional.relu = before
    yield call(tensor())


@scene
def what_libraries_have_is_replaced(capture: Capture) -> Iterator[Any]:
    layer, linear = nn.GELU(), nn.Linear(4, 4)
    functions: list[Callable[..., Any]] = [
        lambda x: layer(x),
        lambda x: math.sqrt(4) * x,
        lambda x: math.pi * x,
        lambda x: x * max(1, 2),
        lambda x: operator.add(1, 2),
        lambda x: getattr(linear, "new", 0),
        lambda x: callable(layer),
    ]
    patches: list[tuple[Any, str, Any]] = [
        (nn.functional, "gelu", lambda x, approximate="none": x + 1),
        (math, "sqrt", lambda x: 100),
        (math, "pi", 3),
        (builtins, "max", lambda *_: 100),
        (operator, "add", lambda *_: 100),
        (nn.Linear, "new", 3),
    ]
    calls = [capture(function) for function in functions]
    for owner, name, new in (None, "", None), *patches, (None, "", None):
        with patch.object(owner, name, new, create=True) if owner is not None else nullcontext():
            yield [call(tensor()) for call in calls]


@scene
def calls_under_a_mode_of_the_user(capture: Capture) -> Iterator[Any]:
    class Counting(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    call = capture(lambda x: torch.relu(x * 2))
    yield call(tensor())
    for _ in range(2):
        with Counting() as mode:
            yield call(tensor()), mode.names
    yield call(tensor())


@scene
def a_copy_with_a_break_in_it(capture: Capture) -> Iterator[Any]:
    class Node:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            torch._dynamo.graph_break()
            made = memo[id(self)] = Node()
            return made

    call = capture(lambda nodes: copy.deepcopy(nodes))
    for _ in range(2):
        inner, node = [1], Node()
        yield call([inner, node, inner, node])


@scene
def containers_that_count_how_they_are_read(capture: Capture) -> Iterator[Any]:
    reads = []

    class List(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            reads.append("item")
            return list.__getitem__(self, index)

        def __iter__(self) -> Any:
            reads.append("iter")
            return list.__iter__(self)

        def __len__(self) -> int:
            reads.append("len")
            return list.__len__(self)

    class Dict(dict):  # type: ignore[type-arg]
        def __contains__(self, key: Any) -> bool:
            reads.append("contains")
            return dict.__contains__(self, key)

        def __iter__(self) -> Any:
            reads.append("iter of dict")
            return dict.__iter__(self)

    call = capture(
        lambda x, items, table: (x * items[0], len(items), 2 in items, "a" in table, table.get("a"))
    )
    for items in ([1, 2], [1, 2], [3]):
        yield call(tensor(), List(items), Dict(a=1)), tuple(reads)


@scene
def a_method_of_a_layer_is_replaced(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4).requires_grad_(False)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    call = capture(lambda x: layer(x))
    yield call(tensor())
    before = nn.Linear.forward
    nn.Linear.forward = lambda self, x: x - 1  # type: ignore[method-assign,assignment]
    try:
        yield call(tensor())
    finally:
        nn.Linear.forward = before  # type: ignore[method-assign]
    yield call(tensor())
    layer.forward = lambda x: x + 5  # type: ignore[method-assign]
    yield call(tensor())


@scene
def hooks_of_all_modules(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4).requires_grad_(False)
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    call = capture(lambda x: layer(x))
    yield call(tensor())
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 3)
    try:
        yield call(tensor())
    finally:
        handle.remove()
    yield call(tensor())


@scene
def the_base_of_a_class(capture: Capture) -> Iterator[Any]:
    class One:
        def run(self, x: torch.Tensor) -> Any:
            return x + 1

    class Two:
        def run(self, x: torch.Tensor) -> Any:
            return x - 1

    class Child(One):
        pass

    child = Child()
    call = capture(lambda x: child.run(x))
    yield call(tensor())
    Child.__bases__ = (Two,)
    yield call(tensor())
    Child.run = lambda self, x: x * 9  # type: ignore[method-assign]
    yield call(tensor())


@scene
def a_property_or_a_getattr_appears(capture: Capture) -> Iterator[Any]:
    class Local:
        def __init__(self) -> None:
            self.__dict__["scale"] = 2

    local: Any = Local()
    call = capture(lambda x: x * local.scale + getattr(local, "bias", 0))
    yield call(tensor())
    Local.scale = property(lambda self: 5)  # type: ignore[attr-defined]
    yield call(tensor())
    del Local.scale  # type: ignore[attr-defined]
    Local.__getattr__ = lambda self, name: 7  # type: ignore[attr-defined]
    yield call(tensor())


@scene
def iterators_as_arguments(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, values: Any) -> Any:
        first = next(values)
        return x * first, list(values)

    call = capture(function)
    yield call(tensor(), iter([1, 2, 3]))
    yield call(tensor(), iter([4, 5]))
    yield call(tensor(), (n for n in (6, 7)))
    yield call(tensor(), map(abs, [-8]))
    yield call(tensor(), iter((9,)))


@scene
def what_is_left_of_an_iterator(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x, values: x * next(values))
    values, again = iter([1, 2, 3, 4]), itertools.count(5)
    for _ in range(3):
        yield call(tensor(), values), call(tensor(), again)
    yield list(values), next(again)


@scene
def properties_of_containers(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, queue: Any, table: Any) -> Any:
        queue.append(9)
        return x * table["missing"], list(queue)

    call = capture(function)
    for limit, factory in ((None, int), (2, int), (2, float), (3, lambda: 4)):
        yield call(tensor(), deque([1, 2], maxlen=limit), defaultdict(factory))


@scene
def an_outer_variable_gets_a_value(capture: Capture) -> Iterator[Any]:
    def make() -> tuple[Any, Any]:
        def function(x: torch.Tensor) -> torch.Tensor:
            try:
                return x * scale
            except NameError:
                return x - 1

        def fill(value: float) -> None:
            nonlocal scale
            scale = value

        scale = 0.0
        del scale
        return function, fill

    function, fill = make()
    call = capture(function)
    yield call(tensor())
    fill(3.0)
    yield call(tensor())
    fill(4.0)
    yield call(tensor())


@scene
def a_variable_that_is_bound_only_sometimes(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, flag: list[int]) -> torch.Tensor:
        if x.sum() > 1e9 or (id(flag) and len(flag)):
            scale = 3.0
        print("", end="")  # the region behind it begins with or without `scale`
        try:
            return x * scale
        except UnboundLocalError:
            return x - 1

    call = capture(function)
    yield call(tensor(), [])
    yield call(tensor(), [1])
    yield call(tensor(), [])


@scene
def properties_of_tensors(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * 2, x.is_leaf, x.grad is None, x.is_conj(), type(x).__name__, x.dim()))
    leaf = tensor().requires_grad_()
    yield call(leaf)
    yield call(leaf * 1)
    leaf.sum().backward()
    yield call(leaf)
    yield call(nn.Parameter(tensor()))
    yield call(torch.tensor(3.0))
    complex_ = torch.complex(tensor(), tensor(seed=1))
    yield call(complex_)
    yield call(complex_.conj())


@scene
def an_attribute_of_a_tensor(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: x * getattr(x, "scale", 1))
    for scale in (None, 2, 3):
        x = tensor()
        if scale is not None:
            x.scale = scale
        yield call(x)


@scene
def settings_of_torch(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (torch.zeros(2) + 1, torch.are_deterministic_algorithms_enabled(), x + 1))
    yield call(tensor())
    torch.use_deterministic_algorithms(True)
    try:
        yield call(tensor())
    finally:
        torch.use_deterministic_algorithms(False)
    yield call(tensor())


@scene
def the_default_device(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (torch.zeros(2).device.type, x + 1))
    yield call(tensor())
    with torch.device("meta"):
        yield call(torch.ones(2, device="cpu"))
    yield call(tensor())


@scene
def the_environment(capture: Capture) -> Iterator[Any]:
    name = "TORCHREPRO_TEST_OF_THE_FRONT_END"
    call = capture(lambda x: x * int(os.environ.get(name, "1")))
    try:
        for value in ("2", "3"):
            os.environ[name] = value
            yield call(tensor())
    finally:
        os.environ.pop(name, None)
    yield call(tensor())


@scene
def inside_transforms_of_functions(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: (x * x).sum(-1))
    yield call(tensor())
    yield torch.func.vmap(call)(tensor())
    yield torch.func.grad(lambda x: call(x).sum())(tensor())
    yield torch.func.jvp(call, (tensor(),), (torch.ones(3, 4),))
    yield call(tensor())


@scene
def captured_functions_call_each_other(capture: Capture) -> Iterator[Any]:
    def inner(x: torch.Tensor, n: int) -> Any:
        return x if n == 0 else inner_captured(x * 2, n - 1)

    inner_captured = capture(inner)
    outer = capture(lambda x, n: inner_captured(x, n) + 1)
    for n in (0, 2, 1, 0):
        yield outer(tensor(), n)


@scene
def what_is_done_to_the_result(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return y, y[0], y

    call = capture(function)
    for _ in range(2):
        leaf = tensor().requires_grad_()
        y, row, again = call(leaf)
        y.mul_(3)
        row.sum().backward()
        yield y, row, again is y, leaf.grad


@scene
def numbers_that_go_up(capture: Capture) -> Iterator[Any]:
    """More kinds than the cache holds."""
    call = capture(lambda x, n: x * n + x.shape[0])
    for n in (*range(12), 0, 11):
        yield call(tensor(3 + n % 2, 4), n)


@scene
def whether_a_dict_of_another_class_is_empty(capture: Capture) -> Iterator[Any]:
    call = capture(lambda table, x: (x + 1 if table else x, not table, bool(table)))
    for kind in (OrderedDict, functools.partial(defaultdict, int), Counter):
        for items in ({}, {"a": 1}, {}, {"b": 2, "c": 3}):
            yield call(kind(items), tensor())


@scene
def a_hook_is_added_beside_another(capture: Capture) -> Iterator[Any]:
    layer = nn.Linear(4, 4, bias=False)
    nn.init.ones_(layer.weight)
    call = capture(lambda x: layer(x))
    layer.register_forward_hook(lambda module, args, output: output * 2)
    yield call(tensor())
    layer.register_forward_pre_hook(lambda module, args: (args[0] * 3,))
    yield call(tensor())
    layer.register_full_backward_hook(lambda module, into, out: (into[0] * 5,))
    for _ in range(3):
        x = tensor().requires_grad_()
        call(x).sum().backward()
        yield x.grad


@scene
def whether_two_modules_are_one(capture: Capture) -> Iterator[Any]:
    one, other = nn.ReLU(), nn.ReLU()
    for function in (
        lambda a, b, x: x + 1 if a is b else x,
        lambda a, b, x: x + 1 if a == b else x,
        lambda a, b, x: x + 1 if a in [b] else x,
    ):
        call = capture(function)
        for pair in ((one, other), (other, other), (other, one), (one, one)):
            yield call(*pair, tensor())


@scene
def what_is_put_onto_a_tensor(capture: Capture) -> Iterator[Any]:
    def function(x: Any) -> Any:
        x.count = getattr(x, "count", 0) + 1
        return x.count, hasattr(x, "tag"), copy.deepcopy(x), x * 2

    call, x = capture(function), tensor()
    yield call(x)
    yield call(x)
    x.tag = 1
    yield call(x)
    del x.tag, x.count
    yield call(x)
    yield call(tensor())


@scene
def mixed_precision_that_is_kept(capture: Capture) -> Iterator[Any]:
    kept: Any = torch.autocast("cpu", dtype=torch.bfloat16)

    def function(x: torch.Tensor) -> Any:
        with kept:
            return x @ x.T, torch.is_autocast_enabled("cpu")

    call = capture(function)
    yield call(tensor())
    kept._enabled = False
    yield call(tensor())
    kept._enabled, kept.fast_dtype = True, torch.float16
    yield call(tensor())
    yield torch.is_autocast_enabled("cpu")
