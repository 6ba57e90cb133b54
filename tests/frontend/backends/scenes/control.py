"""Control flow across breaks: branches, `with`, `try`, loops, generators, variables of inner functions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tests.frontend.harness import Capture, outcome, scene, tensor


def say(*values: Any) -> None:
    """A break: what it does is not captured."""
    print(*values, end="", file=_Nowhere())


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)


@scene
def branches_taken_in_turn(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, log: list[str]) -> Any:
        y = x * 2
        if y.sum() > 0:
            log.append("up")
            y = y + 1
            if y.max() > 3:
                log.append("far")
                return y * 10
        else:
            log.append("down")
        log.append("end")
        return y - 1

    call = capture(function)
    for value in (1.0, -1.0, 2.0, -2.0, 0.1):
        log: list[str] = []
        yield call(torch.ones(2) * value, log), log


@scene
def a_while_loop_on_data(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        steps = 0
        while x.sum() < 100:
            x = x * 2 + steps
            steps += 1
            if steps > 20:
                break
        else:
            return x, steps, "far enough"
        return x, steps

    call = capture(function)
    for value in (1.0, 60.0, 3.0, -1.0):
        yield call(torch.ones(2) * value)


@scene
def with_blocks_across_breaks(capture: Capture) -> Iterator[Any]:
    log: list[str] = []

    class Noting:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> str:
            log.append(f"in {self.name}")
            return self.name

        def __exit__(self, *error: object) -> bool:
            log.append(f"out {self.name} {error[0].__name__ if error[0] else None}")
            return error[0] is ValueError

    def function(x: torch.Tensor, bad: bool) -> Any:
        with Noting("a") as first, torch.no_grad():
            y = x * 2
            with Noting("b"):
                say(y)
                z = y + 1
                if bad:
                    raise ValueError(first)
            say(z)
            y = z * 2
        return x * 3, y, first, torch.is_grad_enabled()

    call = capture(function)
    for bad in (False, True, False, True):
        log.clear()
        yield call(tensor().requires_grad_(), bad), list(log)


@scene
def modes_across_breaks(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
            say(y)
            z = y @ w
            with torch.no_grad():
                a = z * 2
                say(a)
                b = a + x
            c = b @ w
        return y, z, a, b, c, x @ w

    call = capture(function)
    for _ in range(2):
        yield call(tensor(4, 4).requires_grad_(), tensor(4, 4, seed=1))


@scene
def nonlocal_variables_across_breaks(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        total, seen = x, []

        def add(y: torch.Tensor) -> None:
            nonlocal total
            total = total + y
            seen.append(len(seen))

        add(x)
        say(total)
        add(total)
        say(seen)
        total = total * 2
        add(x)
        return total, seen, add.__closure__ is not None

    call = capture(function)
    for step in range(2):
        yield call(tensor(seed=step))


@scene
def returned_closures_share_what_they_close_over(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        count, total = 0, x

        def step(y: torch.Tensor) -> Any:
            nonlocal count, total
            count += 1
            total = total + y
            return total

        def read() -> Any:
            return count, total

        step(x)
        return step, read

    call = capture(function)
    for _ in range(2):
        step, read = call(tensor())
        yield read()
        step(torch.ones(3, 4))
        yield read()


@scene
def returned_bound_methods(capture: Capture) -> Iterator[Any]:
    class Box:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def add(self, y: torch.Tensor) -> torch.Tensor:
            self.x = self.x + y
            return self.x

    old = Box(tensor(seed=9))

    def function(x: torch.Tensor) -> Any:
        box = Box(x * 2)
        box.add(x)
        return box.add, old.add, [x].append

    call = capture(function)
    for _ in range(2):
        new_add, old_add, append = call(tensor())
        yield new_add(torch.ones(3, 4)), old_add(torch.ones(3, 4)), append.__self__, old.x


@scene
def returned_generators(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        def produce() -> Iterator[Any]:
            for n in range(3):
                yield x * n

        return produce(), (y + 1 for y in [x, x * 2]), map(torch.neg, [x]), zip([1, 2], [x, x]), iter([x, 1])

    call = capture(function)
    for _ in range(2):
        made = call(tensor())
        yield [list(each) for each in made]


@scene
def a_generator_as_an_argument(capture: Capture) -> Iterator[Any]:
    def function(items: Iterator[Any]) -> Any:
        first = next(items)
        total = first
        for item in items:
            total = total + item
            if len(total) > 100:
                break
        return first, total

    call = capture(function)
    for count in (1, 3, 2):
        source = (tensor(seed=n) for n in range(count))
        yield call(source), list(source)
    yield call(iter([tensor(), tensor(seed=1)]))
    numbers = itertools.count()
    yield next(numbers), call(itertools.islice(map(float, numbers), 3)), next(numbers)
    yield outcome(call, iter([]))


@scene
def an_iterator_partly_used(capture: Capture) -> Iterator[Any]:
    def function(items: Any, x: torch.Tensor) -> Any:
        return x + next(items), next(items)

    call = capture(function)
    items = iter([1, 2, 3, 4, 5, 6])
    yield call(items, tensor()), next(items)
    yield call(items, tensor()), list(items)
    pairs = enumerate("abcd")
    yield outcome(call, pairs, tensor())[0], next(pairs)
    table = iter({"a": 1, "b": 2, "c": 3}.values())
    yield call(table, tensor()), list(table)


@scene
def generators_across_breaks(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        def produce() -> Iterator[Any]:
            y = x
            try:
                for n in range(4):
                    y = y + n
                    received = yield y
                    if received:
                        y = y * received
            finally:
                log.append("closed")

        log: list[str] = []
        source = produce()
        first = next(source)
        say(first)
        second = source.send(3)
        say(second)
        rest = [item.sum() for item in source]
        return first, second, rest, log

    call = capture(function)
    for step in range(2):
        yield call(tensor(seed=step))


@scene
def loops_over_iterators_with_breaks_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        out = []
        for index, (name, value) in enumerate(zip("abc", [x, x + 1, x + 2])):
            if index == 1:
                say(name)
            out.append((name, value * index))
        for key, value in {"p": 1, "q": 2}.items():
            say(key)
            out.append((key, x + value))
        for n in reversed([1, 2, 3]):
            say(n)
            if n == 2:
                continue
            x = x + n
        return out, x, [say(n) or n * 2 for n in range(3)], {n: x + n for n in range(2) if say(n) is None}

    call = capture(function)
    for step in range(2):
        yield call(tensor(seed=step))


@scene
def try_blocks_around_failing_operations(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, log: list[Any]) -> Any:
        try:
            x = x + 1
            y = x[10]
            log.append("not here")
        except IndexError as error:
            log.append(str(error))
            y = x * 2
        else:
            log.append("nor here")
        finally:
            log.append("finally")
        try:
            z = torch.cat([x, x[:, :2]])
        except RuntimeError:
            log.append("cat")
            z = x
        try:
            {}["k"]
        except (KeyError, ValueError) as error:
            log.append(repr(error))
        try:
            try:
                x.no_such_attribute
            except AttributeError as error:
                raise TypeError("outer") from error
        except TypeError as error:
            log.append((str(error), type(error.__cause__).__name__))
        return y, z

    call = capture(function)
    for _ in range(2):
        log: list[Any] = []
        yield call(tensor(), log), log


@scene
def errors_that_depend_on_the_data(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, log: list[str]) -> Any:
        log.append("begin")
        try:
            doubled = table * 2
            log.append("try")
            found = F.embedding(index, doubled)
            log.append("found")
            return found
        except IndexError:
            log.append("caught")
            return table.sum()

    call = capture(function)
    for number in (1, 2, 99, 1, 99):
        log: list[str] = []
        yield call(torch.tensor([0, number]), tensor(4, 2), log), log


@scene
def a_data_dependent_error_after_a_write(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, counts: torch.Tensor) -> Any:
        try:
            counts.add_(1)
            return F.embedding(index, table)
        except IndexError:
            return counts * 100

    call = capture(function)
    for number in (1, 99, 1, 99):
        counts = torch.zeros(2)
        yield call(torch.tensor([0, number]), tensor(4, 2), counts), counts


@scene
def a_data_dependent_error_that_goes_to_the_caller(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, log: list[str]) -> Any:
        log.append("begin")
        found = F.embedding(index, table)
        log.append("end")
        return found

    call = capture(function)
    for number in (1, 99, 1):
        log: list[str] = []
        kind, value = outcome(call, torch.tensor([0, number]), tensor(4, 2), log)
        yield kind, type(value), log


@scene
def a_finally_block_after_a_data_dependent_error(capture: Capture) -> Iterator[Any]:
    def function(index: torch.Tensor, table: torch.Tensor, log: list[str]) -> Any:
        try:
            return F.embedding(index, table)
        finally:
            log.append("closed")

    call = capture(function)
    for number in (1, 99, 1):
        log: list[str] = []
        kind, value = outcome(call, torch.tensor([0, number]), tensor(4, 2), log)
        yield kind, type(value), log


@scene
def a_data_dependent_error_in_a_called_function(capture: Capture) -> Iterator[Any]:
    def look(index: torch.Tensor, table: torch.Tensor) -> Any:
        return F.embedding(index, table)

    def function(index: torch.Tensor, table: torch.Tensor) -> Any:
        try:
            first = look(index, table)
        except IndexError:
            first = table[:2]
        with contextlib.suppress(IndexError):
            return look(index + 1, first), "both"
        return first, "one"

    call = capture(function)
    for number in (0, 1, 3, 99):
        yield call(torch.tensor([0, number]), tensor(4, 2))


@scene
def errors_raised_by_the_user(capture: Capture) -> Iterator[Any]:
    class Odd(Exception):
        pass

    def function(x: torch.Tensor, box: dict[str, Any], bad: int) -> Any:
        box["n"] = box.get("n", 0) + 1
        x.add_(1)
        if bad == 1:
            raise Odd("one", x.shape)
        if bad == 2:
            assert x.shape[0] == 99, f"wrong {x.shape[0]}"
        if bad == 3:
            return box["missing"]
        if bad == 4:
            return x.sum().item() / 0
        return x

    call = capture(function)
    box: dict[str, Any] = {}
    for bad in (0, 1, 2, 3, 4, 0, 1):
        x = tensor()
        yield outcome(call, x, box, bad), x, dict(box)


@scene
def exceptions_and_loops(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, bad: set[int]) -> Any:
        done = []
        for n in range(4):
            try:
                if n in bad:
                    raise ValueError(n)
                x = x + n
                if n == 2:
                    continue
            except ValueError as error:
                done.append(("bad", error.args))
                say(n)
                if n == 3:
                    break
            finally:
                done.append(n)
        else:
            done.append("all")
        return x, done

    call = capture(function)
    for bad in (set(), {1}, {3}, {0, 2}, {1, 3}):
        yield call(tensor(), bad)


@scene
def return_from_finally(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, how: int) -> Any:
        for n in range(3):
            try:
                if how == 0:
                    return x + n
                if how == 1:
                    raise ValueError
                if how == 2:
                    say(n)
            finally:
                x = x * 2
                if how == 1:
                    return x, "swallowed"
        return x, "end"

    call = capture(function)
    for how in (0, 1, 2, 0):
        yield call(tensor(), how)


@scene
def arguments_in_every_way(capture: Capture) -> Iterator[Any]:
    def inner(a: Any, /, b: Any = 2, *rest: Any, c: Any, d: Any = 4, **more: Any) -> Any:
        return a, b, rest, c, d, list(more.items())

    def function(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        order = []

        def note(value: Any) -> Any:
            order.append(value)
            return value

        result = inner(note(1), *args, c=note(2), **kwargs, z=note(3))
        say(order)
        return result, inner(x, *(), c=x, **{"y": x}), order

    call = capture(function)
    yield call(tensor())
    yield call(tensor(), 5, 6, 7, d=8, e=9)
    yield call(tensor(), e=1, d=2)
    yield call(tensor(), d=2, e=1)
    yield outcome(call, tensor(), c=3)[0]
    yield outcome(call)[0]


@scene
def recursion(capture: Capture) -> Iterator[Any]:
    def tree(x: torch.Tensor, depth: int) -> Any:
        if depth == 0:
            return x
        say(depth)
        return tree(x + 1, depth - 1) + tree(x * 2, depth - 1)

    def flat(x: torch.Tensor, depth: int) -> Any:
        return x if depth == 0 else flat(x + depth, depth - 1)

    call, other = capture(tree), capture(flat)
    yield call(tensor(), 3)
    yield other(tensor(), 10)
    yield other(tensor(), 40)


@scene
def traced_functions_that_call_traced_functions(capture: Capture) -> Iterator[Any]:
    @capture
    def inner(x: torch.Tensor, n: int) -> Any:
        say(n)
        return x * n

    @capture
    def outer(x: torch.Tensor) -> Any:
        y = inner(x, 2)
        say(y)
        return inner(y, 3) + x

    for step in range(2):
        yield outer(tensor(seed=step))


@scene
def names_that_are_deleted_or_unbound(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, how: int) -> Any:
        if how > 0:
            y = x + how
        say(how)
        if how == 2:
            del y
        try:
            return y * 2
        except UnboundLocalError as error:
            return str(error)

    call = capture(function)
    for how in (0, 1, 2, 0, 1):
        yield call(tensor(), how)


@scene
def comprehensions_that_close_over_names(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        calls = [lambda y, n=n: y * n + len(calls) for n in range(3)]
        late = [lambda: m for m in range(3)]
        say(calls)
        return [call(x) for call in calls], [each() for each in late], [(b := a) for a in [1, 2]], b

    call = capture(function)
    for _ in range(2):
        yield call(tensor())


@scene
def star_imports_of_values(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any]) -> Any:
        first, *middle, last = items
        (a, b), *_ = [(first, last)]
        say(middle)
        merged = [*middle, first, *[last]]
        return a, b, merged, {**{"k": first}, "l": last}, max(len(middle), 1)

    call = capture(function)
    for count in (2, 3, 5):
        yield call([tensor(seed=n) for n in range(count)])


@scene
def identity_of_containers_across_breaks(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, given: list[Any]) -> Any:
        new = [x]
        pair = (new, new)
        table = {"new": new, "given": given, "self": None}
        table["self"] = table
        say(pair)
        new.append(x + 1)
        given.append(new)
        say(table["new"])
        return pair[0] is new, table["self"] is table, table["given"] is given, pair, given

    call = capture(function)
    for _ in range(2):
        given: list[Any] = []
        yield call(tensor(), given), len(given)


@scene
def objects_made_across_breaks(capture: Capture) -> Iterator[Any]:
    class Node:
        def __init__(self, value: torch.Tensor, parent: Any = None) -> None:
            self.value, self.parent, self.children = value, parent, []
            if parent is not None:
                parent.children.append(self)

    def function(x: torch.Tensor) -> Any:
        root = Node(x)
        left = Node(x + 1, root)
        say(left)
        right = Node(x * 2, root)
        left.value = left.value + right.value
        say(root)
        return root, left.parent is root, [child.value for child in root.children]

    call = capture(function)
    for _ in range(2):
        root, same, values = call(tensor())
        yield same, values, root.children[0].parent is root


@scene
def short_circuits_on_data(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = (x > 0) and (y > 0)
        b = (x > 0) or y
        c = x if x > y else y
        d = not (x > y)
        return a, b, c, d, 0 < x < 2, min(x, y), max([x, y])

    call = capture(function)
    for first, second in ((1.0, 2.0), (-1.0, 2.0), (3.0, 1.0), (-1.0, -2.0)):
        yield call(torch.tensor(first), torch.tensor(second))


@scene
def matching_across_breaks(capture: Capture) -> Iterator[Any]:
    def function(command: Any, x: torch.Tensor) -> Any:
        match command:
            case {"op": "add", "by": by, **rest}:
                say(by)
                return x + by, rest
            case ["mul", *factors] if factors:
                for factor in factors:
                    say(factor)
                    x = x * factor
                return x
            case (a, b) | (a, b, _):
                return x + a - b
            case str(name):
                return name, x
            case _:
                return None

    call = capture(function)
    for command in ({"op": "add", "by": 2, "k": 3}, ["mul", 2, 3], (1, 2), (1, 2, 3), "text", 5, ["mul"]):
        yield call(command, tensor())
