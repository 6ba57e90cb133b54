"""Functions for the features of the language, run natively and stepped. Runs on a bare Python."""

# Written for what they make the compiler do, not for style.
# ruff: noqa: B016, B018, B023, B030, B904, C416, E501, E741, F821, PIE800, PIE804, RET503, RUF012, RUF059, SIM905, UP008

from __future__ import annotations

import contextlib
import functools
import sys
import textwrap
from collections import ChainMap, OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.frontend.interpreter.plain import PlainInterpreter

FEATURES: dict[str, Callable[[], Any]] = {}


def feature(function: Callable[[], Any]) -> Callable[[], Any]:
    FEATURES[function.__name__] = function
    return function


def native(function: Callable[[], Any]) -> Any:
    return function()


def stepped(function: Callable[[], Any]) -> Any:
    return PlainInterpreter().calls.call(function, (), {})


def observed(function: Callable[[], Any], run: Callable[[Callable[[], Any]], Any]) -> Any:
    """What a function returns, or all that can be told of what it raises."""
    try:
        return "returned", run(function)
    except BaseException as error:
        return "raised", told(error)


def told(error: BaseException | None) -> Any:
    if error is None:
        return None
    inner = tuple(map(told, error.exceptions)) if isinstance(error, BaseExceptionGroup) else ()
    cause, context = told(error.__cause__), told(error.__context__)
    return type(error).__qualname__, str(error), inner, cause, context, error.__suppress_context__


class Log(list):
    """A context manager that notes what happens to it."""

    def __init__(self, swallow: bool = False) -> None:
        self.swallow = swallow

    def __enter__(self) -> Log:
        self.append("enter")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.append(("exit", kind, str(error), traceback is not None))
        return self.swallow


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


COUNTER = 0


# Arithmetic, names, control flow


@feature
def operators() -> Any:
    a, b, s = 7, 2, {1, 2}
    results = [
        a + b,
        a - b,
        a * b,
        a / b,
        a // b,
        a % b,
        a**b,
        a << b,
        a >> b,
        a & b,
        a | b,
        a ^ b,
        -a,
        +a,
        ~a,
    ]
    results += [a < b, a <= b, a == b, a != b, a > b, a >= b, not a, a is b, a is not b, a in s, a not in s]
    a += 1
    a -= 2
    a *= 3
    a /= 4
    a //= 1
    a **= 2
    a %= 5
    c = 6
    c <<= 2
    c >>= 1
    c &= 14
    c |= 1
    c ^= 3
    return results, a, c, 1 < b < 3, 1 < b > 3


@feature
def matrix_multiplication() -> Any:
    class Matrix:
        def __matmul__(self, other: Any) -> Any:
            return "matmul", other

        def __imatmul__(self, other: Any) -> Any:
            return "imatmul", other

    first = Matrix() @ 1
    second = Matrix()
    second @= 2
    return first, second


@feature
def short_circuits() -> Any:
    seen: list[Any] = []

    def note(value: Any) -> Any:
        seen.append(value)
        return value

    answers = [note(0) and note(1), note(2) or note(3), note(0) or note(4), note(5) if note(6) else note(7)]
    return answers, seen


@feature
def loops() -> Any:
    found = []
    for i in range(10):
        if i == 2:
            continue
        if i == 6:
            break
        found.append(i)
    else:
        found.append("never")
    while found:
        if found.pop() == 1:
            break
    else:
        found.append("empty")
    for _ in ():
        pass
    else:
        found.append("else")
    return found


@feature
def walrus() -> Any:
    return [y for x in range(5) if (y := x * x) > 3], y, (z := 3) + z


@feature
def globals_are_read_and_written() -> Any:
    global COUNTER
    before = COUNTER
    COUNTER = before + 1
    after = COUNTER
    COUNTER = before
    return after - before


@feature
def a_deleted_global_is_gone() -> Any:
    global TEMPORARY
    TEMPORARY = 1
    value = TEMPORARY
    del TEMPORARY
    return value, "TEMPORARY" in globals()


@feature
def an_unbound_free_variable() -> Any:
    def inner() -> Any:
        return later

    if not inner:
        later = 1
    return inner()


@feature
def an_unbound_cell_variable() -> Any:
    x = 1

    def inner() -> Any:
        return x

    del x
    return x, inner


@feature
def attributes_and_items() -> Any:
    class Thing:
        pass

    thing = Thing()
    thing.name = "n"
    thing.other = thing.name + "m"
    del thing.name
    items = {"a": 1, "b": [1, 2, 3, 4]}
    items["c"] = items["a"]
    del items["a"]
    items["b"][1:3] = ["x", "y", "z"]
    items["b"][0] += 5
    del items["b"][-1:]
    return vars(thing), items, items["b"][1:], items["b"][::2], items["b"][:2], hasattr(thing, "name")


@feature
def a_missing_attribute() -> Any:
    return Point(1, 2).z


@feature
def a_missing_key() -> Any:
    return {"a": 1}["b"]


@feature
def an_assertion() -> Any:
    value = 1
    assert value == 2, f"value is {value}"


@feature
def strings() -> Any:
    value, width = 3.14159, 10
    name = "é"
    return (
        f"{value}|{value:.2f}|{value!r:>{width}}|{name!s}|{name!a}|{value=}|{'nested ' + f'{width}'}|{{}}",
        f"{Point.__name__:*^20}",
        f"{width:d}{''}",
    )


# Collections


@feature
def displays() -> Any:
    a, m = [1, 2], {"k": 1}
    return [*a, 3, *a], (*a, *"xy"), {*a, 5}, {**m, "z": 2, **{"k": 3}}, {"a": 1, "b": 2}, [], (), {}, set()


@feature
def unpacking() -> Any:
    a, b = 1, 2
    a, b = b, a
    (c, [d, e]), f = (1, "xy"), {3}
    g, *h, i = range(5)
    *j, k = iter("abc")
    l, *m = (1,)
    return a, b, c, d, e, f, g, h, i, j, k, l, m


@feature
def unpacking_takes_no_more_than_it_needs() -> Any:
    source = iter(range(10))
    complaint = None
    try:
        a, b = source
    except ValueError as error:
        complaint = str(error)
    return complaint, next(source)


@feature
def unpacking_too_few() -> Any:
    a, b, c = [1, 2]
    return a, b, c


@feature
def unpacking_too_few_for_a_star() -> Any:
    a, *b, c, d = iter([1, 2])
    return a, b, c, d


@feature
def unpacking_a_number() -> Any:
    a, b = 3
    return a, b


@feature
def spreading_a_number() -> Any:
    return [*3]


@feature
def spreading_a_list_as_a_mapping() -> Any:
    return {**[1]}


@feature
def comprehensions() -> Any:
    x = "outer"
    rows = [[i * j for j in range(3)] for i in range(3) if i]
    table = {str(i): i for i in range(3)}
    odd = {i % 2 for i in range(5)}
    lazy = sum(i for row in rows for i in row)
    functions = [lambda: x for x in range(3)]
    return rows, table, odd, lazy, [f() for f in functions], x


@feature
def a_comprehension_keeps_the_cell_of_its_variable() -> Any:
    x = 10

    def outer() -> int:
        return x

    squares = [(lambda: x * x)() for x in range(3)]
    plain = [x for x in range(2)]
    x += 1
    return outer(), squares, plain, x


@feature
def a_comprehension_that_raises_leaves_its_variable_alone() -> Any:
    x = "kept"
    try:
        [1 // x for x in (1, 0)]
    except ZeroDivisionError:
        return x


# Functions


def _signature(a: Any, b: Any = 2, /, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **more: Any) -> Any:
    return a, b, c, rest, d, e, more


@feature
def arguments() -> Any:
    args, kwargs = (1, 2), {"d": 4, "z": 6}
    return (
        _signature(1, d=4),
        _signature(1, 2, 3, 4, 5, d=6, e=7, b=8),
        _signature(*args, **kwargs),
        _signature(0, *args, c1=1, **kwargs),
        _signature(*iter("abcd"), *"e", d=1, **{"x": 1}, **{"y": 2}),
        dict(a=1, **{"b": 2}),
        max(*args),
    )


def _complaint(call: Callable[[], Any]) -> str:
    try:
        return call()
    except TypeError as error:
        return str(error)


@feature
def wrong_arguments() -> Any:
    def f(a: Any, b: Any, /, c: Any, *, d: Any, e: Any = 1) -> Any:
        return None

    def g() -> Any:
        return None

    return [
        _complaint(call)
        for call in (
            lambda: f(),
            lambda: f(1),
            lambda: f(1, 2, 3),
            lambda: f(1, 2, 3, 4, d=1),
            lambda: f(1, 2, c=3, d=4, x=5),
            lambda: f(1, 2, 3, c=3, d=4),
            lambda: f(a=1, b=2, c=3, d=4),
            lambda: g(1),
            lambda: g(x=1),
            lambda: g(*3),
            lambda: g(**3),
            lambda: g(**{1: 2}),
            lambda: f(**{"c": 1}, **{"c": 2}),
            lambda: len(*3),
        )
    ]


@feature
def defaults_annotations_and_names() -> Any:
    def make(n: int) -> Any:
        def inner(a: int, b: str = "b", *, c: float = n) -> None:
            """Doc."""

        return inner

    f = make(3)
    return (
        f.__defaults__,
        f.__kwdefaults__,
        f.__annotations__,
        f.__name__,
        f.__qualname__,
        f.__doc__,
        f.__module__,
    )


@feature
def closures_share_their_variables() -> Any:
    count = 0

    def increment() -> int:
        nonlocal count
        count += 1
        return count

    increment()
    increment()
    return count, increment.__closure__[0].cell_contents


@feature
def decorators() -> Any:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return inner

    @twice
    @functools.lru_cache
    def f(x: int) -> int:
        return x + 1

    return f(3), f(3), f.__name__


@feature
def recursion() -> Any:
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth(n - 1)

    return depth(50)


@feature
def functions_passed_to_builtins() -> Any:
    def negative(x: int) -> int:
        return -x

    return (
        sorted([1, 3, 2], key=negative),
        list(map(negative, (1, 2))),
        functools.reduce(lambda a, b: a * b, [1, 2, 3]),
    )


@feature
def partial_and_methods() -> Any:
    add = functools.partial(lambda a, b: a + b, 1)
    append = [].append
    append(1)
    return add(2), append.__self__, "a,b".split(","), str.upper("x"), int("7"), dict.fromkeys("ab")


@feature
def what_the_frame_says_of_itself() -> Any:
    a, b = 1, 2

    def inner() -> Any:
        c = b
        return sorted(locals()), sorted(vars()), dir(), eval("b + c")

    space: dict[str, Any] = {}
    exec("x = a + 1", None, space)
    return inner(), a, space, globals() is sys.modules[__name__].__dict__, eval("a"), "a" in locals()


@feature
def code_is_compiled_with_the_futures_of_the_function() -> Any:
    space: dict[str, Any] = {}
    exec("x: int = 1", space)
    return space["__annotations__"]


@feature
def a_type_made_by_a_call_knows_its_module() -> Any:
    return type("T", (), {}).__module__


# Classes


@feature
def classes() -> Any:
    class Base:
        kind = "base"
        registry: list[str] = []

        def __init_subclass__(cls, /, tag: str = "", **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            cls.registry.append((cls.__name__, tag))

        def __init__(self, x: Any) -> None:
            self.x = x

        @property
        def double(self) -> Any:
            return self.x * 2

        @classmethod
        def make(cls) -> Any:
            return cls(5)

        @staticmethod
        def plain(a: Any) -> Any:
            return a

        def greet(self) -> str:
            return f"base {self.x}"

    class Child(Base, tag="t"):
        kind = Base.kind + "/child"

        def greet(self) -> str:
            hidden = super()
            return "child " + super().greet() + hidden.greet() + __class__.__name__

        @classmethod
        def make(cls) -> Any:
            return super().make()

    child = Child.make()
    return (
        child.double,
        child.greet(),
        Child.kind,
        Base.registry,
        Child.plain(1),
        Child.__qualname__,
        Child.__module__,
    )


@feature
def metaclasses() -> Any:
    class Meta(type):
        @classmethod
        def __prepare__(mcs, name: str, bases: Any, **kwargs: Any) -> Any:
            return OrderedDict(prepared=True)

        def __new__(mcs, name: str, bases: Any, namespace: Any, **kwargs: Any) -> Any:
            cls = super().__new__(mcs, name, bases, dict(namespace))
            cls.order = [key for key in namespace if not key.startswith("__")]
            cls.keywords = kwargs
            return cls

        def __init__(cls, name: str, bases: Any, namespace: Any, **kwargs: Any) -> None:
            super().__init__(name, bases, namespace)

    class A(metaclass=Meta, flag=1):
        b = 1
        a = 2

        def m(self) -> Any:
            return __class__

    class B(A):
        pass

    return A.order, A.keywords, A.prepared, type(B).__name__, B().m() is A


@feature
def bases_that_are_no_classes() -> Any:
    class Entry:
        def __mro_entries__(self, bases: Any) -> Any:
            return (dict,)

    class C(Entry()):
        pass

    return C.__mro__[1:], len(C.__orig_bases__)


@feature
def a_metaclass_that_loses_the_class_cell() -> Any:
    class Meta(type):
        def __new__(mcs, name: str, bases: Any, namespace: Any) -> Any:
            namespace.pop("__classcell__", None)
            return super().__new__(mcs, name, bases, namespace)

    try:

        class A(metaclass=Meta):
            def m(self) -> Any:
                return __class__
    except RuntimeError as error:
        return "not set" in str(error)


@feature
def conflicting_metaclasses() -> Any:
    class M1(type):
        pass

    class M2(type):
        pass

    class A(metaclass=M1):
        pass

    class B(metaclass=M2):
        pass

    class C(A, B):
        pass


@feature
def a_class_body_sees_its_own_names_first() -> Any:
    x = "function"

    class C:
        outer = x
        before = 1
        after = before + 1
        inner = [x for _ in range(1)]
        print = "own"
        named = print

        def method(self) -> Any:
            return x

        del before

    return C.after, C.inner, C.outer, C.named, C().method(), hasattr(C, "before")


@feature
def super_without_a_class() -> Any:
    def f(self: Any) -> Any:
        return super()

    return f(1)


@feature
def super_without_arguments_to_take() -> Any:
    class C:
        def f() -> Any:
            return __class__, super()

    return C.f()


@feature
def super_where_self_is_shared() -> Any:
    class A:
        def f(self) -> Any:
            return 1

    class B(A):
        def f(self) -> Any:
            def inner() -> Any:
                return self

            return super().f(), inner() is self, super(B, self).f()

    return B().f()


@feature
def dataclasses_and_tuples() -> Any:
    @dataclass(order=True)
    class D:
        x: int
        y: list[int] = field(default_factory=list)

    Pair = namedtuple("Pair", "a b")
    pair = Pair(1, b=2)
    return D(1) < D(2), repr(D(1, [2])).split(".")[-1], pair._replace(a=3), pair.b


@feature
def operators_of_the_user() -> Any:
    class Number:
        def __init__(self, value: int) -> None:
            self.value = value

        def __add__(self, other: Any) -> Any:
            return Number(self.value + other.value) if isinstance(other, Number) else NotImplemented

        def __radd__(self, other: Any) -> Any:
            return Number(self.value + other)

        def __iadd__(self, other: Any) -> Any:
            self.value += 100
            return self

        def __eq__(self, other: Any) -> bool:
            return self.value == other.value

        def __bool__(self) -> bool:
            return self.value > 3

        def __contains__(self, item: Any) -> bool:
            return item == self.value

        def __getitem__(self, key: Any) -> Any:
            if key == 3:
                raise IndexError
            return key

        def __format__(self, spec: str) -> str:
            return f"<{spec}>"

        def __call__(self, *args: Any) -> Any:
            return args

        def __len__(self) -> int:
            return self.value

    n = Number(1)
    m = n + Number(2)
    n += 1
    return (
        m.value,
        (4 + m).value,
        n.value,
        bool(m),
        3 in m,
        list(m),
        f"{m:x}",
        m(1, 2),
        len(m),
        m == Number(3),
    )


# Exceptions


@feature
def handlers() -> Any:
    events: list[Any] = []
    for value in (0, "x", None, 1):
        try:
            events.append(10 / value)
        except ZeroDivisionError as error:
            events.append(str(error))
        except (TypeError, ValueError):
            events.append("type")
        else:
            events.append("else")
        finally:
            events.append("finally")
    return events


@feature
def the_error_of_a_handler_has_a_context() -> Any:
    try:
        1 / 0
    except ZeroDivisionError:
        return {}["missing"]


@feature
def an_error_in_a_called_function_has_the_context_of_the_caller() -> Any:
    def helper() -> Any:
        try:
            raise KeyError("inner")
        except KeyError:
            int("x")

    try:
        raise TypeError("outer")
    except TypeError:
        helper()


@feature
def an_error_of_a_builtin_has_the_context_of_the_caller() -> Any:
    def bad(_: Any) -> Any:
        raise LookupError("from a key function")

    try:
        raise TypeError("outer")
    except TypeError:
        return sorted([1, 2], key=bad)


@feature
def causes() -> Any:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise ValueError("second") from error


@feature
def no_cause() -> Any:
    try:
        raise KeyError
    except KeyError:
        raise ValueError from None


@feature
def a_class_as_cause() -> Any:
    raise ValueError("x") from KeyError


@feature
def a_wrong_cause() -> Any:
    raise ValueError("x") from 3


@feature
def raising_no_exception() -> Any:
    raise 3


@feature
def catching_no_exception() -> Any:
    try:
        raise ValueError("x")
    except 3:
        pass


@feature
def raising_again() -> Any:
    try:
        raise ValueError("again")
    except ValueError:
        try:
            raise KeyError("between")
        except KeyError:
            pass
        raise


@feature
def raising_again_without_an_error() -> Any:
    raise


@feature
def raising_again_in_a_called_function() -> Any:
    def helper() -> Any:
        raise

    try:
        raise ValueError("from the caller")
    except ValueError:
        helper()


@feature
def nested_finally() -> Any:
    events: list[Any] = []

    def f() -> Any:
        for i in range(3):
            try:
                try:
                    if i == 1:
                        continue
                    if i == 2:
                        return "returned"
                finally:
                    events.append(i)
            finally:
                events.append(-i)

    return f(), events


@feature
def finally_that_returns_swallows() -> Any:
    def f() -> Any:
        try:
            raise ValueError
        finally:
            return "swallowed"  # noqa: B012

    return f()


@feature
def an_error_in_finally() -> Any:
    try:
        raise ValueError("body")
    finally:
        raise KeyError("finally")


@feature
def what_is_being_handled() -> Any:
    def asked() -> Any:
        return sys.exc_info()[0], type(sys.exception())

    seen = [asked()]
    try:
        raise ValueError
    except ValueError:
        seen.append(asked())
        try:
            raise KeyError
        except KeyError:
            seen.append(asked())
        seen.append(asked())
    seen.append(asked())
    return seen


@feature
def a_circle_of_contexts_is_not_made() -> Any:
    a, b = ValueError("a"), KeyError("b")
    try:
        try:
            raise a
        except ValueError:
            raise b
    except KeyError:
        raise a


@feature
def groups() -> Any:
    events: list[Any] = []
    try:
        raise ExceptionGroup(
            "g", [ValueError(1), KeyError(2), ExceptionGroup("h", [ValueError(3), OSError(4)])]
        )
    except* ValueError as error:
        events.append(told(error))
    except* KeyError:
        events.append("key")
        raise LookupError("new")


@feature
def a_group_from_one_error() -> Any:
    try:
        raise ValueError("naked")
    except* ValueError as error:
        seen = type(error).__name__, len(error.exceptions)
    return seen


@feature
def a_group_raised_again() -> Any:
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError:
        raise


@feature
def an_error_in_init() -> Any:
    class Bad:
        def __init__(self) -> None:
            raise RuntimeError("init")

    return Bad()


# With


@feature
def with_statements() -> Any:
    first, second = Log(), Log(swallow=True)
    with first as a, second:
        a.append("body")
        raise ValueError("swallowed by the second")
    return list(first), list(second)


@feature
def with_that_lets_pass() -> Any:
    log = Log()
    try:
        with log:
            raise ValueError("passes")
    except ValueError as error:
        return list(log), str(error)


@feature
def with_and_return() -> Any:
    log = Log()

    def f() -> Any:
        for _ in range(2):
            with log:
                return "early"

    return f(), list(log)


@feature
def with_something_else() -> Any:
    with 3:
        pass


@feature
def with_half_a_manager() -> Any:
    class Half:
        def __enter__(self) -> None:
            pass

    with Half():
        pass


@feature
def context_managers_from_generators() -> Any:
    events: list[Any] = []

    @contextlib.contextmanager
    def manager(name: str) -> Iterator[str]:
        events.append(f"enter {name}")
        try:
            yield name
        except ValueError as error:
            events.append(f"caught {error}")
        finally:
            events.append(f"leave {name}")

    with manager("a") as a, contextlib.ExitStack() as stack:
        stack.enter_context(manager("b"))
        stack.callback(events.append, "callback")
        raise ValueError(a)
    return events


# Generators


@feature
def generators() -> Any:
    def count(n: int) -> Any:
        for i in range(n):
            got = yield i
            if got:
                yield "got", got
        return "end"

    g = count(3)
    seen = [next(g), g.send("x"), next(g), *g]
    try:
        next(g)
    except StopIteration as stop:
        seen.append(stop.value)
    return seen, list(count(2)), sum(count(4)), max(count(3)), isinstance(g, type(i for i in ()))


@feature
def the_value_of_yield_from() -> Any:
    def inner() -> Any:
        got = yield 1
        return "inner got " + str(got)

    def outer() -> Any:
        result = yield from inner()
        yield result
        yield from [5, 6]
        yield from inner()

    g = outer()
    return [next(g), g.send("sent"), *g]


@feature
def throwing_into_yield_from() -> Any:
    events: list[Any] = []

    def inner() -> Any:
        while True:
            try:
                yield "inner"
            except ValueError as error:
                events.append(str(error))
                yield "handled"
            except KeyError:
                return "ended"

    def outer() -> Any:
        events.append((yield from inner()))
        try:
            yield from iter([1, 2])
        except TypeError as error:
            events.append(str(error))
            yield "outer handled"

    g = outer()
    seen = [next(g), g.throw(ValueError("v")), next(g), g.throw(KeyError()), g.throw(TypeError("t"))]
    return seen, events, list(g)


@feature
def closing_a_generator() -> Any:
    events: list[Any] = []

    def inner() -> Any:
        try:
            yield 1
        except GeneratorExit:
            events.append("inner exit")
            raise
        finally:
            events.append("inner finally")

    def outer() -> Any:
        with contextlib.suppress(KeyError):
            yield from inner()
        events.append("not reached")

    g = outer()
    next(g)
    g.close()
    g.close()
    h = inner()
    h.close()
    unfinished = outer()
    next(unfinished)
    del unfinished
    return events, list(g)


@feature
def a_generator_that_ignores_its_end() -> Any:
    def stubborn() -> Any:
        try:
            yield 1
        except GeneratorExit:
            yield 2

    g = stubborn()
    next(g)
    g.close()


@feature
def stop_iteration_inside_a_generator() -> Any:
    def g() -> Any:
        yield next(iter(()))

    return list(g())


@feature
def sending_to_a_new_generator() -> Any:
    def g() -> Any:
        yield

    return g().send(1)


@feature
def a_generator_that_runs_already() -> Any:
    def g() -> Any:
        yield next(it)

    it = g()
    return next(it)


@feature
def throwing_into_a_handler_of_a_generator() -> Any:
    def g() -> Any:
        try:
            raise KeyError("handled")
        except KeyError:
            yield 1

    it = g()
    next(it)
    it.throw(ValueError("thrown"))


@feature
def a_generator_in_a_handler_sees_its_caller() -> Any:
    def g() -> Any:
        yield sys.exception()
        try:
            raise KeyError("own")
        except KeyError:
            yield sys.exception()
            yield sys.exception()
        yield sys.exception()

    it = g()
    seen = [told(next(it))]
    try:
        raise ValueError("of the caller")
    except ValueError:
        seen += [told(next(it))]
    seen += [told(next(it)), told(next(it))]
    return seen


@feature
def endless_generators_are_stepped_on_demand() -> Any:
    def naturals() -> Any:
        n = 0
        while True:
            yield n
            n += 1

    return [n for n, _ in zip(naturals(), "abc", strict=False)], next(x for x in naturals() if x > 10)


@feature
def generator_methods() -> Any:
    class Tree:
        def __init__(self, *children: Any) -> None:
            self.children = children

        def __iter__(self) -> Any:
            yield self
            for child in self.children:
                yield from child

    return sum(1 for _ in Tree(Tree(Tree()), Tree()))


@feature
def a_coroutine_runs_natively() -> Any:
    async def f(x: int) -> int:
        return x + 1

    coroutine = f(1)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value


# Match


@feature
def patterns() -> Any:
    def kind(subject: Any) -> Any:
        match subject:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return "big", n
            case str() as text:
                return "text", text
            case [] | ():
                return "empty"
            case [first, *rest, last]:
                return first, rest, last
            case [only]:
                return "only", only
            case {"kind": "a", **rest}:
                return "mapping", rest
            case {"x": {"y": value}}:
                return value
            case Point(0, y=0):
                return "origin"
            case Point(x, y):
                return x, y
            case None | True | float():
                return "other"
            case ValueError(args=(a,)):
                return a
            case _:
                return "unknown"

    subjects: list[Any] = [
        0,
        1,
        200,
        50,
        "s",
        [],
        (1,),
        [1, 2, 3],
        {"kind": "a", "b": 1},
        {"x": {"y": 2}},
        {},
    ]
    subjects += [
        Point(0, 0),
        Point(1, 2),
        None,
        True,
        1.5,
        ValueError("v"),
        b"bytes",
        range(3),
        ChainMap({"x": {"y": 3}}),
    ]
    return [kind(subject) for subject in subjects]


@feature
def too_many_patterns() -> Any:
    match Point(1, 2):
        case Point(1, 2, 3):
            pass


@feature
def a_pattern_that_is_no_class() -> Any:
    thing: Any = 3
    match 1:
        case thing():
            pass


# Imports


@feature
def imports() -> Any:
    import collections.abc
    import os.path as path
    from collections import OrderedDict as Ordered
    from os import path as again

    return collections.__name__, path is again, Ordered.__name__


@feature
def importing_what_is_not_there() -> Any:
    import no_such_module_anywhere  # noqa: F401


@feature
def importing_a_name_that_is_not_there() -> Any:
    try:
        from collections import no_such_name  # noqa: F401
    except ImportError as error:
        return type(error)


if sys.version_info >= (3, 12):
    _SPACE: dict[str, Any] = {"__name__": __name__}
    exec(
        textwrap.dedent("""
        def type_parameters():
            def first[T: int, *Ts, **P](x: T) -> T:
                return x
            class Box[T]:
                def __init__(self, value: T): self.value = value
                def get[U](self, other: U) -> T | U: return self.value
            type Alias[K] = dict[K, Box[int]]
            type Lazy = undefined_until_asked
            names = [p.__name__ for p in first.__type_params__ + Box.__type_params__ + Alias.__type_params__]
            return first(1), Box[int](2).get(1), names, first.__type_params__[0].__bound__, Box.__orig_bases__[0].__name__

        def constrained_type_parameters():
            def f[T: (int, str)](x: T): return x
            return f.__type_params__[0].__constraints__, f.__type_params__[0].__name__

        def nested_quotes():
            names = ["a", "b"]
            return f"{", ".join(names)} {f"{names[0]!r:>{5}}"}"
        """),
        _SPACE,
    )
    for _name in ("type_parameters", "constrained_type_parameters", "nested_quotes"):
        feature(_SPACE[_name])


def differences() -> dict[str, tuple[Any, Any]]:
    """The features whose stepped run differs: name to (native, stepped)."""
    found = {}
    for name, function in FEATURES.items():
        expected, seen = observed(function, native), observed(function, stepped)
        if expected != seen:
            found[name] = expected, seen
    return found


if __name__ == "__main__":
    different = differences()
    for name, (expected, seen) in different.items():
        print(f"{name}\n  native:  {expected}\n  stepped: {seen}")
    print(f"{len(FEATURES)} features, {len(different)} differ")
    sys.exit(bool(different))
