"""What a capture must not take for granted: wrappers, library code, flags of torch, generators left open."""

from __future__ import annotations

import abc
import collections
import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontend.harness import Capture, outcome, scene, tensor


def doubled(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return 2 * function(*args)

    return wrapper


@scene
def decorators_around_what_is_captured(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        return (x * x).sum()

    compiled = doubled(torch.compile(function, backend="eager"))
    without_grad = torch.no_grad()(torch.compile(function, backend="eager"))
    x = tensor()
    yield capture(doubled(capture(function)))(x)
    yield capture(doubled(doubled(capture(function))))(x)
    yield capture(torch.func.grad(capture(function)))(x)
    yield capture(lambda x: doubled(capture(function))(x))(x)
    yield capture(lambda x: compiled(x))(x)
    yield capture(lambda x: without_grad(x))(x.requires_grad_()).requires_grad


@scene
def hooks_of_a_module_that_is_captured_twice(capture: Capture) -> Iterator[Any]:
    layer = capture(nn.Identity())
    call = capture(lambda x: layer(x) + 1)
    yield call(tensor())
    handle = layer.register_forward_hook(lambda module, args, output: output * 3)
    yield call(tensor())
    handle.remove()
    yield call(tensor())


@scene
def defaults_that_get_longer_and_shorter(capture: Capture) -> Iterator[Any]:
    def target(x: torch.Tensor, b: Any = 1, c: Any = 2) -> Any:
        return x + b

    call = capture(lambda x: target(x, c=3))
    yield call(tensor())
    for target.__defaults__ in ((5, 6), (7,), (1, 2), None, (8, 9, 10)):
        yield outcome(call, tensor())


@scene
def the_recursion_limit(capture: Capture) -> Iterator[Any]:
    before = sys.getrecursionlimit()
    call = capture(lambda x: x * sys.getrecursionlimit())
    yield call(tensor())
    try:
        sys.setrecursionlimit(before + 1000)
        yield call(tensor())
    finally:
        sys.setrecursionlimit(before)


def opened(x: torch.Tensor, log: list[str]) -> Iterator[torch.Tensor]:
    with torch.no_grad():
        try:
            yield x * 2
            yield x * 3
        finally:
            log.append(f"closed {torch.is_grad_enabled()}")
            x.add_(1)


@scene
def generators_left_open(capture: Capture) -> Iterator[Any]:
    def dropped_at_the_end(x: torch.Tensor, log: list[str]) -> Any:
        g = opened(x, log)
        first = next(g)
        log.append("body")
        return x * first

    def dropped_early(x: torch.Tensor, log: list[str]) -> Any:
        g = opened(x, log)
        first = next(g)
        g = None
        log.append("body")
        return x * first

    def returned_from_a_loop(x: torch.Tensor, log: list[str]) -> Any:
        for value in opened(x, log):
            return x * value

    def inside(x: torch.Tensor, log: list[str]) -> Any:
        return returned_from_a_loop(x, log) + dropped_at_the_end(x, log)

    def in_containers(x: torch.Tensor, log: list[str]) -> Any:
        held = [opened(x, log), {"other": opened(x, log)}]
        first = next(held[0]) + next(held[1]["other"])
        return x * first

    def across_a_break(x: torch.Tensor, log: list[str]) -> Any:
        g = opened(x, log)
        first = next(g)
        print("a break", end="")
        return x * first

    def given_away(x: torch.Tensor, log: list[str]) -> Any:
        g = opened(x, log)
        return next(g), g

    for function in (dropped_at_the_end, dropped_early, returned_from_a_loop, inside, in_containers):
        call = capture(function)
        for seed in (0, 1):
            x, log = tensor(seed=seed), []
            yield call(x, log), x, log, torch.is_grad_enabled()
            torch.set_grad_enabled(True)
    for function in (across_a_break, given_away):
        x, log = tensor(), []
        result = capture(function)(x, log)
        del result
        yield x, log, torch.is_grad_enabled()
        torch.set_grad_enabled(True)


@scene
def generators_that_do_what_no_graph_can_when_they_are_closed(capture: Capture) -> Iterator[Any]:
    def printing(x: torch.Tensor, log: list[str]) -> Iterator[Any]:
        try:
            yield x * 2
        finally:
            print("closed", file=types.SimpleNamespace(write=log.append))

    def inner(x: torch.Tensor, log: list[str]) -> Any:
        return next(printing(x, log)) + 1

    def function(x: torch.Tensor, log: list[str]) -> Any:
        g = printing(x, log)
        return next(g) + inner(x, log)

    for each in (inner, function):
        log: list[str] = []
        yield capture(each)(tensor(), log), log


@scene
def arguments_that_inspect_has_bound(capture: Capture) -> Iterator[Any]:
    def target(a: Any, d: Any = 11, **more: Any) -> None: ...

    def changed(x: torch.Tensor) -> Any:
        bound = inspect.signature(target).bind(1, d=12, e=3)
        bound.arguments["d"] = 13
        bound.arguments["more"]["e"] = 4
        return x + bound.args[1] + bound.kwargs["e"]

    def defaults(x: torch.Tensor) -> Any:
        return x + inspect.signature(target).parameters["d"].default

    yield capture(changed)(tensor())
    call = capture(defaults)
    yield call(tensor())
    target.__defaults__ = (20,)
    yield call(tensor())


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


@scene
def objects_that_a_library_reads(capture: Capture) -> Iterator[Any]:
    holder = Holder(2)

    def changed(x: torch.Tensor, holder: Holder) -> Any:
        holder.value = holder.value + 1
        return x + inspect.getattr_static(holder, "value")

    yield capture(changed)(tensor(), Holder(4))
    call = capture(lambda x: x + inspect.getattr_static(holder, "value"))
    yield call(tensor())
    holder.value = 5
    yield call(tensor())


class Overriding:
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return "mine"


@scene
def objects_that_override_functions_of_torch(capture: Capture) -> Iterator[Any]:
    unary, all_of = torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function
    for value in (Overriding(), Holder(1), tensor(), nn.Parameter(tensor()), 1):
        yield capture(lambda value: (unary(value), all_of((1, value))))(value)


@scene
def flags_of_torch_that_change(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        cudnn = torch.backends.cudnn
        return x + (10 if cudnn.benchmark else 1) + (20 if torch._C._get_cudnn_deterministic() else 2)

    call = capture(function)
    yield call(tensor())
    for flag in ("benchmark", "deterministic"):
        setattr(torch.backends.cudnn, flag, True)
        try:
            yield call(tensor())
        finally:
            setattr(torch.backends.cudnn, flag, False)
    yield call(tensor())


@scene
def library_code_that_is_replaced(capture: Capture) -> Iterator[Any]:
    layer = nn.ReLU()
    most_common = capture(lambda x: x + collections.Counter("aab").most_common(1)[0][1])
    marked = capture(lambda x: x + getattr(nn.ReLU, "mark", 1) + getattr(layer, "mark", 1))
    called = capture(lambda x: layer(x))
    yield most_common(tensor()), marked(tensor()), called(tensor())
    with patch.object(collections.Counter, "most_common", lambda self, n: [("a", 9)]):
        yield most_common(tensor())
    with patch.object(nn.ReLU, "mark", 5, create=True):
        yield marked(tensor())
    with patch.object(nn.modules.activation, "F", types.SimpleNamespace(relu=lambda x, inplace: x + 7)):
        yield called(tensor())
    yield most_common(tensor()), marked(tensor()), called(tensor())


LINEAR = nn.Linear(2, 2)
HELD_RELU, HELD_EINSUM, HELD_GELU = torch.relu, torch.einsum, F.gelu
REPLACED: list[tuple[Any, str, Any, Any]] = [
    # Functions that user code holds under names of its own stay what they were.
    (torch, "relu", lambda x: x + 7, lambda x: HELD_RELU(x)),
    (torch.functional, "einsum", lambda *args: 7, lambda x: HELD_EINSUM("ij,jk->ik", x, x)),
    (torch._C._nn, "gelu", lambda x: x + 7, lambda x: HELD_GELU(x)),
    # What code of a library reads, in any of its modules.
    (nn.Module, "_call_impl", lambda self, x: x + 7, lambda x: LINEAR(x)),
    (nn.Linear, "in_features", property(lambda self: 7), lambda x: x + LINEAR.in_features),
    (collections.Counter, "update", lambda self, *args: None, lambda x: x + collections.Counter("aab")["a"]),
    (inspect.Parameter, "VAR_KEYWORD", 7, lambda x: x + inspect.Parameter.VAR_KEYWORD),
    (
        torch.distributions.normal,
        "math",
        types.SimpleNamespace(log=lambda value: 0, sqrt=lambda value: 0, pi=3),
        lambda x: torch.distributions.Normal(0.0, 1.0).log_prob(x),
    ),
    # Methods of tensors.
    (torch.Tensor, "__len__", lambda self: 7, lambda x: len(x)),
    (torch.Tensor, "__iter__", lambda self: iter([7]), lambda x: list(x)),
    (torch.Tensor, "__mul__", lambda self, other: self + 7, lambda x: x * 2),
    (torch.Tensor, "mark", 7, lambda x: getattr(x, "mark", 3)),
    (torch.Tensor, "T", property(lambda self: 7), lambda x: x.T),
    (F.normalize, "__defaults__", (1.0, 0, 1e-12, None), lambda x: F.normalize(x)),
]


@scene
def replaced_parts_of_libraries(capture: Capture) -> Iterator[Any]:
    for owner, name, new, function in REPLACED:
        call = capture(function)
        before = getattr(owner, "__dict__", {}).get(name, getattr(owner, name, None))
        yield call(tensor(2, 2))
        with contextlib.ExitStack() as stack:
            if isinstance(owner, types.FunctionType):
                stack.callback(setattr, owner, name, before)
                setattr(owner, name, new)
            else:
                stack.enter_context(patch.object(owner, name, new, create=True))
            yield call(tensor(2, 2))
        yield call(tensor(2, 2))


@scene
def other_flags_that_change(capture: Capture) -> Iterator[Any]:
    future = torch.__future__
    flags: list[tuple[Any, Any]] = [
        (torch.is_warn_always_enabled, torch.set_warn_always),
        (future.get_swap_module_params_on_conversion, future.set_swap_module_params_on_conversion),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    ]
    for get, set_ in flags:
        call = capture(lambda x, get=get: x + (10 if get() else 1))
        yield call(tensor())
        set_(True)
        try:
            yield call(tensor())
        finally:
            set_(False)
        yield call(tensor())
    matmul = torch.backends.cuda.matmul
    call = capture(lambda x: x + (10 if matmul.fp32_precision == "tf32" else 1))
    before = matmul.fp32_precision
    yield call(tensor())
    try:
        matmul.fp32_precision = "tf32"
        yield call(tensor())
    finally:
        matmul.fp32_precision = before


@scene
def constants_that_are_one_object(capture: Capture) -> Iterator[Any]:
    def addresses(x: torch.Tensor) -> Any:
        return x + (id(1000000) == id(1000000)) + (id(2.5) == id(2.5))

    def across_a_break(x: torch.Tensor) -> Any:
        first = (1000000, 2.5, "two words", b"ab", (1, 2))
        print(end="")
        second = (1000000, 2.5, "two words", b"ab", (1, 2))
        return x, [one is other for one, other in zip(first, second, strict=True)]

    yield capture(addresses)(tensor())
    yield capture(across_a_break)(tensor())


@scene
def builtin_classes_that_become_virtual_subclasses(capture: Capture) -> Iterator[Any]:
    class Kind(abc.ABC):
        pass

    call = capture(lambda x: (isinstance(3, Kind), issubclass(str, Kind), x + 1))
    yield call(tensor())
    Kind.register(int)
    yield call(tensor())
    Kind.register(str)
    yield call(tensor())


@scene
def hooks_of_all_modules_run_once(capture: Capture) -> Iterator[Any]:
    captured = capture(nn.Identity())
    yield captured(tensor())
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: output * 3)
    try:
        yield captured(tensor())
    finally:
        handle.remove()
    yield captured(tensor())


@scene
def the_largest_of_tensors_is_one_of_them(capture: Capture) -> Iterator[Any]:
    def computed(x: torch.Tensor, y: torch.Tensor) -> Any:
        return max(x.sum(), y.sum()) + 1, min(x[0], y[0]) * 2

    def kept_with_its_operand(x: torch.Tensor, y: torch.Tensor) -> Any:
        first, second = x.sum(), y.sum()
        return max(first, second), first, second

    def written(x: torch.Tensor, y: torch.Tensor) -> Any:
        first, second = x.sum(), y.sum()
        max(first, second).add_(5)
        return first + 1, second + 1

    def written_later(x: torch.Tensor, y: torch.Tensor) -> Any:
        first, second = x.sum(), y.sum()
        found = min(first, second)
        first.add_(5)
        return found + 1

    def of_arguments(x: torch.Tensor, y: torch.Tensor) -> Any:
        return max(x[0], y[0])

    nan = torch.full((3,), float("nan"))
    for function in (computed, kept_with_its_operand, written, written_later, of_arguments):
        call = capture(function)
        for x, y in ((torch.ones(3), torch.zeros(3)), (torch.zeros(3), torch.ones(3)), (nan, torch.ones(3))):
            result = call(x, y)
            if isinstance(result, torch.Tensor):
                yield result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
            yield result, x, y
    x, y = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    capture(lambda x, y: max(x.sum(), y.sqrt().sum()))(x, y).backward()
    yield x.grad, y.grad


@scene
def sums_of_what_changes_while_it_is_added(capture: Capture) -> Iterator[Any]:
    def terms(x: torch.Tensor, start: torch.Tensor) -> Iterator[Any]:
        yield x * 2
        start.add_(10)
        yield 3
        x.mul_(5)
        yield x

    def of_a_generator(x: torch.Tensor) -> Any:
        start = x.clone()
        return sum(terms(x, start), start), sum(terms(x, start), start=start), start

    def of_numbers(x: torch.Tensor) -> Any:
        return (
            sum(value for value in (0.1, True, 3, 1e100, -1e100)),
            sum(map(abs, [x, -1, 2.5, x])),
            sum(iter([])),
        )

    yield capture(of_a_generator)(tensor())
    yield capture(of_numbers)(tensor())
    yield outcome(capture(lambda x: sum((name for name in "ab"), "")), tensor())
    yield outcome(capture(lambda x: sum((name for name in [1]), 1, 2)), tensor())
    x = tensor().requires_grad_()
    capture(lambda x: sum((part * 0.3 for part in (x, x * 3, x.sin())), x / 7))(x).backward(
        torch.ones_like(x) / 11
    )
    yield x.grad


class Subclass(torch.Tensor):
    pass


@scene
def a_method_of_a_subclass_of_tensors_that_is_replaced(capture: Capture) -> Iterator[Any]:
    call = capture(lambda x: x.sigmoid())
    x = tensor().as_subclass(Subclass)
    yield call(x).as_subclass(torch.Tensor)
    with patch.object(Subclass, "sigmoid", lambda self: "mine", create=True):
        yield call(x)


@scene
def hooks_of_saved_tensors(capture: Capture) -> Iterator[Any]:
    seen: list[str] = []
    y = tensor().requires_grad_()

    def pack(value: torch.Tensor) -> torch.Tensor:
        seen.append(type(value).__name__)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        capture(lambda y: (y * y).sum())(y).backward()
    yield set(seen), y.grad


class WriteOnly:
    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["field"] += value * 2


class WithField:
    field = WriteOnly()

    def __init__(self) -> None:
        self.__dict__["field"] = 0


@scene
def a_descriptor_that_cannot_be_read(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, owner: WithField) -> Any:
        owner.field = 10
        return x + owner.field

    yield capture(function)(tensor(), WithField())
    bare = WithField()
    del bare.__dict__["field"]
    yield type(capture(lambda owner: owner.field)(bare)).__name__


@scene
def parameters_with_awkward_names(capture: Capture) -> Iterator[Any]:
    def function(self: Any, x: Any) -> Any:
        return self + x

    yield capture(function)(self=tensor(), x=1)
    yield capture(lambda x: x.random_(**{"from": 0, "to": 1}))(tensor())
    yield capture(lambda x: function(self=x, x=2))(tensor())


@scene
def a_masked_assignment_with_gradients(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> Any:
        x = F.relu(x) * 1
        x[mask] = y
        return x

    x, y = torch.ones(4, requires_grad=True), torch.ones(2, requires_grad=True)
    result = capture(function)(x, torch.tensor([True, False, True, False]), y)
    result.sum().backward()
    yield result, x.grad, y.grad


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.value == other.value


@scene
def keys_whose_hash_has_changed(capture: Capture) -> Iterator[Any]:
    key = Hashed(1)
    kinds = (dict, collections.OrderedDict, lambda items: collections.defaultdict(int, items))
    for table in (kind({key: 1, "q": 2}) for kind in kinds):
        key.value = 1
        lookup = capture(lambda key: (key in table, table.get(key), len(table)))
        items = capture(lambda: [value for _, value in table.items()])
        yield lookup(key), items()
        key.value = 2
        yield lookup(key), items()
        table[key] = 3
        yield lookup(key), items()
        table["q"] = 5
        yield lookup(key), items()
