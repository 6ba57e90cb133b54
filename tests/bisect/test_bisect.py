"""A script under a series of settings: real processes, whose failure a variable injects."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest
import torch

from torchrepro.bisect.bisect import BisectSettings, bisect
from torchrepro.bisect.bisected import Bisected, State, of_bisected
from torchrepro.bisect.series import Wanted
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.report.text import lines_of_sections
from torchrepro.script.save_bundle import save_bundle

pytestmark = pytest.mark.slow

RUNS = "open('runs', 'a').write(os.environ['N'] + ' '); "


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bisected(here: Path, program: str, values: str, **settings: object) -> Bisected:
    script = here / "script.py"
    script.write_text(f"import os, signal, sys, time\nN = int(os.environ['N'])\n{RUNS}\n{program}\n")
    return bisect(script, Wanted(environ=(f"N={values}",)), BisectSettings(**settings))  # type: ignore[arg-type]


def runs(here: Path) -> list[str]:
    return (here / "runs").read_text().split()


def states(found: Bisected) -> list[str]:
    return [row.state.value for row in found.rows]


def test_every_change_of_a_history_that_is_not_monotone_is_reported(here: Path):
    found = bisected(here, "if N in (2, 3, 5): raise ValueError(f'at {N}')", "1,2,3,4,5")
    same, good = State.SAME.value, State.PASSES.value
    assert states(found) == [good, same, same, good, same]
    assert [change.sentence for change in found.changes] == [
        "N=2 broke it; N=1 passes",
        "N=4 fixed it; N=3 fails",
        "N=5 broke it; N=4 passes",
    ]
    assert found.first_bad is not None
    assert (found.first_bad.before.setting, found.first_bad.after.setting) == ("N=4", "N=5")
    assert found.exit_code == 0
    assert sorted(runs(here)) == sorted("1122334455"), "both sides of a change are run twice"
    assert all(change.confirmed for change in found.changes)


def test_another_failure_is_not_the_same_failure(here: Path):
    found = bisected(here, "raise (KeyError if N < 2 else TypeError)('x')", "1,2")
    assert states(found) == ["another failure", "same failure"]
    assert found.changes[0].sentence == "N=2 fails in another way; N=1 fails in another way"


def test_a_crash_a_hang_and_an_exit_code_are_failures(here: Path):
    program = (
        "N == 2 and os.kill(os.getpid(), signal.SIGSEGV)\nN == 3 and time.sleep(60)\nsys.exit(N == 4 and 7)"
    )
    found = bisected(here, program, "1,2,3,4", time_limit=2.0)
    assert [row.signature for row in found.rows] == ["", "crash | SIGSEGV", "hang", "crash | exit 7"]


def test_what_cannot_run_is_neither_a_pass_nor_a_failure(here: Path):
    found = bisected(here, "if N == 2: import no_such_package\nif N > 2: raise ValueError('x')", "1,2,3")
    assert states(found) == ["passes", "cannot run", "same failure"]
    assert found.changes[0].sentence == "one of N=2, N=3 broke it; N=1 passes"
    assert "no_such_package" in found.rows[1].seen


def test_a_result_that_differs_when_it_is_repeated_is_flaky(here: Path):
    program = "if N == 2 and not os.path.exists('seen'): open('seen', 'w'); raise ValueError('once')"
    found = bisected(here, program, "1,2")
    assert states(found) == ["passes", "flaky"]


def test_a_side_that_cannot_be_run_twice_is_reported_as_seen_once(here: Path):
    program = "if os.path.exists(f'seen{N}'): import no_such_package\nopen(f'seen{N}', 'w')\nassert N == 1"
    found = bisected(here, program, "1,2")
    assert states(found) == ["passes", "same failure"]
    assert not found.changes[0].confirmed


def test_the_same_command_does_not_run_again_what_is_known(here: Path):
    program = "if N > 1: raise ValueError('x')"
    first = bisected(here, program, "1,2")
    before = runs(here)
    again = bisected(here, program, "1,2")
    assert again == first
    assert runs(here) == before
    bisected(here, program, "1,2", fresh=True)
    assert len(runs(here)) == 2 * len(before)
    bisected(here, f"{program}  # another script", "1,2")
    assert len(runs(here)) == 3 * len(before)


def test_a_torn_line_of_a_killed_run_costs_that_run_alone(here: Path):
    program = "if N > 1: raise ValueError('x')"
    bisected(here, program, "1,2")
    before = len(runs(here))
    (kept,) = (here / "cache" / "bisect").glob("*.jsonl")
    kept.write_bytes(kept.read_bytes()[:-20])
    assert states(bisected(here, program, "1,2")) == ["passes", "same failure"]
    assert len(runs(here)) == before + 1


def test_any_executor_runs_it(here: Path):
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        script = here / "script.py"
        script.write_text("import os\nassert os.environ['N'] != '2'")
        found = bisect(script, Wanted(environ=("N=1,2",)), executor=pool)
    assert states(found) == ["passes", "same failure"]


def test_the_section_names_the_last_good_and_the_first_bad(here: Path):
    found = bisected(here, "if N > 1: raise ValueError('x')", "1,2")
    text = "\n".join(line.text for line in lines_of_sections([of_bisected(found)], 80))
    assert text.startswith("N=2 broke it; N=1 passes")
    assert "last good" in text
    assert "first bad" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_bundle_is_judged_as_check_judges_it(tmp_path: Path):
    repro = Repro(
        torch.fx.symbolic_trace(lambda x: (x.sin(),)), (torch.ones(4),), compiler=Compiler("aot_eager")
    )
    bundle = save_bundle(repro, tmp_path / "bundle")
    found = bisect(bundle, Wanted(environ=("TORCHREPRO_TEST=1,2",)))
    assert states(found) == ["passes", "passes"]
    assert found.exit_code == 1
    assert [row.torch for row in found.rows] == [str(torch.__version__)] * 2


@pytest.mark.thorough
def test_a_bundle_shows_how_the_generated_code_of_a_wrong_kernel_differs(tmp_path: Path):
    """pytorch#191499: lanes of a vector that are not in use take part in the reduction."""
    values = [5, 1, 100, 3, 7, 8, 9, 13, 100, 120, 127, 2, 6, 4, 11, 12, 90, 80]
    graph = torch.fx.symbolic_trace(lambda x: torch.argmin(x))
    repro = Repro(graph, (torch.tensor(values, dtype=torch.int8),))
    bundle = save_bundle(repro, tmp_path / "bundle")
    found = bisect(bundle, Wanted(environ=("ATEN_CPU_CAPABILITY=default,avx2",)), BisectSettings(jobs=2))
    assert states(found) == ["passes", "same failure"], found
    (change,) = found.changes
    assert "-" in {line[:1] for line in change.code.splitlines()}
    assert "argmin_combine_vec" in change.code
    assert (tmp_path / "bundle.bisected" / "change-1.diff").read_text() == change.code + "\n"
