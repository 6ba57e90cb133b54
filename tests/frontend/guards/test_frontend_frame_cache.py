"""The cache of regions of one place: last used first, a limit with one warning, gone with the code."""

from __future__ import annotations

import gc
import threading
import types
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.graph_breaks import Where
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import Is
from torchrepro.frontend.runtime.cache import CaptureLimitWarning, FrameCache, caches_of
from torchrepro.frontend.source import FrameState, Local

HERE = Where("model.py", 12, "forward")


@dataclass(eq=False)
class Region:
    guards: GuardFunction
    number: int


def region(number: int) -> Region:
    return Region(GuardFunction.of([Is(Local("n"), number)], Kept()), number)


def state(number: int) -> FrameState:
    return FrameState({"n": number}, {})


def filled(*numbers: int, limit: int = 8) -> FrameCache:
    cache: FrameCache = FrameCache(limit)
    for number in numbers:
        cache.add(region(number))
    return cache


def numbers(cache: FrameCache) -> list[int]:
    return [entry.number for entry in cache.entries]


def test_the_entry_whose_guards_hold_is_found() -> None:
    cache = filled(1, 2, 3)
    assert [cache.find(state(number)).number for number in (1, 2, 3)] == [1, 2, 3]  # type: ignore[union-attr]
    assert cache.find(state(4)) is None


def test_the_last_used_entry_is_first() -> None:
    cache = filled(1, 2, 3)
    assert numbers(cache) == [3, 2, 1]
    cache.find(state(1))
    assert numbers(cache) == [1, 3, 2]
    cache.find(state(4))
    assert numbers(cache) == [1, 3, 2]


def test_every_entry_says_why_it_does_not_fit() -> None:
    assert filled(1, 2).misses(state(3)) == ["argument n: is 3, was 2", "argument n: is 3, was 1"]


def test_a_full_cache_warns_once_with_place_and_reasons() -> None:
    cache = filled(1, limit=2)
    assert not cache.full
    cache.add(region(2))
    assert cache.full
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache.warn(HERE, state(3))
        cache.warn(HERE, state(4))
    (warning,) = caught
    assert warning.category is CaptureLimitWarning
    text = str(warning.message)
    assert "model.py:12 in forward" in text
    assert "argument n: is 3, was 2" in text
    assert "argument n: is 3, was 1" in text


def test_the_limit_is_eight() -> None:
    assert not filled(*range(7)).full
    assert filled(*range(8)).full


def test_caches_are_kept_by_code_and_place() -> None:
    def function() -> None: ...

    caches = caches_of(function.__code__)
    caches["start"] = filled(1)
    assert caches_of(function.__code__)["start"] is caches["start"]


def test_equal_code_of_other_functions_has_caches_of_its_own() -> None:
    one, other = (compile("def f(): pass", "m.py", "exec").co_consts[0] for _ in range(2))
    assert one == other
    assert caches_of(one) is not caches_of(other)


def test_a_function_that_dies_frees_its_regions() -> None:
    namespace: dict[str, Any] = {}
    exec("def f(): pass", namespace)
    function = namespace.pop("f")
    entry = region(1)
    caches_of(function.__code__)["start"] = cache = filled()
    cache.add(entry)
    gone = weakref.ref(entry)
    del entry, cache
    gc.collect()
    assert gone() is not None
    del function
    gc.collect()
    assert gone() is None


def test_another_thread_may_add_while_one_reads() -> None:
    cache = filled(0, limit=1000)
    failures: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                assert cache.find(state(0)) is not None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 100):
        cache.add(region(number))
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert sorted(numbers(cache)) == list(range(100))


def test_threads_get_the_same_caches() -> None:
    code = types.FunctionType(compile("0", "m.py", "eval"), {}).__code__
    seen: list[Any] = []
    threads = [threading.Thread(target=lambda: seen.append(caches_of(code))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({id(each) for each in seen}) == 1


def test_a_full_cache_with_a_fitting_entry_gives_no_warning() -> None:
    cache = filled(1, 2, limit=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cache.find(state(1))
    assert found is not None
    assert found.number == 1
    assert numbers(cache) == [1, 2]
