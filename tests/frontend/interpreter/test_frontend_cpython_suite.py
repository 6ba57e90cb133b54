"""CPython's own tests pass when they are stepped."""

from __future__ import annotations

import sys

import pytest

from tests.frontend.bytecode.pythons import python
from tests.frontend.interpreter.cpython_table import MODULES, VERSIONS, run_modules

SAMPLE = [
    "test_class",
    "test_contextlib",
    "test_except_star",
    "test_fstring",
    "test_generators",
    "test_grammar",
    "test_keywordonlyarg",
    "test_list",
    "test_listcomps",
    "test_named_expressions",
    "test_patma",
    "test_positional_only_arg",
    "test_raise",
    "test_scope",
    "test_super",
    "test_with",
]


def _step(interpreter: str, modules: list[str]) -> int:
    counts = run_modules(interpreter, modules)
    if all(c.missing for c in counts):
        pytest.skip(f"{interpreter} has no `test` package: {counts[0].missing}")
    assert {test: text for c in counts for test, text in c.failed.items()} == {}
    return sum(c.passed for c in counts)


@pytest.mark.slow
def test_a_sample_of_the_tests_of_cpython_passes_stepped() -> None:
    assert _step(sys.executable, SAMPLE) > 900


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("version", VERSIONS, ids=[".".join(map(str, version)) for version in VERSIONS])
def test_the_tests_of_cpython_pass_stepped(version: tuple[int, int]) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine (PATH, pyenv)")
    assert _step(interpreter, MODULES) > 5000
