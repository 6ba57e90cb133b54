"""Each kind of guard holds where it was taken; a change is a miss that names it; undone, it holds again."""

from __future__ import annotations

import builtins
import enum
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import (
    GLOBAL_HOOKS,
    AmbientFacts,
    AmbientIs,
    Contains,
    Guard,
    HasKey,
    Is,
    Length,
    NoHooks,
    ObjectCount,
    SharedStorage,
    TensorFacts,
    TensorLike,
    TypeIs,
    Unbound,
    has_instance_value,
)
from torchrepro.frontend.source import (
    Attribute,
    Cell,
    FrameState,
    Item,
    KeyOf,
    Local,
    StackSlot,
    instance_value,
)

X, Y, D, M = Local("x"), Local("y"), Local("d"), Local("m")
KEPT = Kept()
TORCH = KEPT.hold(torch, "torch")
AMBIENT = AmbientIs(TORCH, AmbientFacts.now())
"""With it, tensors are checked the quick way."""


def compiled(*guards: Guard, kept: Kept | None = None) -> GuardFunction:
    return GuardFunction.of(dict.fromkeys(guards), kept or KEPT)


def locals_of(**values: Any) -> FrameState:
    return FrameState(values, {})


def check_change(
    guards: GuardFunction, state: FrameState, change: AbstractContextManager[Any], *words: str
) -> None:
    """Holds (twice: the second time quickly), misses with a reason that has these words, holds again."""
    assert guards.holds(state)
    assert guards.holds(state)
    assert guards.miss(state) is None
    with change:
        assert not guards.holds(state)
        reason = guards.miss(state)
        assert reason is not None
        assert [word for word in words if word not in reason] == []
    assert guards.holds(state)
    assert guards.miss(state) is None


@contextmanager
def changed(do: Callable[[], Any], undo: Callable[[], Any]) -> Iterator[None]:
    do()
    yield
    undo()


def check_values(
    guard: Guard, good: Any, bad: Any, *words: str, name: str = "x", also: tuple[Guard, ...] = ()
) -> None:
    values = {name: good}
    state = FrameState(values, {})
    change = changed(lambda: values.__setitem__(name, bad), lambda: values.__setitem__(name, good))
    check_change(compiled(guard, *also), state, change, *words)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.scale = 2.0


# Plain values


def test_an_object_is_guarded_by_identity() -> None:
    first, second = object(), object()
    check_values(Is(X, first), first, second, "argument x: is another object, was a object")
    check_values(Is(X, len), len, max, "is function max", "was function len")
    check_values(Is(X, Block), Block, Colour, "is class Colour, was class Block")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (1, 2),
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.5, float("nan")),
        (float("nan"), 1.5),
        (float("inf"), float("-inf")),
        (1 + 0j, complex(1, -0.0)),
        (None, False),
        (True, False),
        (True, 1),
        (..., None),
        ("a", "b"),
        ("a", b"a"),
        ((1, (2, True)), (1, (2, 1))),
        ((), []),
        (frozenset({1}), frozenset({True})),
        (frozenset({1}), frozenset({1, 2})),
        (slice(1, None), slice(1, None, 1)),
        (slice(1, 2.0), slice(1, 2)),
        (range(3), range(4)),
        (torch.float32, torch.float64),
        (torch.device("cpu"), torch.device("meta")),
        (torch.device("cpu"), torch.device("cpu:0")),
        (torch.Size([1, 2]), torch.Size([2, 1])),
        (torch.Size([1, 2]), (1, 2)),
        (torch.strided, torch.sparse_coo),
        (torch.channels_last, torch.contiguous_format),
        (Colour.RED, Colour.BLUE),
        (Colour.RED, 1),
        (10**5000, 10**5000 + 1),
        ((10**5000,), (10**5000 + 1,)),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int | tuple) else type(value).__name__,
)
def test_a_constant_is_guarded_by_type_and_value(good: Any, bad: Any) -> None:
    check_values(Is(X, good), good, bad, "argument x: is ", ", was ")


def test_a_sentence_shows_both_values() -> None:
    guards = compiled(Is(X, 3))
    assert guards.miss(locals_of(x=4)) == "argument x: is 4, was 3"
    assert [each.sentence() for each in guards.guards] == ["argument x: is 3"]


def test_a_type_is_guarded_exactly() -> None:
    check_values(TypeIs(X, dict), {}, OrderedDict(), "argument x: type is OrderedDict, was dict")


def test_two_classes_of_one_name_differ() -> None:
    one, other = type("Same", (), {}), type("Same", (), {})
    check_values(TypeIs(X, one), one(), other(), "type is another Same, was Same")


def test_the_length_of_a_list() -> None:
    items = [1, 2]
    change = changed(lambda: items.append(3), lambda: items.pop())
    check_change(compiled(Length(X, 2)), locals_of(x=items), change, "argument x: length is 3, was 2")


def test_the_keys_of_a_dict_with_their_order_and_types() -> None:
    good = {"a": 1, 1: 2}
    guard = Contains(D, ("a", 1))
    check_values(guard, good, {"a": 1}, "argument d", "('a')", "('a', 1)", name="d")
    check_values(guard, good, {1: 1, "a": 2}, "argument d", name="d")
    check_values(guard, good, {"a": 1, True: 2}, "('a', True)", name="d")


def test_the_order_of_an_ordered_dict_is_its_own() -> None:
    ordered = OrderedDict(a=1, b=2)
    change = changed(lambda: ordered.move_to_end("a"), lambda: ordered.move_to_end("b"))
    check_change(compiled(Contains(D, ("a", "b"))), locals_of(d=ordered), change, "argument d")


def test_a_key_that_is_there_and_one_that_is_not() -> None:
    table = {"a": 1}
    remove = changed(lambda: table.pop("a"), lambda: table.update(a=1))
    check_change(
        compiled(HasKey(D, "a")), locals_of(d=table), remove, "argument d: 'a' is absent, was present"
    )
    insert = changed(lambda: table.update(b=1), lambda: table.pop("b"))
    check_change(
        compiled(HasKey(D, "b", present=False)),
        locals_of(d=table),
        insert,
        "argument d: 'b' is present, was absent",
    )


def test_a_key_may_be_an_object() -> None:
    check_values(HasKey(D, Block), {Block: 1}, {}, "class Block is absent", name="d")


def test_the_members_of_a_set_with_their_types() -> None:
    check_values(Contains(X, frozenset({1, "a"})), {1, "a"}, {1, "b"}, "{'a', 1}", "{'b', 1}")
    check_values(Contains(X, frozenset({1})), {1}, {True}, "{True}")
    check_values(Contains(X, frozenset({len, int})), {int, len}, {int, max}, "argument x")
    check_values(Contains(X, frozenset({1})), frozenset({1}), [1], "argument x")


def test_one_object_under_two_names() -> None:
    thing = [1]
    values: dict[str, Any] = {"x": thing, "y": thing}
    change = changed(lambda: values.update(y=[1]), lambda: values.update(y=thing))
    check_change(
        compiled(ObjectCount(X, 1, others=(Y,))), FrameState(values, {}), change, "argument x", "argument y"
    )


# Where values live


def test_a_global_is_read_from_the_globals_of_its_module() -> None:
    kept = Kept()
    table = {"rate": 0.1}
    guards = compiled(Is(Item.at(kept.hold(table, "globals of train"), "rate"), 0.1), kept=kept)
    change = changed(lambda: table.update(rate=0.2), lambda: table.update(rate=0.1))
    check_change(guards, locals_of(), change, "globals of train['rate']: is 0.2, was 0.1")
    gone = changed(lambda: table.pop("rate"), lambda: table.update(rate=0.1))
    check_change(guards, locals_of(), gone, "globals of train['rate']: is no longer there (KeyError)")


def test_a_builtin_that_becomes_hidden_by_a_global() -> None:
    kept = Kept()
    table: dict[str, Any] = {}
    guards = compiled(
        HasKey(kept.hold(table, "globals of train"), "len", present=False),
        Is(Item.at(kept.hold(builtins.__dict__, "builtins"), "len"), len),
        kept=kept,
    )
    change = changed(lambda: table.update(len=max), lambda: table.clear())
    check_change(guards, locals_of(), change, "globals of train: 'len' is present, was absent")


def test_an_attribute_of_an_instance() -> None:
    thing = types.SimpleNamespace(scale=2)
    change = changed(lambda: setattr(thing, "scale", 3), lambda: setattr(thing, "scale", 2))
    check_change(
        compiled(Is(instance_value(X, "scale"), 2)), locals_of(x=thing), change, "x.scale: is 3, was 2"
    )


def test_an_attribute_that_hides_one_of_the_class() -> None:
    block = Block()
    change = changed(lambda: block.__dict__.update(forward=1), lambda: block.__dict__.pop("forward"))
    guard = has_instance_value(M, "forward", present=False)
    check_change(compiled(guard), locals_of(m=block), change, "argument m: 'forward' is present, was absent")


def test_an_attribute_that_is_deleted() -> None:
    block = Block()
    change = changed(lambda: block.__dict__.pop("scale"), lambda: block.__dict__.update(scale=2.0))
    check_change(compiled(has_instance_value(M, "scale")), locals_of(m=block), change, "'scale' is absent")


def test_the_contents_of_a_closure_cell() -> None:
    cell = types.CellType(3)
    guards = compiled(Is(Attribute(Cell("n"), "cell_contents"), 3))
    change = changed(lambda: setattr(cell, "cell_contents", 4), lambda: setattr(cell, "cell_contents", 3))
    check_change(guards, FrameState({}, {"n": cell}), change, "closure variable n: is 4, was 3")
    empty = changed(lambda: delattr(cell, "cell_contents"), lambda: setattr(cell, "cell_contents", 3))
    check_change(
        guards, FrameState({}, {"n": cell}), empty, "closure variable n: cannot be read (ValueError)"
    )


def test_a_cell_that_gets_contents() -> None:
    cell = types.CellType()
    change = changed(lambda: setattr(cell, "cell_contents", 4), lambda: delattr(cell, "cell_contents"))
    check_change(
        compiled(Unbound(Cell("n"))), FrameState({}, {"n": cell}), change, "n", "is bound, was unbound"
    )


def test_a_default_of_a_function() -> None:
    def function(a: int = 1) -> int:
        return a

    guards = compiled(Is(Item.at(Attribute(X, "__defaults__"), 0), 1))
    change = changed(
        lambda: setattr(function, "__defaults__", (2,)), lambda: setattr(function, "__defaults__", (1,))
    )
    check_change(guards, locals_of(x=function), change, "x.__defaults__[0]: is 2, was 1")


def test_a_value_on_the_stack() -> None:
    guards = compiled(Is(StackSlot(1), 5))
    assert guards.holds(FrameState({}, {}, (4, 5)))
    assert guards.miss(FrameState({}, {}, (5, 4))) == "<stack 1>: is 4, was 5"
    assert not guards.holds(FrameState({}, {}, (5,)))


def test_an_object_as_a_key() -> None:
    guards = compiled(Length(D, 1), Is(KeyOf(D, 0), Block))
    assert guards.holds(locals_of(d={Block: 1}))
    assert guards.miss(locals_of(d={Colour: 1})) == "key 0 of d: is class Colour, was class Block"


def test_a_variable_that_gets_a_value() -> None:
    values: dict[str, Any] = {}
    change = changed(lambda: values.update(x=1), lambda: values.clear())
    check_change(compiled(Unbound(X)), FrameState(values, {}), change, "argument x: variable is bound")


# Modules


def test_the_training_flag() -> None:
    block = Block()
    guards = compiled(TypeIs(M, Block), Is(instance_value(M, "training"), True))
    check_change(
        guards, locals_of(m=block), changed(block.eval, block.train), "m.training: is False, was True"
    )


def test_a_member_that_is_added() -> None:
    block = Block()
    change = changed(lambda: block.register_buffer("mask", None), lambda: block._buffers.pop("mask"))
    guard = HasKey(instance_value(M, "_buffers"), "mask", present=False)
    check_change(compiled(guard), locals_of(m=block), change, "m._buffers: 'mask' is present, was absent")


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_of_a_module(register: str) -> None:
    block = Block()
    handles: list[Any] = []
    change = changed(
        lambda: handles.append(getattr(block, register)(lambda *args: None)), lambda: handles.pop().remove()
    )
    check_change(compiled(NoHooks(M)), locals_of(m=block), change, "argument m: set of hooks is", "was empty")


@pytest.mark.parametrize(
    "register",
    [
        nn_module.register_module_forward_hook,
        nn_module.register_module_forward_pre_hook,
        nn_module.register_module_full_backward_hook,
        nn_module.register_module_full_backward_pre_hook,
    ],
)
def test_hooks_of_all_modules(register: Callable[..., Any]) -> None:
    handles: list[Any] = []
    change = changed(lambda: handles.append(register(lambda *args: None)), lambda: handles.pop().remove())
    check_change(
        compiled(NoHooks(KEPT.hold(nn_module, "torch.nn"), GLOBAL_HOOKS)),
        locals_of(),
        change,
        "torch.nn: set of hooks is global_",
    )


def test_a_parameter_that_is_replaced() -> None:
    block = Block()
    weight = block.linear.weight
    source = Item.at(
        instance_value(Item.at(instance_value(M, "_modules"), "linear"), "_parameters"), "weight"
    )
    guards = compiled(AMBIENT, TensorLike(source, TensorFacts.of(weight)))
    change = changed(
        lambda: setattr(block.linear, "weight", nn.Parameter(torch.ones(3, 2))),
        lambda: setattr(block.linear, "weight", weight),
    )
    check_change(guards, locals_of(m=block), change, "m.linear.weight: shape is (3, 2), was (2, 2)")


# Tensors


class Wrapped(torch.Tensor):
    pass


def _inference(tensor: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return tensor.clone()


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        (torch.ones(2, 4), torch.ones(3, 4), "shape is (3, 4), was (2, 4)"),
        (torch.ones(2, 4), torch.ones(2, 4, 1), "shape is (2, 4, 1), was (2, 4)"),
        (torch.ones(2, 4), torch.ones(4, 2).t(), "stride is (1, 2), was (4, 1)"),
        (torch.ones(2, 4), torch.ones(2, 4).double(), "dtype is torch.float64, was torch.float32"),
        (torch.ones(2, 4), torch.ones(2, 4, device="meta"), "device is meta, was cpu"),
        (torch.ones(2, 4), torch.ones(2, 4, requires_grad=True), "requires grad is True, was False"),
        (torch.ones(2, 4), nn.Parameter(torch.ones(2, 4), False), "type is Parameter, was Tensor"),
        (torch.ones(2, 4), torch.ones(2, 4).as_subclass(Wrapped), "type is Wrapped, was Tensor"),
        (torch.ones(2, 4).as_subclass(Wrapped), torch.ones(2, 4), "type is Tensor, was Wrapped"),
        (torch.ones(2, 4), torch._neg_view(torch.ones(2, 4)), "negated is True, was False"),
        (torch.ones(2) + 0j, (torch.ones(2) + 0j).conj(), "conjugated is True, was False"),
        ((torch.ones(2) + 0j).conj(), torch.ones(2) + 0j, "conjugated is False, was True"),
        (torch.ones(2, 4), _inference(torch.ones(2, 4)), "inference is True, was False"),
        (torch.ones(2, 4), torch.ones(2, 4).to_sparse(), "layout is torch.sparse_coo, was torch.strided"),
        (torch.ones(2, 4).to_sparse(), torch.ones(2, 4), "layout is torch.strided, was torch.sparse_coo"),
        (torch.ones(2, 4).to_sparse(), torch.ones(2, 5).to_sparse(), "shape is (2, 5), was (2, 4)"),
        (torch.ones(2, 4), None, "type is NoneType, was Tensor"),
        (torch.ones(2, 4), [1.0], "type is list, was Tensor"),
        (torch.ones(1, 4), torch.ones(1, 8)[:, ::2], "stride is (8, 2), was (4, 1)"),
        (torch.tensor(1.0), torch.ones(1), "shape is (1,), was ()"),
    ],
    ids=lambda value: value.split(",")[0] if isinstance(value, str) else "",
)
def test_a_tensor_is_guarded_by_what_it_is_like(good: torch.Tensor, bad: Any, words: str) -> None:
    guard = TensorLike(X, TensorFacts.of(good))
    check_values(guard, good, bad, f"argument x: {words}")
    check_values(guard, good, bad, f"argument x: {words}", also=(AMBIENT,))


def test_other_tensors_of_the_same_kind_and_other_values_will_do() -> None:
    guards = compiled(AMBIENT, TensorLike(X, TensorFacts.of(torch.ones(2))))
    assert guards.holds(locals_of(x=torch.ones(2)))
    assert guards.holds(locals_of(x=torch.zeros(2)))


def test_a_tensor_changed_in_place_is_a_miss() -> None:
    tensor = torch.ones(2, 2)
    guards = compiled(AMBIENT, TensorLike(X, TensorFacts.of(tensor)))
    state = locals_of(x=tensor)
    check_change(
        guards, state, changed(tensor.requires_grad_, lambda: tensor.requires_grad_(False)), "requires grad"
    )
    check_change(guards, state, changed(lambda: tensor.resize_(4), lambda: tensor.resize_(2, 2)), "shape")


def test_one_tensor_of_many_is_named() -> None:
    tensors = {f"t{index}": torch.ones(index + 1) for index in range(50)}
    guards = compiled(
        AMBIENT, *(TensorLike(Local(name), TensorFacts.of(tensor)) for name, tensor in tensors.items())
    )
    good, bad = tensors["t33"], torch.ones(99)
    change = changed(lambda: tensors.update(t33=bad), lambda: tensors.update(t33=good))
    check_change(guards, FrameState(tensors, {}), change, "argument t33: shape is (99,), was (34,)")


def test_one_tensor_in_two_places_holds_if_nothing_says_otherwise() -> None:
    tensor = torch.ones(2)
    facts = TensorFacts.of(tensor)
    guards = compiled(AMBIENT, TensorLike(X, facts), TensorLike(Y, facts))
    for _ in range(8):
        assert guards.holds(locals_of(x=tensor, y=tensor))
        assert guards.holds(locals_of(x=tensor, y=torch.ones(2)))


def test_a_gradient_is_guarded_where_it_is_read() -> None:
    tensor = torch.ones(2, requires_grad=True)
    guards = compiled(Is(Attribute(X, "grad"), None), TensorLike(X, TensorFacts.of(tensor)))
    change = changed(lambda: setattr(tensor, "grad", torch.ones(2)), lambda: setattr(tensor, "grad", None))
    check_change(guards, locals_of(x=tensor), change, "x.grad: is a Tensor, was None")


@pytest.mark.parametrize("count", [2, 3])
def test_tensors_that_are_different_objects(count: int) -> None:
    values = {f"t{index}": torch.ones(2) for index in range(count)}
    first = values["t0"]
    change = changed(lambda: values.update(t0=values["t1"]), lambda: values.update(t0=first))
    guards = compiled(ObjectCount(Local("t0"), len(values), others=tuple(map(Local, values))[1:]))
    check_change(guards, FrameState(values, {}), change, "argument t0, argument t1", "number of objects is")


def test_tensors_that_come_to_share_a_storage() -> None:
    x, y = torch.ones(4), torch.ones(4)
    values = {"x": x, "y": y}
    guards = compiled(SharedStorage.of((X, Y), (x, y)))
    change = changed(lambda: values.update(y=x[:2]), lambda: values.update(y=y))
    check_change(
        guards, FrameState(values, {}), change, "argument x, argument y: storage is (0, 0)", "was (0, 1)"
    )


def test_views_that_come_to_overlap() -> None:
    base = torch.ones(8)
    values = {"x": base[:2], "y": base[2:4]}
    guards = compiled(SharedStorage.of((X, Y), tuple(values.values())))
    apart = values["y"]
    change = changed(lambda: values.update(y=base[1:3]), lambda: values.update(y=apart))
    check_change(guards, FrameState(values, {}), change, "storage is (0, 0) at (0, 4), was (0, 0) at (0, 8)")
    moved = {"x": base[4:6], "y": base[6:]}
    assert guards.holds(FrameState(moved, {}))


def test_two_storages_over_one_memory_count_as_shared() -> None:
    array = torch.ones(8).numpy()
    x, y = torch.from_numpy(array), torch.from_numpy(array[4:])
    assert SharedStorage.of((X, Y), (x, y)).places[0] == (0, 0)
    apart = torch.from_numpy(array[:4]), torch.from_numpy(array[4:])
    assert SharedStorage.of((X, Y), apart).places[0] == (0, 1)


def test_storages_without_memory_are_told_apart() -> None:
    meta, empty = torch.ones(2, device="meta"), torch.empty(0)
    sparse = torch.ones(2).to_sparse()
    tensors = (meta, meta[1:], torch.ones(2, device="meta"), empty, torch.empty(0), torch.ones(1), sparse)
    assert SharedStorage.of((X,) * 7, tensors).places[0] == (0, 0, 1, 2, 3, 4, 5)


# The state of torch


class Quiet(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


@contextmanager
def _set(setter: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    setter(value)
    try:
        yield
    finally:
        setter(before)


@contextmanager
def _new_precision_interface() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@contextmanager
def _no_flash() -> Iterator[None]:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


@contextmanager
def _inside_vmap() -> Iterator[None]:
    from torch._C._functorch import _vmap_decrement_nesting, _vmap_increment_nesting

    _vmap_increment_nesting(2, "error")
    try:
        yield
    finally:
        _vmap_decrement_nesting()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (torch.no_grad, "grad mode is False, was True"),
        (torch.inference_mode, "inference mode is True, was False"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast is (('cpu', torch.bfloat16),), was ()"),
        (lambda: torch.autocast("cpu", cache_enabled=False), "autocast cache is False, was True"),
        (
            lambda: _set(torch.set_default_dtype, torch.float64, torch.float32),
            "default dtype is torch.float64",
        ),
        (lambda: torch.device("meta"), "default device is meta"),
        (lambda: _set(torch.set_default_device, "meta", None), "default device is meta"),
        (lambda: _set(torch.use_deterministic_algorithms, True, False), "deterministic algorithms is True"),
        (
            lambda: _set(torch.set_float32_matmul_precision, "high", "highest"),
            "float32 matmul precision is 'high'",
        ),
        (_new_precision_interface, "float32 matmul precision is 'tf32'"),
        (Quiet, "torch function modes is (class Quiet), was ()"),
        (torch._C.DisableTorchFunctionSubclass, "torch function enabled is False"),
        (lambda: torch._subclasses.FakeTensorMode(), "torch dispatch modes is (class FakeTensorMode)"),
        (_inside_vmap, "functorch level is 1, was None"),
        (torch.autograd.detect_anomaly, "anomaly mode is True"),
        (_no_flash, "attention backends is (False, False, True, False)"),
        (lambda: _set(torch.set_num_threads, 3, torch.get_num_threads()), "threads is 3"),
    ],
    ids=lambda value: value.split(" is")[0] if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_the_state_of_torch(change: Callable[[], AbstractContextManager[Any]], words: str) -> None:
    guards = compiled(AmbientIs(TORCH, AmbientFacts.now()))
    check_change(guards, locals_of(), change(), "torch: ", words)


def test_autocast_to_another_type_is_another_state() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        guards = compiled(AmbientIs(TORCH, AmbientFacts.now()))
        with torch.autocast("cpu", torch.float16):
            assert "float16" in (guards.miss(locals_of()) or "")
        assert guards.holds(locals_of())


def test_tensors_are_checked_without_running_modes_of_the_user() -> None:
    calls: list[Any] = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(function)
            return function(*args, **(kwargs or {}))

    tensors = torch.ones(2), torch.ones(3)
    guards = compiled(
        *(TensorLike(source, TensorFacts.of(tensor)) for source, tensor in zip((X, Y), tensors, strict=True)),
        SharedStorage.of((X, Y), tensors),
    )
    with Spy():
        assert guards.holds(locals_of(x=tensors[0], y=tensors[1]))
        assert not guards.holds(locals_of(x=tensors[1], y=tensors[0]))
        assert guards.miss(locals_of(x=tensors[1], y=tensors[0])) == "argument x: shape is (3,), was (2,)"
    assert calls == []


def test_what_was_learned_in_inference_mode_fits_no_other_tensor_outside() -> None:
    tensor = torch.ones(2)
    with torch.inference_mode():
        other = torch.ones(2)
        guards = compiled(AmbientIs(TORCH, AmbientFacts.now()), TensorLike(X, TensorFacts.of(tensor)))
        assert guards.holds(locals_of(x=tensor))
        assert guards.holds(locals_of(x=tensor))
        assert not guards.holds(locals_of(x=other))
        assert guards.miss(locals_of(x=other)) == "argument x: inference is True, was False"
    assert not guards.holds(locals_of(x=other))
    unaware = compiled(TensorLike(X, TensorFacts.of(tensor)))
    with torch.inference_mode():
        assert unaware.holds(locals_of(x=tensor))
    assert not unaware.holds(locals_of(x=other))
