"""The failure of one op is kept, whatever construct it is in, and fails again in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.constructs import PROGRAMS, measure, names_in

pytestmark = pytest.mark.slow

MORE = PROGRAMS.with_name("more_constructs.py")

NOT_CHECKABLE = {
    "opaque_type": "the schema of an operator with an opaque argument cannot be read back from its text"
}
"""Constructs whose bundle is kept, but not checked as the same failure, and why."""


@pytest.mark.timeout(300)
def test_constructs_that_were_lost_are_kept_and_fail_again(tmp_path: Path) -> None:
    names = ["unbacked", "nested_jagged", "dtensor", "subclass_user", "scan", "export_aoti"]
    rows = list(measure(names, tmp_path))
    assert {row.name: row.verdict for row in rows} == dict.fromkeys(names, "same"), rows


@pytest.mark.timeout(300)
def test_wrong_results_of_views_and_of_nested_tensors_fail_again(tmp_path: Path) -> None:
    names = ["alias_inputs", "nested_jagged", "nested_jagged_grad"]
    rows = list(measure(names, tmp_path, level=4, kind="accuracy"))
    assert {row.name: row.verdict for row in rows} == dict.fromkeys(names, "same"), rows


@pytest.mark.timeout(300)
def test_hooks_and_nested_tensors_made_in_the_graph_fail_again(tmp_path: Path) -> None:
    names = ["tensor_hook", "nested_made_inside"]
    rows = list(measure(names, tmp_path, programs=MORE, level=4, kind="accuracy"))
    assert {row.name: row.verdict for row in rows} == dict.fromkeys(names, "same"), rows


@pytest.mark.timeout(300)
def test_a_program_compiled_ahead_of_time_is_kept_with_its_parameters(tmp_path: Path) -> None:
    (row,) = measure(["aoti_run"], tmp_path, programs=MORE)
    assert row.verdict == "same", row


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("programs", [PROGRAMS, MORE])
def test_no_construct_loses_its_failure(programs: Path, tmp_path: Path) -> None:
    rows = list(measure(names_in(programs), tmp_path, programs=programs))
    assert [row for row in rows if row.verdict == "LOST"] == []
    assert {row.name for row in rows if row.verdict == "kept"} <= NOT_CHECKABLE.keys(), rows
