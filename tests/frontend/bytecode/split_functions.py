"""Functions that are split at every instruction, in addition to the features of `interpreter/language.py`.

Plain Python 3.11: what needs arguments, free variables or a corner of the frame. Results are data.

A case takes a list for its side effects and returns the function with its arguments, made anew on every call.
"""

# ruff: noqa: B007, C408, C416, F821, PIE800, PIE804, RET504, RUF021, UP008, UP031
# The roundabout way to say a thing has its own instructions, and that is what is tested here.

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

Case = Callable[[list[Any]], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
CASES: dict[str, Case] = {}
COUNTER = 0


def case(*args: Any, **kwargs: Any) -> Callable[[Callable[[list[Any]], Any]], Case]:
    """Registers a maker of a function; the function is called with these arguments."""

    def register(make: Callable[[list[Any]], Any]) -> Case:
        def fresh(seen: list[Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
            return make(seen), args, dict(kwargs)

        name = make.__name__
        while name in CASES:
            name += "_again"
        CASES[name] = fresh
        return make

    return register


class Noted:
    """A context manager that notes what happens to it."""

    def __init__(self, seen: list[Any], name: str, suppress: bool = False) -> None:
        self.seen, self.name, self.suppress = seen, name, suppress

    def __enter__(self) -> str:
        self.seen.append(("enter", self.name))
        return self.name.upper()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.seen.append(("exit", self.name, kind and kind.__name__, str(error)))
        return self.suppress


def fail(text: str) -> None:
    raise ValueError(text)


@case(2, 3)
def nested_calls(seen):
    def g(a, b=1, *rest, key=0, **more):
        seen.append((a, b, rest, key, more))
        return a + b + key + sum(rest)

    def f(x, y):
        return g(g(x, g(y)), g(1, 2, 3, key=g(4)), *[1, 2], key=g(x, b=y), other=x)

    return f


@case(1, 2, 3, k=4, z=5)
@case(1, z=0)
def star_arguments(seen):
    def g(*args, **kwargs):
        return args, sorted(kwargs.items())

    def f(a, *rest, k=9, **more):
        first = g(*rest, **more)
        second = g(a, *rest, *[1, 2], k=k, **more, **{"q": 1})
        return first, second, rest, k, more

    return f


@case([1, 2, 3])
def closures_in_a_loop(seen):
    def f(values):
        made = []
        for v in values:
            made.append(lambda w, v=v: (v, w, values))
        late = [lambda: v for _ in values]
        return [m(1) for m in made], [one() for one in late]

    return f


@case("a")
def one_with(seen):
    def f(name):
        with Noted(seen, name) as got:
            seen.append(got)
            result = got + "!"
        return result

    return f


@case("a", "b")
def several_withs(seen):
    def f(first, second):
        with Noted(seen, first) as x, Noted(seen, second, suppress=True) as y:
            seen.append(x + y)
            fail("inside")
        with Noted(seen, "c"):
            for i in range(3):
                with Noted(seen, "d"):
                    if i == 1:
                        return x, y, i
        return None

    return f


@case()
def with_lets_exceptions_pass(seen):
    def f():
        with Noted(seen, "outer"), Noted(seen, "inner"):
            value = 3
            fail(f"got {value}")
        return value

    return f


@case(0)
@case(1)
@case(2)
def nested_try(seen):
    def f(n):
        try:
            try:
                if n == 0:
                    fail("zero")
                if n == 1:
                    raise KeyError("one")
                seen.append("fine")
            except KeyError as error:
                seen.append(repr(error))
                raise RuntimeError("again") from error
            finally:
                seen.append("inner")
        except ValueError:
            seen.append("value")
        finally:
            seen.append("outer")
        return n

    return f


@case(4)
def handler_goes_back_into_the_loop(seen):
    def f(n):
        left = n
        while True:
            try:
                if left > 1:
                    fail(str(left))
                return left, seen
            except ValueError as error:
                left -= 1
                seen.append(error.args)

    return f


@case([1, 2, 3])
def comprehension_over_its_own_name(seen):
    def f(x):
        y = [x for x in x]
        z = [x + 1 for x in y if (last := x)]
        return x, y, z, last

    return f


@case(2)
def comprehension_named_like_a_free_variable(seen):
    x, z = 7, 8

    def f(n):
        y = [x for x in range(n)]
        return x, y, (lambda: z)()

    return f


@case([3, 0, 2])
def exception_in_a_comprehension(seen):
    def f(values):
        v = "kept"
        try:
            return [1 / v for v in values]
        except ZeroDivisionError:
            seen.append(v)
        return [[1 / w for w in values] for v in values]

    return f


class Base:
    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, by: int) -> int:
        self.size += by
        return self.size

    @property
    def double(self) -> int:
        return 2 * self.size


class Derived(Base):
    def __init__(self, size: int) -> None:
        super().__init__(size + 1)
        self.extra = [size]

    def grow(self, by: int, *more: int) -> int:
        if by > 1:
            for one in more:
                super().grow(one)
        return super().grow(by) + super().double

    def captured(self, by: int) -> Any:
        def later() -> Any:
            return self.extra, by

        grown = super().grow(by)
        return grown, later()

    def replaced(self, other: Any) -> int:
        self = other
        result = super().grow(1)
        del self
        return result

    def deleted(self) -> Any:
        del self
        return super().double


@case(2, 3, 4)
@case(1)
def zero_argument_super(seen):
    return Derived(5).grow


@case(2)
def super_with_a_captured_self(seen):
    return Derived(5).captured


@case(Derived(1))
def super_with_another_self(seen):
    return lambda other: Derived.replaced(Derived(8), Derived(other.size))


@case()
def super_in_the_function(seen):
    class Sub(Base):
        def grow(self, by=1):
            total = by
            total += super().grow(by)
            return total, super(Sub, self).double, __class__ is Sub

    return Sub(3).grow


@case(9)
def super_after_self_is_replaced(seen):
    return Derived(2).replaced.__func__.__get__(Derived(2))


@case()
def super_after_self_is_deleted(seen):
    return Derived(2).deleted


@case(3.14159, "x")
def f_strings(seen):
    def f(number, text):
        width = 8
        return f"{number:.2f}|{text!r:>{width}}|{text!s}|{text!a}|{number=}" + "%s %d" % (text, number)

    return f


@case([1, [2, 3], {"k": 4, "rest": 5}, Base(6), "no", (1, 2, 3)])
def matching(seen):
    def f(values):
        out = []
        for value in values:
            match value:
                case 1 | 2:
                    out.append("small")
                case [first, *others] if others != [3]:
                    out.append(("list", first, others))
                case [first, second]:
                    out.append((first, second))
                case {"k": k, **more}:
                    out.append((k, more))
                case Base(size=size):
                    out.append(size)
                case other:
                    out.append(other)
        return out

    return f


@case(list(range(10)))
def slices(seen):
    def f(values):
        a, b = 2, 5
        copy = values[:]
        copy[a:b] = [0]
        copy[::3] = copy[::3]
        del copy[-2:]
        return values[a:b], values[a:], values[::-1], values[a:b:2], copy, values[-1]

    return f


@case([1, 2, 3, 4])
def unpacking(seen):
    def f(values):
        first, *middle, last = values
        (a, b), c = [first, last], middle
        x = y = a
        x, y, a = y + 1, x + 2, b
        merged = [*middle, *values], {*values, 9}, {**{"a": x}, "b": y}, (*middle,)
        head, (*tail,) = 0, values
        return first, middle, last, c, x, y, a, merged, head, tail

    return f


@case(3, 5)
@case(6, 5)
def chained_comparison(seen):
    def f(a, b):
        def value(v):
            seen.append(v)
            return v

        return 1 < value(a) <= value(b) != 7, not a < b > 2, a is not b, a in (1, 3), b not in [5]

    return f


@case(1)
def global_and_closure_writes(seen):
    box = 0

    def f(n):
        global COUNTER, FRESH
        nonlocal box
        COUNTER = n
        COUNTER += 1
        FRESH = COUNTER
        box = COUNTER + FRESH
        del FRESH
        seen.append(COUNTER)
        return box, "FRESH" in globals()

    return f


@case(1)
@case(0)
def deleted_variables(seen):
    def f(n):
        a = b = n
        del a
        cell = n

        def g():
            return cell

        if n:
            seen.append(g())
            del cell
            a = 2
        try:
            return a, b
        except UnboundLocalError as error:
            seen.append(str(error))
        try:
            g()
        except NameError as error:
            seen.append(str(error))
        del b
        return b

    return f


@case(4)
def maybe_unbound(seen):
    def f(n):
        for i in range(n):
            if i > 1:
                value = i
            if i > 2:
                seen.append(value)
        del i
        return value, i

    return f


@case(1, None)
@case(0, [])
def conditional_expressions(seen):
    def f(a, b):
        x = "yes" if a else "no"
        y = a and b or x
        z = b if b is not None else (a or "none")
        if not (a or b) or (a and b is None):
            seen.append(y)
        return x, y, z, a if a > 1 else b if b else "last", -a, ~a, +a, not b

    return f


@case([[1, 2], [3, -1], [5]])
def early_return_in_loops(seen):
    def f(rows):
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                if value < 0:
                    return i, j
                seen.append(value)
        return None

    return f


@case("deep")
def exceptions_passing_through(seen):
    def g(text):
        for _ in range(2):
            fail(text)

    def f(text):
        try:
            g(text + "er")
        finally:
            seen.append("left")
        return 1

    return f


@case()
def bare_reraise(seen):
    def f():
        for i in range(3):
            try:
                if i == 1:
                    fail("one")
            except ValueError:
                seen.append(i)
                raise

    return f


@case(2)
def frame_is_looked_into(seen):
    def f(n):
        a = [n]
        shared = 1

        def g():
            return shared

        names = sorted(locals())
        for a in (1, 2):
            names += [name for name in sorted(locals()) if name != "name"]
        seen.append(eval("n + a"))
        return names, locals()["shared"], g()

    return f


@case(3)
def keyword_only_calls(seen):
    def g(*, a, b=2):
        return a - b

    def f(n):
        return sorted([3, 1, n], key=lambda v: -v, reverse=False), g(a=g(a=n, b=n), b=n), dict(a=1, b=g(a=2))

    return f


@case(2)
def context_from_contextlib(seen):
    @contextlib.contextmanager
    def manager(name):
        seen.append(name)
        try:
            yield name
        finally:
            seen.append("closed")

    def f(n):
        for i in range(n):
            with manager(i) as got, contextlib.suppress(ValueError):
                fail(got)
        with manager("last"):
            return n

    return f


_LONG = compile(
    "def f(n):\n    total = 0\n    for i in range(1):\n        if i > n: break\n"
    + "\n".join(f"        total += n + {1000 + i}" for i in range(40))
    + "\n    return total\n",
    __file__,
    "exec",
)


@case(300)
def jumps_over_more_than_a_byte_can_count(seen):
    names: dict[str, Any] = {}
    exec(_LONG, names)
    return names["f"]
