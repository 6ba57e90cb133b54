"""Steps CPython's own tests: each test that passes natively runs again with its method stepped.

Runs on a bare Python, without pytest and torch. `cpython_table.py` runs it on all Pythons of the machine.
"""

from __future__ import annotations

import importlib
import io
import json
import signal
import sys
import unittest
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from typing import Any

from tests.frontend.interpreter.left_out import LEFT_OUT
from tests.frontend.interpreter.plain import PlainInterpreter

SECONDS = 60
"""For one test, stepped."""


@dataclass
class Counts:
    """What became of the tests of one module."""

    module: str
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    not_native: int = 0
    """Tests that do not pass natively: skipped, expected to fail, or failing."""
    missing: str = ""
    """Why the module cannot be imported."""


def step_module(name: str) -> Counts:
    counts = Counts(name)
    try:
        support = importlib.import_module("test.support")
        module = importlib.import_module(f"test.{name}")
    except (ImportError, unittest.SkipTest) as error:
        counts.missing = str(error)
        return counts
    support.use_resources = []  # no network, no huge files
    for test in _tests(unittest.defaultTestLoader.loadTestsFromModule(module)):
        step_test(test, counts)
    return counts


def step_test(test: unittest.TestCase, counts: Counts) -> None:
    identity = test.id().removeprefix("test.")
    reason = _left_out(test, identity)
    if reason:
        counts.left_out[identity] = reason
        return
    if _complaint(test):
        counts.not_native += 1
        return
    stepped = type(test)(test._testMethodName)
    method = getattr(stepped, test._testMethodName)
    setattr(stepped, test._testMethodName, _stepping(method))
    if complaint := _complaint(stepped):
        counts.failed[identity] = complaint
    else:
        counts.passed += 1


def _stepping(method: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> Any:
        return PlainInterpreter().calls.call(method, (), {})

    return run


def _left_out(test: unittest.TestCase, identity: str) -> str:
    if isinstance(test, unittest.IsolatedAsyncioTestCase):
        return "asynchronous"
    for pattern, reason in LEFT_OUT.items():
        if fnmatch(identity, pattern):
            return reason
    return ""


def _tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests(test)
        elif type(test).__module__ != "doctest":  # a doctest is text, not a function
            yield test


def _complaint(test: unittest.TestCase) -> str:
    """Empty if the test passes."""
    result = unittest.TestResult()
    previous = signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            # A suite of its own, for `setUpClass` and `setUpModule`.
            unittest.TestSuite([test])(result)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if result.skipped or result.expectedFailures or not result.testsRun:
        return "skipped"
    for _, text in result.errors + result.failures:
        return text.strip().splitlines()[-1][:200] or "failed"
    return "passed unexpectedly" if result.unexpectedSuccesses else ""


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)  # a stepped call takes six of CPython's
    for module in sys.argv[1:]:
        print(json.dumps(asdict(step_module(module))))
