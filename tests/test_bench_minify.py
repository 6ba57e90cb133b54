"""`benchmarks.minify`: what it counts, which goals a row meets, what it prints, and how it goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.minify.cases import INJECTED, REAL, Case, all_cases, chosen
from benchmarks.minify.in_tree_script import script_size
from benchmarks.minify.measured import Measured, append, latest, read
from benchmarks.minify.table import Row, goals, markdown, rows, summary

ONE_OP = Case("c01", INJECTED / "c01" / "model.py", "compile error", 2, "CppCompileError", ideal=1)
TRAP = Case("gelu", REAL / "gelu.py", "trap", 4, "", ideal=None, fails=False)

OURS = Measured(
    "c01",
    "ours",
    failed=True,
    caught="compile_error",
    start_ops=24,
    ops=1,
    inputs=1,
    elements=1,
    queries=6,
    compiles=9,
    explaining=2,
    seconds=8.0,
    finished=True,
    lines=14,
    reproduces=True,
    same_failure=True,
)
THEIRS = replace(
    OURS,
    side="theirs",
    caught="after aot, level 2",
    mode="no-isolate",
    elements=128,
    queries=43,
    compiles=43,
    explaining=None,
    seconds=60.0,
    lines=83,
)


def missed(row: Row) -> list[str]:
    return [goal for goal, met in goals(row).items() if not met]


def test_a_row_that_meets_every_goal() -> None:
    assert missed(Row(ONE_OP, OURS, THEIRS)) == []
    assert goals(Row(ONE_OP, OURS, THEIRS)).keys() == {
        *("caught", "verified", "ideal size", "8 compiles", "queries", "seconds")
    }


@pytest.mark.parametrize(
    ("changed", "goal"),
    [
        ({"compiles": 10}, "8 compiles"),
        ({"seconds": 12.1}, "seconds"),
        ({"ops": 2}, "ideal size"),
        ({"ops": None}, "ideal size"),
        ({"reproduces": False}, "verified"),
        ({"same_failure": False}, "verified"),
        ({"caught": ""}, "caught"),
    ],
)
def test_each_goal_can_be_missed(changed: dict[str, Any], goal: str) -> None:
    assert goal in missed(Row(ONE_OP, replace(OURS, **changed), THEIRS))


def test_queries_are_compared_by_compilations_and_not_by_what_a_tool_says_of_itself() -> None:
    assert "queries" in missed(Row(ONE_OP, replace(OURS, queries=1, compiles=11), THEIRS))


def test_there_is_no_ratio_to_a_search_that_did_not_come_to_its_end() -> None:
    row = Row(ONE_OP, OURS, replace(THEIRS, finished=False))
    assert row.queries_ratio is None
    assert not {"queries", "seconds"} & goals(row).keys()


def test_a_search_of_ours_that_did_not_come_to_its_end_meets_no_goal_of_size() -> None:
    stopped = replace(OURS, ops=None, reproduces=None, same_failure=None, finished=False)
    assert {"verified", "ideal size", "8 compiles"} <= set(missed(Row(ONE_OP, stopped, THEIRS)))


def test_a_trap_is_to_be_left_alone() -> None:
    healthy = Measured("gelu", "ours", failed=False)
    assert goals(Row(TRAP, healthy, None)) == {"left alone": True}
    assert goals(Row(TRAP, replace(healthy, caught="mismatch"), None)) == {"left alone": False}


def test_a_case_that_does_not_fail_on_this_machine_has_no_goals_and_is_named() -> None:
    row = Row(ONE_OP, Measured("c01", "ours", failed=False), Measured("c01", "theirs", failed=False))
    assert goals(row) == {}
    assert "does not fail here" in markdown([row])
    assert "does not fail on this machine: c01" in summary([row])


def test_the_table_is_markdown_with_both_tools_in_each_cell() -> None:
    lines = markdown([Row(ONE_OP, OURS, replace(THEIRS, same_failure=False))]).splitlines()
    assert lines[2] == (
        "| c01 | compile error | compile_error / yes (no-isolate) | 24 | 6 / 43 "
        "| 9, 2 to explain / 43 (0.21) | 8 / 60 (0.13) | 1 / 1 (1) | 1 / 128 | 14 / 83 "
        "| yes / yes | yes / **no** | met |"
    )
    assert {line.count("|") for line in lines[:3]} == {lines[0].count("|")}
    assert lines[-1].startswith("Goals met: caught 1 of 1; verified 1 of 1;")


def test_a_case_of_which_nothing_is_known_has_no_row() -> None:
    assert rows([ONE_OP, TRAP], latest([OURS])) == [Row(ONE_OP, OURS, None)]


def test_what_was_measured_is_kept_line_by_line_and_the_last_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    for one in (OURS, THEIRS, replace(OURS, seconds=5.0)):
        append(file, one)
    with file.open("a") as text:
        text.write('{"case": "c04", "si')  # killed while writing
    found = latest(read(file))
    assert set(found) == {("c01", "ours"), ("c01", "theirs")}
    assert found["c01", "ours"].seconds == 5.0


def test_every_program_of_the_tests_is_a_case() -> None:
    files = {path.stem.removeprefix("case_") for path in REAL.glob("case_*.py")}
    files |= {path.parent.name.partition("_")[0] for path in INJECTED.glob("c*/case.json")}
    assert {case.name for case in all_cases()} == files


def test_an_unknown_case_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no case is called c99; there are: c01, "):
        chosen(["c01", "c99"])


IN_TREE = """
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer('_tensor_constant0', tensor(1.0))

    def forward(self, arg0_1, arg1_1, arg2_1):
        _tensor_constant0 = self._tensor_constant0
        add = torch.ops.aten.add.Tensor(arg1_1, _tensor_constant0);  arg1_1 = None
        size = arg0_1 + 1
        split = torch.ops.aten.split.Tensor(add, 2);  add = None
        getitem = split[0];  split = None
        return (getitem, size)

def load_args(reader):
    reader.symint(8, expr='s27')  # arg0_1
    buf0 = reader.storage(None, 128*s27)
    reader.tensor(buf0, (4, s27 - 1, 2), is_leaf=True)  # arg1_1
    reader.tensor(buf0, (), dtype=torch.int64)  # arg2_1
"""


def test_the_size_of_a_script_of_torchs_own_minifier_is_read_from_its_text(tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    script.write_text(IN_TREE)
    size = script_size(script)
    assert (size.ops, size.inputs, size.elements) == (4, 3, 4 * 7 * 2 + 1)


@pytest.mark.slow
def test_a_compilation_is_counted_however_inductor_is_called(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from torch._inductor.compile_fx import compile_fx_inner\n"
        "from torch.fx.experimental.proxy_tensor import make_fx\n"
        "torch.compile(torch.sin)(torch.ones(2))\n"
        "compile_fx_inner(make_fx(lambda x: (x.sin(),))(torch.ones(2)), [torch.ones(2)])\n"
    )
    counted = tmp_path / "counted"
    (case,) = chosen(["191499"])
    environ = case.environment(tmp_path, counted) | {
        "TORCHINDUCTOR_CACHE_DIR": os.environ["TORCHINDUCTOR_CACHE_DIR"],
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",  # what is answered from there does not reach inductor
    }
    subprocess.run([sys.executable, str(program)], env=environ, check=True, cwd=tmp_path)
    assert counted.read_bytes() == b".."
