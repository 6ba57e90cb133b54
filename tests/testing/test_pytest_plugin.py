"""The pytest plugin, seen by the author of a suite: outcomes, messages, JUnit, bundles on disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suites import SuiteRun, run_suite

from torchrepro.bundle.read import read_manifest

pytestmark = pytest.mark.slow

SUITE = """
import faulty_backends
import pytest
import torch


@torch.compile(backend=faulty_backends.wrong)
def compiled_once(x):
    return x.cos() + 1


def test_wrong(): compiled_once(torch.ones(3))
def test_wrong_again(): compiled_once(torch.ones(3))
def test_healthy(): torch.compile(torch.sin, backend="aot_eager")(torch.ones(3))
def test_plain(): pass
def test_raises(): torch.compile(torch.sin, backend=faulty_backends.raises_while_running)(torch.ones(3))


def test_expects_the_error():
    with pytest.raises(RuntimeError):
        torch.compile(torch.sin, backend=faulty_backends.raises_while_running)(torch.ones(3))


def test_fixture(compiled_same):
    compiled_same(torch.nn.ReLU(), torch.ones(3), backend="faulty_backends:wrong")


@pytest.fixture
def wrong_at_the_end():
    yield
    torch.compile(torch.tan, backend=faulty_backends.wrong)(torch.ones(3))


def test_teardown(wrong_at_the_end): pass
"""
CRASH = """
import faulty_backends
import torch


def test_dies(): torch.compile(torch.sin, backend=faulty_backends.crashes_while_running)(torch.ones(3))
def test_raises(): torch.compile(torch.sin, backend=faulty_backends.raises_while_running)(torch.ones(3))
def test_healthy(): torch.compile(torch.sin, backend="aot_eager")(torch.ones(3))
"""
PLAIN = """
import sys


def test_torch_is_not_imported(): assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> SuiteRun:
    return run_suite(tmp_path_factory.mktemp("watched"), SUITE, "--torchrepro-watch=4")


def test_wrong_numbers_fail_each_test_that_meets_them(watched: SuiteRun) -> None:
    assert watched.exit_code == 1
    assert watched.outcomes == {
        "test_wrong": "failure",
        "test_wrong_again": "failure",
        "test_healthy": "passed",
        "test_plain": "passed",
        "test_raises": "failure",
        "test_expects_the_error": "passed",
        "test_fixture": "failure",
        "test_teardown": "error",
    }


def test_a_failure_names_its_bundle_and_bucket_in_its_report_and_in_junit(watched: SuiteRun) -> None:
    for test in ("test_wrong", "test_wrong_again", "test_raises", "test_fixture", "test_teardown"):
        told = watched.properties[test]
        bundle = Path(told["torchrepro_bundle"])
        expected = read_manifest(bundle).expected
        assert re.fullmatch(rf"[0-9a-f]{{16}} {re.escape(str(expected))}", told["torchrepro_bucket"])
        assert f"bundle       {bundle}" in watched.text
        assert bundle.parent.name.startswith(f"test_suite.py-{test}-")
    assert watched.properties["test_plain"] == {}


def test_the_summary_has_every_bundle_once_and_says_which_tests_passed(watched: SuiteRun) -> None:
    summary = watched.text.partition("= torchrepro =")[2]
    assert all(summary.count(f"bundle  {bundle}\n") == 1 for bundle in watched.bundles)
    assert len(watched.bundles) == 6
    assert "test_suite.py::test_expects_the_error (passed)" in summary
    assert re.search(r"torchrepro: 6 failures in 2 buckets, \d+ compiled graphs watched at level 4", summary)


def test_workers_report_to_one_summary_even_if_they_die(tmp_path: Path) -> None:
    run = run_suite(tmp_path, CRASH, "--torchrepro-watch=3", "-n", "2")
    assert (run.outcomes["test_dies"], run.outcomes["test_raises"]) == ("error", "failure")
    assert run.outcomes["test_healthy"] == "passed"
    kinds = {bundle.parent.name.split("-")[1]: bundle.name.rpartition("-")[2] for bundle in run.bundles}
    assert kinds == {"test_dies": "crash", "test_raises": "run_error"}
    summary = run.text.partition("= torchrepro =")[2]
    assert all(f"bundle  {bundle}\n" in summary for bundle in run.bundles)
    assert "test_suite.py::test_dies\n" in summary


def test_a_mismatch_that_only_warns_is_still_reported(tmp_path: Path) -> None:
    run = run_suite(tmp_path, SUITE, "--torchrepro-watch=4", "--torchrepro-warn", "-k", "test_wrong")
    assert run.exit_code == 0
    assert "test_suite.py::test_wrong (passed)" in run.text
    assert len(run.bundles) == 2


def test_a_suite_without_torch_gets_one_line_and_no_torch(tmp_path: Path) -> None:
    run = run_suite(tmp_path, PLAIN, "--torchrepro-watch")
    assert run.exit_code == 0, run.text
    assert run.text.count("torchrepro:") == 1
    assert "torchrepro: 0 compiled graphs watched at level 2, none failed" in run.text
    assert not (tmp_path / "torchrepro-out").exists()


def test_a_path_after_the_option_is_an_error_that_says_how_to_write_it(tmp_path: Path) -> None:
    run = run_suite(tmp_path, PLAIN, "--torchrepro-watch", "test_suite.py")
    assert run.exit_code == 4
    assert "write --torchrepro-watch=2 test_suite.py, or put the option last" in run.text


@pytest.mark.thorough
def test_an_injected_bug_of_inductor_is_minified_at_once(tmp_path: Path) -> None:
    source = """
import torch
import torch._inductor.config as config


def test_net():
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        torch.compile(lambda x: torch.relu(x.sin() @ x) + x.cos())(torch.randn(4, 4))
"""
    run = run_suite(tmp_path, source, "--torchrepro-watch=4", "--torchrepro-minify")
    (bundle,) = run.bundles
    script = Path(f"{bundle}.minified") / "minimal" / "repro.py"
    assert f"script       {script}" in run.text
    assert "relu" in script.read_text()
