"""Steps CPython's own tests: each test that passes natively is run again with its method stepped."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import signal
import sys
import unittest
import warnings
from collections.abc import Iterator

from torchrepro.frontend.interpreter.interpreter import Interpreter


def tests_in(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def outcome(test, seconds=20):
    def late(*_):
        raise TimeoutError("too slow")
    result = unittest.TestResult()
    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    out, err = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.StringIO()
    try:
        suite = unittest.TestSuite([test]); suite(result)
    except BaseException as e:
        result.errors.append((test, "escaped " + repr(e)))
    finally:
        sys.stdout, sys.stderr = out, err
        signal.alarm(0)
    if result.skipped or result.expectedFailures: return "skipped", ""
    if result.wasSuccessful() and result.testsRun: return "passed", ""
    return "failed", "".join(t for _, t in result.errors + result.failures)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="+")
    parser.add_argument("-k")
    parser.add_argument("-v", action="store_true")
    o = parser.parse_args()
    sys.setrecursionlimit(5000)
    for name in o.modules:
        try:
            module = importlib.import_module("test."+name)
        except (ImportError, unittest.SkipTest) as e:
            print(name, "no module", e); continue
        counts = {}
        for test in tests_in(unittest.defaultTestLoader.loadTestsFromModule(module)):
            if not hasattr(test, '_testMethodName') or 'DocTest' in type(test).__name__ or not hasattr(test, test._testMethodName): continue
            ident = test.id().removeprefix("test.")
            if o.k and o.k not in ident: continue
            import inspect
            if inspect.iscoroutinefunction(getattr(test, test._testMethodName)) or "Async" in type(test).__mro__[1].__name__:
                continue
            kind = type(test)
            first, _ = outcome(kind(test._testMethodName))
            if first != "passed":
                counts["native-"+first] = counts.get("native-"+first, 0) + 1
                continue
            again = kind(test._testMethodName)
            method = getattr(again, test._testMethodName)
            def stepped(method=method):
                return Interpreter().call_function(method, (), {})
            for k, v in vars(getattr(method, "__func__", method)).items():
                setattr(stepped, k, v)
            setattr(again, test._testMethodName, stepped)
            second, text = outcome(again)
            counts[second] = counts.get(second, 0) + 1
            if second != "passed":
                lines = text.strip().splitlines() or [""]
                print("  ", ident, second, "|", lines[-1][:150])
                if o.v: print(text)
        print(name, counts, flush=True)

if __name__ == "__main__":
    main()
