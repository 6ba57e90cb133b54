"""State that outlives a call: arguments that are changed, closures, defaults, globals, classes, caches."""

from __future__ import annotations

import collections
import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.frontend.harness import Capture, outcome, scene, tensor


@scene
def a_list_passed_twice(capture: Capture) -> Iterator[Any]:
    def function(first: list[Any], second: list[Any], x: torch.Tensor) -> Any:
        first.append(x + 1)
        second.append(x * 2)
        return len(first), len(second), first is second

    call = capture(function)
    for _ in range(2):
        shared: list[Any] = []
        yield call(shared, shared, tensor()), shared
        one: list[Any] = []
        two: list[Any] = []
        yield call(one, two, tensor()), one, two


@scene
def a_dict_passed_twice_and_nested(capture: Capture) -> Iterator[Any]:
    def function(first: dict[str, Any], second: dict[str, Any], x: torch.Tensor) -> Any:
        first["a"] = x + 1
        second["inner"]["b"] = first["a"] * 2
        return second["inner"] is first, list(first), list(second)

    call = capture(function)
    for _ in range(2):
        inner: dict[str, Any] = {"z": 1}
        outer = {"inner": inner}
        yield call(inner, outer, tensor()), inner, outer
        other = {"inner": {"z": 2}}
        yield call(inner, other, tensor()), inner, other


@scene
def a_tensor_passed_twice_and_changed(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = y * 2
        y.mul_(3)
        return x, y, z, x is y

    call = capture(function)
    for _ in range(2):
        x = tensor()
        yield call(x, x), x
        x, y = tensor(), tensor(seed=1)
        yield call(x, y), x, y


@scene
def tensors_that_share_memory(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = y.sum()
        y.zero_()
        return z, x.clone()

    call = capture(function)
    for _ in range(2):
        base = tensor(4, 4)
        yield call(base[0], base[1]), base
        base = tensor(4, 4)
        yield call(base[0], base[0]), base
        base = tensor(4, 4)
        yield call(base[0], base[:, 0]), base
        base = tensor(4, 4)
        yield call(base.view(-1)[:4], base.view(-1)[2:6]), base
        base = tensor(4, 4)
        yield call(base[0], base), base


@scene
def memory_shared_without_mutation(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + y, x, y[1:]

    call = capture(function)
    base = tensor(4, 4)
    yield call(base[0], base[1]), base
    yield call(base[0], tensor(4)), base


@scene
def a_closure_changed_between_calls(capture: Capture) -> Iterator[Any]:
    scale, names = 2, ["a"]

    def function(x: torch.Tensor) -> Any:
        return x * scale + len(names), names[-1]

    call = capture(function)
    yield call(tensor())
    scale = 3
    yield call(tensor())
    names.append("b")
    yield call(tensor())
    names = ["c"]
    yield call(tensor())
    scale = 2
    names = ["a"]
    yield call(tensor())


@scene
def a_closure_changed_by_the_function(capture: Capture) -> Iterator[Any]:
    count, last = 0, None

    def function(x: torch.Tensor) -> Any:
        nonlocal count, last
        count += 1
        previous, last = last, x + count
        return previous, last

    call = capture(function)
    for step in range(5):
        yield call(tensor(seed=step)), count, last


@scene
def two_closures_over_one_variable(capture: Capture) -> Iterator[Any]:
    total = torch.zeros(3)

    def add(x: torch.Tensor) -> Any:
        nonlocal total
        total = total + x
        return total

    def read() -> Any:
        return total * 2

    traced_add, traced_read = capture(add), capture(read)
    for step in range(3):
        yield traced_add(torch.ones(3) * step), traced_read(), total, read()


@scene
def a_default_that_is_changed(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, seen: list[Any] = [], options: dict[str, Any] = {"k": 2}) -> Any:
        seen.append(len(seen))
        options["k"] += 1
        return x * options["k"], list(seen)

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), function.__defaults__
    yield call(tensor(), [7]), function.__defaults__
    function.__defaults__ = ([1], {"k": 100})
    yield call(tensor()), function.__defaults__
    function.__kwdefaults__ = None
    yield call(tensor())


class Counted:
    instances = 0
    log: list[Any] = []

    def __init__(self, scale: float) -> None:
        type(self).instances += 1
        self.scale = scale
        self.reads = 0

    @property
    def read(self) -> float:
        self.reads += 1
        return self.scale + self.reads

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return self.__dict__["asked"] * 10

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


@scene
def a_property_with_a_side_effect(capture: Capture) -> Iterator[Any]:
    def function(box: Any, x: torch.Tensor) -> Any:
        return x * box.read + box.read

    call, box = capture(function), Counted(1.5)
    for _ in range(3):
        yield call(box, tensor()), box.reads


@scene
def getattr_with_state(capture: Capture) -> Iterator[Any]:
    def function(box: Any, x: torch.Tensor) -> Any:
        return x + box.missing + box.other, hasattr(box, "_private")

    call, box = capture(function), Counted(1.5)
    for _ in range(3):
        yield call(box, tensor()), box.asked


@scene
def instances_counted_in_the_class(capture: Capture) -> Iterator[Any]:
    Counted.instances = 0

    def function(x: torch.Tensor) -> Any:
        box = Counted(2.0)
        return box.apply(x), Counted.instances

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), Counted.instances
    Counted.instances = 0


@scene
def a_class_attribute_that_is_a_list(capture: Capture) -> Iterator[Any]:
    Counted.log.clear()

    def function(box: Counted, x: torch.Tensor) -> Any:
        box.log.append(len(box.log))
        Counted.log.append("c")
        return x + len(box.log)

    call, box = capture(function), Counted(1.0)
    for _ in range(3):
        yield call(box, tensor()), list(Counted.log)
    Counted.log.clear()


@scene
def methods_replaced_between_calls(capture: Capture) -> Iterator[Any]:
    class Model:
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    def function(model: Any, x: torch.Tensor) -> Any:
        return model.step(x) * 2

    call, model = capture(function), Model()
    yield call(model, tensor())
    Model.step = lambda self, x: x - 1  # type: ignore[method-assign]
    yield call(model, tensor())
    model.step = types.MethodType(lambda self, x: x * 100, model)  # type: ignore[method-assign]
    yield call(model, tensor())
    model.step = lambda x: x / 3  # type: ignore[method-assign]
    yield call(model, tensor())
    del model.step
    yield call(model, tensor())
    model.__class__ = type("Other", (Model,), {"step": lambda self, x: x + 50})
    yield call(model, tensor())


@scene
def a_base_class_changed_between_calls(capture: Capture) -> Iterator[Any]:
    class Base:
        factor = 2

        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

        @staticmethod
        def shift(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        @classmethod
        def made(cls, x: torch.Tensor) -> torch.Tensor:
            return x + cls.factor

    class Model(Base):
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return super().step(x) + 1

    def function(model: Any, x: torch.Tensor) -> Any:
        return model.step(x), model.shift(x), model.made(x)

    call, model = capture(function), Model()
    yield call(model, tensor())
    Base.factor = 3
    yield call(model, tensor())
    Base.step = lambda self, x: x * 0  # type: ignore[method-assign]
    yield call(model, tensor())
    Base.shift = staticmethod(lambda x: x + 1000)  # type: ignore[method-assign]
    yield call(model, tensor())
    Base.made = classmethod(lambda cls, x: x - cls.factor)  # type: ignore[method-assign,assignment]
    yield call(model, tensor())
    Model.factor = 9
    yield call(model, tensor())
    Model.shift = staticmethod(lambda x: x - 5)  # type: ignore[method-assign]
    yield call(model, tensor())


COUNT = 0
HISTORY: list[Any] = []
STORED: Any = None


@scene
def global_counters(capture: Capture) -> Iterator[Any]:
    global COUNT, STORED

    def function(x: torch.Tensor) -> Any:
        global COUNT, STORED
        COUNT += 1
        HISTORY.append(COUNT)
        previous, STORED = STORED, x * COUNT
        return previous, STORED

    call = capture(function)
    for step in range(4):
        yield call(tensor(seed=step)), COUNT, list(HISTORY), STORED
    COUNT = 10
    yield call(tensor()), COUNT
    COUNT, STORED = 0, None
    HISTORY.clear()


@scene
def a_global_appears_and_goes(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        try:
            return x * APPEARING  # type: ignore[name-defined]
        except NameError as error:
            return str(error)

    call = capture(function)
    yield call(tensor())
    globals()["APPEARING"] = 3
    yield call(tensor())
    del globals()["APPEARING"]
    yield call(tensor())


@scene
def a_cache_keyed_by_shape(capture: Capture) -> Iterator[Any]:
    cache: dict[Any, Any] = {}

    def function(x: torch.Tensor) -> Any:
        key = tuple(x.shape), x.dtype
        if key not in cache:
            cache[key] = torch.arange(x.shape[-1], dtype=x.dtype) + len(cache)
        return x + cache[key]

    call = capture(function)
    for size in (3, 3, 4, 3, 5, 4):
        yield call(tensor(2, size)), {key: value for key, value in cache.items()}


@scene
def a_tensor_kept_on_the_module(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last: Any = None
            self.steps = 0
            self.history: list[Any] = []

        def forward(self, x: torch.Tensor) -> Any:
            y = x if self.last is None else x + self.last
            self.last = y * 0.5
            self.steps += 1
            self.history.append(y)
            return y

    model = Model()
    call = capture(model)
    for step in range(4):
        yield call(tensor(seed=step)), model.last, model.steps, list(model.history)
    model.last = None
    yield call(tensor()), model.steps


@scene
def a_buffer_that_is_replaced_and_updated(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x: torch.Tensor) -> Any:
            if self.training:
                self.count += 1
                self.mean = self.mean * 0.9 + x.mean(0) * 0.1
                self.mean.mul_(1.5)
            return x - self.mean

    model = Model()
    call = capture(model)
    for step in range(4):
        model.train(step != 2)
        yield call(tensor(seed=step)), dict(model.named_buffers()), list(model.state_dict())


@scene
def parameters_replaced_and_converted(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    call = capture(model)
    yield call(tensor())
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    yield call(tensor())
    model.to(torch.float64)
    yield call(tensor().double())
    model.to(torch.float32)
    yield call(tensor())
    model[0].bias = None
    yield call(tensor())
    model[1] = nn.Tanh()
    yield call(tensor())
    model.append(nn.Softmax(-1))
    yield call(tensor())
    model.requires_grad_(False)
    yield call(tensor())
    del model[1]
    yield call(tensor())


@scene
def hooks_added_and_removed(capture: Capture) -> Iterator[Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    seen: list[Any] = []
    call = capture(model)
    yield call(tensor())
    first = model[0].register_forward_hook(lambda module, args, result: result * 2)
    yield call(tensor())
    second = model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    yield call(tensor())
    third = model[1].register_forward_hook(lambda module, args, result: seen.append(tuple(result.shape)))
    yield call(tensor()), list(seen)
    first.remove()
    yield call(tensor()), list(seen)
    second.remove()
    third.remove()
    yield call(tensor()), list(seen)
    gradients: list[Any] = []
    hook = model[0].register_full_backward_hook(lambda module, given, got: gradients.append(got[0].sum()))
    x = tensor().requires_grad_()
    call(x).sum().backward()
    yield x.grad, list(gradients)
    hook.remove()


@dataclass
class Batch:
    x: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    tag: str = "t"


@scene
def a_data_class_that_is_changed(capture: Capture) -> Iterator[Any]:
    def function(batch: Batch) -> Any:
        batch.x = batch.x + 1
        batch.extra["n"] = batch.extra.get("n", 0) + 1
        batch.step += 1
        return batch, Frozen(batch.x * 2)

    call, batch = capture(function), Batch(tensor())
    for _ in range(3):
        result, frozen = call(batch)
        yield result is batch, batch, frozen
    yield outcome(call, Frozen(tensor()))


class Loud(dict[str, Any]):
    """A dict that counts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gets = 0
        self.sets = 0

    def __getitem__(self, key: str) -> Any:
        self.gets += 1
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.sets += 1
        super().__setitem__(key, value)

    def __missing__(self, key: str) -> Any:
        return f"no {key}"


class Doubling(list[Any]):
    def append(self, item: Any) -> None:
        super().append(item)
        super().append(item)

    def __len__(self) -> int:
        return super().__len__() * 10

    def __bool__(self) -> bool:
        return False


@scene
def subclasses_of_containers_with_overrides(capture: Capture) -> Iterator[Any]:
    def function(table: Loud, items: Doubling, x: torch.Tensor) -> Any:
        table["a"] = table["x"] + x
        items.append(x)
        missing = table["nothing"]
        return len(items), bool(items), missing, table.get("zz"), table.gets, [item + 1 for item in items]

    call = capture(function)
    table, items = Loud(x=tensor()), Doubling()
    for step in range(3):
        yield call(table, items, tensor(seed=step)), table, items, table.gets, table.sets


@scene
def unusual_containers(capture: Capture) -> Iterator[Any]:
    def function(
        queue: deque[Any], table: OrderedDict[str, Any], counts: defaultdict[str, list[Any]], x: torch.Tensor
    ) -> Any:
        queue.append(x + 1)
        queue.rotate(1)
        table.move_to_end("a")
        table["c"] = x
        counts["k"].append(x * 2)
        counts["n"]
        return queue[0], list(table), list(counts)

    call = capture(function)
    queue: deque[Any] = deque([1, 2, 3], maxlen=3)
    table: OrderedDict[str, Any] = OrderedDict(a=1, b=2)
    counts: defaultdict[str, list[Any]] = defaultdict(list)
    for step in range(3):
        yield call(queue, table, counts, tensor(seed=step)), queue, table, counts


@scene
def a_weak_reference(capture: Capture) -> Iterator[Any]:
    class Holder:
        pass

    holder = Holder()
    holder.value = 3  # type: ignore[attr-defined]
    reference = weakref.ref(holder)
    table = weakref.WeakKeyDictionary({holder: 5})

    def function(x: torch.Tensor) -> Any:
        found = reference()
        return x + (0 if found is None else found.value), len(table)

    call = capture(function)
    yield call(tensor())
    holder.value = 4  # type: ignore[attr-defined]
    yield call(tensor())
    del holder
    gc.collect()  # what a trace has seen lives until then
    yield call(tensor())


@scene
def a_chain_map_and_a_namespace(capture: Capture) -> Iterator[Any]:
    def function(chain: Any, space: Any, x: torch.Tensor) -> Any:
        chain["new"] = x * chain["scale"]
        space.total = getattr(space, "total", 0) + chain["scale"]
        return chain["new"] + space.total

    call = capture(function)
    chain = collections.ChainMap({}, {"scale": 2})
    space = types.SimpleNamespace()
    for scale in (2, 3, 3):
        chain.maps[1]["scale"] = scale
        yield call(chain, space, tensor()), dict(chain), vars(space)


@scene
def an_lru_cache(capture: Capture) -> Iterator[Any]:
    made: list[Any] = []

    @functools.lru_cache(maxsize=None)
    def table(size: int) -> list[int]:
        made.append(size)
        return list(range(size))

    def function(x: torch.Tensor) -> Any:
        return x + table(x.shape[0])[-1]

    call = capture(function)
    for size in (2, 3, 2, 3):
        yield call(tensor(size, 2)), list(made)
    table.cache_clear()
    yield call(tensor(2, 2)), list(made)


@scene
def a_cached_property(capture: Capture) -> Iterator[Any]:
    class Model:
        made = 0

        def __init__(self, scale: float) -> None:
            self.scale = scale

        @functools.cached_property
        def table(self) -> torch.Tensor:
            Model.made += 1
            return torch.ones(4) * self.scale

    def function(model: Model, x: torch.Tensor) -> Any:
        return x * model.table + model.table

    call = capture(function)
    model = Model(2.0)
    for step in range(3):
        yield call(model, tensor(seed=step)), Model.made, model.__dict__.get("table")
    del model.table
    model.scale = 3.0
    yield call(model, tensor()), Model.made


@scene
def a_module_attribute_changed_by_another_function(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode = "a"
            self.layers = nn.ModuleList([nn.Identity(), nn.ReLU()])
            self.config = types.SimpleNamespace(depth=2)

        def forward(self, x: torch.Tensor) -> Any:
            for layer in self.layers[: self.config.depth]:
                x = layer(x)
            return x + 1 if self.mode == "a" else x - 1

    model = Model()
    call = capture(model)
    yield call(tensor())
    model.mode = "b"
    yield call(tensor())
    model.config.depth = 1
    yield call(tensor())
    model.layers.insert(0, nn.Tanh())
    yield call(tensor())
    model.config = types.SimpleNamespace(depth=3)
    yield call(tensor())
    model.register_buffer("mode2", torch.ones(1))
    yield call(tensor())


@scene
def slots(capture: Capture) -> Iterator[Any]:
    class Slotted:
        __slots__ = ("x", "n", "late")

        def __init__(self, x: torch.Tensor) -> None:
            self.x, self.n = x, 0

    def function(box: Any, y: torch.Tensor) -> Any:
        box.n += 1
        box.x = box.x + y
        if not hasattr(box, "late"):
            box.late = [y]
        else:
            box.late.append(box.n)
        return box.x

    call, box = capture(function), Slotted(tensor())
    for step in range(3):
        yield call(box, tensor(seed=step)), box.n, box.x, list(box.late)
    del box.late
    yield call(box, tensor()), box.late


@scene
def an_attribute_that_is_deleted(capture: Capture) -> Iterator[Any]:
    def function(box: Any, x: torch.Tensor) -> Any:
        if hasattr(box, "once"):
            del box.once
            return x + 1
        box.twice = 1
        return x - 1

    call, box = capture(function), types.SimpleNamespace(once=1)
    for _ in range(3):
        yield call(box, tensor()), vars(box)
    box.once = 2
    yield call(box, tensor()), vars(box)


@scene
def sets_of_constants(capture: Capture) -> Iterator[Any]:
    def function(names: set[Any], x: torch.Tensor) -> Any:
        names.add("new")
        names.discard(1)
        return x + len(names), sorted(map(str, names))

    call = capture(function)
    names: set[Any] = {1, "a"}
    for _ in range(2):
        yield call(names, tensor()), set(names)
    names.add(1)
    yield call(names, tensor()), set(names)


@scene
def dict_order(capture: Capture) -> Iterator[Any]:
    def function(table: dict[str, Any]) -> Any:
        first = table.pop("a")
        table["a"] = first + 1
        table["z"] = 0
        return list(table.items()), next(iter(table))

    call = capture(function)
    for order in ("abc", "cba", "abc", "bac"):
        table: dict[str, Any] = {name: tensor(seed=ord(name)) for name in order}
        yield call(table), table


@scene
def an_object_equal_to_everything(capture: Capture) -> Iterator[Any]:
    class Equal:
        def __init__(self, n: int) -> None:
            self.n = n

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    def function(thing: Any, x: torch.Tensor) -> Any:
        return x + thing.n if thing == 3 else x

    call = capture(function)
    for n in (1, 2, 1):
        yield call(Equal(n), tensor())
    yield call(3, tensor())


@scene
def floats_that_compare_oddly(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, value: Any) -> Any:
        return x * value, str(value)

    call = capture(function)
    for value in (0.0, -0.0, 0, False, float("nan"), float("nan"), float("inf"), 1, True, 1.0):
        yield call(tensor(), value)


@scene
def functions_stored_and_called_later(capture: Capture) -> Iterator[Any]:
    registry: list[Any] = []

    def function(x: torch.Tensor, n: int) -> Any:
        y = x * n

        def later(z: torch.Tensor) -> Any:
            return y + z + n

        registry.append(later)
        return later

    call = capture(function)
    for n in (1, 2, 1):
        made = call(tensor(seed=n), n)
        yield made(torch.ones(3, 4)), made is registry[-1]
    for known in registry:
        yield known(tensor())


@scene
def an_argument_list_emptied_while_walked(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any]) -> Any:
        total = torch.zeros(3, 4)
        while items:
            total = total + items.pop()
        return total

    call = capture(function)
    for count in (2, 0, 3):
        items = [tensor(seed=seed) for seed in range(count)]
        yield call(items), items


@scene
def a_default_dict_filled_by_reading(capture: Capture) -> Iterator[Any]:
    def function(table: Any, x: torch.Tensor) -> Any:
        return x + sum(table[key] for key in ("a", "b"))

    call = capture(function)
    table: Any = defaultdict(int, a=1)
    yield call(table, tensor()), table
    table["b"] = 5
    yield call(table, tensor()), table
    table.default_factory = None
    del table["a"]
    yield outcome(call, table, tensor()), table


class Plain:
    def __init__(self, n: int = 0) -> None:
        self.n = n


@scene
def objects_compared_by_identity(capture: Capture) -> Iterator[Any]:
    def function(a: Any, b: Any, x: torch.Tensor) -> Any:
        a.n += 1
        return x + b.n, a is b, a == b, a in [b], {a: 1}.get(b)

    call = capture(function)
    for same in (False, True, False, True):
        a = Plain(1)
        b = a if same else Plain(1)
        yield call(a, b, tensor()), a.n, b.n


@scene
def a_dict_keyed_by_objects(capture: Capture) -> Iterator[Any]:
    table: dict[Any, Any] = {}

    def function(key: Any, x: torch.Tensor) -> Any:
        if key not in table:
            table[key] = len(table)
        return x + table[key], len(table)

    call = capture(function)
    keys = [Plain(), Plain(), nn.Identity(), nn.Identity(), Plain, torch.add]
    for key in [*keys, *reversed(keys)]:
        yield call(key, tensor())


@scene
def a_dict_keyed_by_tensors(capture: Capture) -> Iterator[Any]:
    state: Any = defaultdict(dict)

    def function(p: torch.Tensor) -> Any:
        known = state[p]
        known["step"] = known.get("step", 0) + 1
        return p * known["step"], len(state)

    call = capture(function)
    first, second = tensor(), tensor(seed=1)
    for p in (first, second, first, first, second):
        yield call(p)


@scene
def a_dict_keyed_by_tensors_that_is_asked(capture: Capture) -> Iterator[Any]:
    names: dict[Any, str] = {}

    def function(p: torch.Tensor) -> Any:
        return p * 2, names.get(p, "none"), p in names

    call = capture(function)
    first, second = tensor(), tensor(seed=1)
    yield call(first)
    names[first] = "first"
    yield call(first)
    yield call(second)
    names[second] = "second"
    yield call(second)


@scene
def an_optimizer_inside(capture: Capture) -> Iterator[Any]:
    p = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)

    def function(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = (p * x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = capture(function)
    for step in range(4):
        yield call(torch.arange(3.0) + step), p, p.grad


@scene
def a_set_of_objects(capture: Capture) -> Iterator[Any]:
    seen: set[Any] = set()

    def function(thing: Any, x: torch.Tensor) -> Any:
        new = thing not in seen
        seen.add(thing)
        return x + len(seen), new

    call = capture(function)
    things = [Plain(), Plain(), nn.Identity()]
    for thing in [*things, *things]:
        yield call(thing, tensor())


@scene
def an_attribute_that_is_another_object(capture: Capture) -> Iterator[Any]:
    def function(box: Any, x: torch.Tensor) -> Any:
        box.other.n += 1
        return x * box.n, box.other is box, box.other.n

    call = capture(function)
    for same in (False, True, False, True):
        box = Plain(3)
        box.other = box if same else Plain(3)  # type: ignore[attr-defined]
        yield call(box, tensor()), box.n


@scene
def modules_that_are_the_same(capture: Capture) -> Iterator[Any]:
    def function(first: Any, second: Any, x: torch.Tensor) -> Any:
        first.steps = getattr(first, "steps", 0) + 1
        return x + getattr(second, "steps", 0)

    call = capture(function)
    for same in (False, True, False, True):
        first = nn.Identity()
        yield call(first, first if same else nn.Identity(), tensor())


@scene
def functions_that_are_the_same(capture: Capture) -> Iterator[Any]:
    def function(first: Any, second: Any, x: torch.Tensor) -> Any:
        return first(x) + second(x), first is second

    call = capture(function)

    def made() -> Any:
        return lambda x: x + 1

    one, other = made(), made()
    yield call(one, other, tensor())
    yield call(one, one, tensor())
    yield call(other, one, tensor())


@scene
def a_function_registered_later(capture: Capture) -> Iterator[Any]:
    @functools.singledispatch
    def describe(value: Any) -> str:
        return "anything"

    def function(value: Any, x: torch.Tensor) -> Any:
        return x + 1, describe(value)

    call = capture(function)
    yield call(3, tensor())
    describe.register(int, lambda value: "int")
    yield call(3, tensor())
    yield call("text", tensor())
    describe.register(str, lambda value: "str")
    yield call("text", tensor())


@scene
def attributes_that_come_late(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x * getattr(self, "scale", 1.0) + (self.extra if hasattr(self, "extra") else 0)

    model = Model()
    call = capture(model)
    yield call(tensor())
    model.register_buffer("scale", torch.tensor(3.0))
    yield call(tensor())
    model.extra = nn.Parameter(torch.ones(4))
    yield call(tensor())
    del model.scale
    yield call(tensor())
    Model.scale = 5.0
    yield call(tensor())
    del model.extra
    Model.extra = property(lambda self: 100.0)
    yield call(tensor())


@scene
def special_methods_replaced(capture: Capture) -> Iterator[Any]:
    class Number:
        def __init__(self, n: int) -> None:
            self.n = n

        def __add__(self, other: Any) -> Any:
            return self.n + other

        def __len__(self) -> int:
            return self.n

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.n

        def __enter__(self) -> int:
            return self.n

        def __exit__(self, *error: object) -> None:
            self.n += 1

    def function(number: Any, x: torch.Tensor) -> Any:
        with number as n:
            y = number(x) + n
        return y, number + 1, len(number), Number(7).n

    call = capture(function)
    number = Number(2)
    yield call(number, tensor())
    Number.__add__ = lambda self, other: 1000
    yield call(number, tensor())
    Number.__len__ = lambda self: 5
    yield call(number, tensor())
    Number.__call__ = lambda self, x: x
    yield call(number, tensor())
    Number.__enter__ = lambda self: -1
    yield call(number, tensor())
    Number.__init__ = lambda self, n: setattr(self, "n", n * 10)
    yield call(number, tensor())


@scene
def descriptors_replaced(capture: Capture) -> Iterator[Any]:
    class Constant:
        def __init__(self, value: int) -> None:
            self.value = value

        def __get__(self, owner: Any, kind: Any = None) -> int:
            return self.value

    class Model:
        size = Constant(3)

    def function(model: Any, x: torch.Tensor) -> Any:
        return x + model.size

    call = capture(function)
    model = Model()
    yield call(model, tensor())
    vars(Model)["size"].value = 4
    yield call(model, tensor())
    Model.size = Constant(9)  # type: ignore[assignment]
    yield call(model, tensor())
    Model.size = 1  # type: ignore[assignment]
    yield call(model, tensor())


@scene
def environment_and_modules(capture: Capture) -> Iterator[Any]:
    import math
    import os

    def function(x: torch.Tensor) -> Any:
        return x * float(os.environ.get("TORCHREPRO_SCENE", "1")) + settings.offset + math.pi

    settings = types.ModuleType("settings")
    settings.offset = 1  # type: ignore[attr-defined]
    call = capture(function)
    os.environ.pop("TORCHREPRO_SCENE", None)
    yield call(tensor())
    os.environ["TORCHREPRO_SCENE"] = "2"
    yield call(tensor())
    settings.offset = 5  # type: ignore[attr-defined]
    yield call(tensor())
    del os.environ["TORCHREPRO_SCENE"]
    yield call(tensor())


@scene
def code_replaced_between_calls(capture: Capture) -> Iterator[Any]:
    def helper(x: torch.Tensor) -> Any:
        return x + 1

    def function(x: torch.Tensor) -> Any:
        return helper(x) * 2

    call = capture(function)
    yield call(tensor())
    helper.__code__ = (lambda x: x - 1).__code__
    yield call(tensor())
    helper.__defaults__ = (tensor(seed=5),)
    yield call(tensor())


@scene
def an_enum_and_a_named_tuple(capture: Capture) -> Iterator[Any]:
    import enum

    class Mode(enum.Enum):
        UP = 1
        DOWN = 2

    Point = collections.namedtuple("Point", "x n")

    def function(mode: Mode, point: Any) -> Any:
        sign = 1 if mode is Mode.UP else -1
        return point._replace(x=point.x * sign), {mode: point.n}, mode

    call = capture(function)
    for mode in (Mode.UP, Mode.DOWN, Mode.UP):
        for n in (1, 2):
            yield call(mode, Point(tensor(), n))
