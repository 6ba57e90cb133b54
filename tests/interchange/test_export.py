"""`torchrepro export`: a bundle as a file that other tools run, which fails there in the same way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import answer, as_strangers, torchrepro

from torchrepro import Repro, save_bundle
from torchrepro.interchange.export import Form, export_bundle
from torchrepro.interchange.find_artefacts import find_artefacts
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Ambient, Place
from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Signature,
    Verdict,
)
from torchrepro.script.test_form import pytest_form, unittest_form

_LEAF = LeafComparison(
    "out[0]", Difference.VALUE, blamed=Blame.COMPILED, ref_value="2", res_value="3", elements=2, max_abs=1.0
)
WRONG = Verdict(Kind.MISMATCH, comparison=Comparison((_LEAF,)))
SCRIPT = '"""It fails."""\n\nimport torch\n\n\ndef f(x):\n    return x\n\n\nx = torch.ones(2)\nf(x)\n'


def failing(path: Path, verdict: Verdict | None = WRONG, place: Place = Place.AFTER_CAPTURE) -> Path:
    """A bundle that fails for real: inductor's own switch makes relu wrong."""
    graph = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.relu.default(x),))
    ambient = Ambient(configs={"inductor": {"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}})
    expected = None if verdict is None else Signature.of(verdict)
    repro = Repro(graph, (torch.tensor([-1.0, 2.0]),), place, ambient=ambient, expected=expected)
    return save_bundle(repro, path, verdict=verdict)


def run(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(cwd / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    }
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=280)


@pytest.mark.thorough
def test_the_exported_test_fails_and_passes_once_the_compiler_is_fixed(tmp_path: Path) -> None:
    exported = export_bundle(failing(tmp_path / "bundle"), Form.PYTEST, tmp_path / "test_relu.py")
    broken = run("-m", "pytest", "-q", "-p", "no:cacheprovider", exported.script, cwd=tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "1 failed" in broken.stdout
    assert "out[0] differs" in broken.stdout
    text = exported.script.read_text()
    exported.script.write_text(text.replace('inject_relu_bug_TESTING_ONLY = "accuracy"', "simdlen = None"))
    fixed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", exported.script, cwd=tmp_path)
    assert "1 passed" in fixed.stdout, fixed.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("place", [Place.AFTER_CAPTURE, Place.AFTER_AOT])
def test_torchs_own_tool_runs_an_exported_runnable_and_fails(place: Place, tmp_path: Path) -> None:
    bundle = failing(tmp_path / "bundle", place=place)
    exported = export_bundle(bundle, Form.FX_GRAPH_RUNNABLE, tmp_path / "fx_graph_runnable.py")
    done = run(exported.script, "run", cwd=tmp_path)
    assert done.returncode != 0
    assert "AccuracyError" in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("place", [Place.AFTER_CAPTURE, Place.AFTER_AOT])
def test_aot_inductor_fails_in_the_same_way(place: Place, tmp_path: Path) -> None:
    exported = export_bundle(failing(tmp_path / "bundle", place=place), Form.AOTI, tmp_path / "aoti.py")
    done = run(exported.script, cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "reproduced"), done.stderr


@pytest.mark.thorough
def test_an_exported_unittest_fails(tmp_path: Path) -> None:
    exported = export_bundle(failing(tmp_path / "bundle"), Form.UNITTEST, tmp_path / "test_relu.py")
    done = run(exported.script, cwd=tmp_path)
    assert "FAILED (failures=1)" in done.stderr, done.stderr


def test_what_was_exported_for_torchs_tool_is_not_imported_again(tmp_path: Path) -> None:
    exported = export_bundle(failing(tmp_path / "bundle"), Form.FX_GRAPH_RUNNABLE, tmp_path / "relu.py")
    with pytest.raises(TorchReproError, match="use the bundle that it was exported from"):
        find_artefacts(exported.script)


def test_a_script_keeps_its_lines_as_a_test() -> None:
    text = pytest_form(SCRIPT, Kind.RUN_ERROR, "relu")
    assert text.endswith("def test_relu():\n    x = torch.ones(2)\n    f(x)\n")
    assert "class TestRepro(unittest.TestCase):\n    def test_relu(self):\n        x =" in unittest_form(
        SCRIPT, Kind.RUN_ERROR, "relu"
    )


def test_a_test_does_not_say_how_a_script_is_run() -> None:
    script = (
        f'"""It fails.\n\nPlain torch, nothing of torchrepro:   python repro.py\nExits with 1.\n"""\n{SCRIPT}'
    )
    assert pytest_form(script, Kind.RUN_ERROR, "relu").startswith('"""It fails.\n\n"""\n')


def test_code_of_the_user_stays_above_the_test() -> None:
    script = SCRIPT.replace("def f(x)", "table = {1: 2}\n\n\ndef f(x)")
    text = pytest_form(script, Kind.RUN_ERROR, "relu")
    assert text.index("table = {1: 2}") < text.index("def f(x)") < text.index("def test_relu():\n    x =")
    main = SCRIPT.partition("x = torch.ones")[0] + 'if __name__ == "__main__":\n    reproduced = True\n'
    assert "def test_relu():\n    reproduced = True\n    assert not reproduced" in pytest_form(
        main, Kind.MISMATCH, "relu"
    )


@pytest.mark.parametrize("ending", ["import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "pass"])
def test_a_crash_is_a_failing_test_and_not_the_end_of_pytest(ending: str, tmp_path: Path) -> None:
    script = f'"""It dies."""\n\nimport torch\n\n\nx = torch.ones(2)\n{ending}\n'
    file = tmp_path / "test_crash.py"
    file.write_text(pytest_form(script, Kind.CRASH, "crash"))
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", file, cwd=tmp_path)
    assert ("1 passed" if ending == "pass" else "1 failed") in done.stdout, done.stdout


def test_a_strangers_script_is_written_anew_and_says_whose_it_is(tmp_path: Path) -> None:
    bundle = as_strangers(failing(tmp_path / "bundle"))
    (bundle / "repro.py").write_text("import os\nos.system('touch /tmp/torchrepro-was-here')\n")
    done = torchrepro("export", bundle, "--as", "pytest", "--json", cwd=tmp_path)
    told = answer(done)
    text = (tmp_path / told["path"]).read_text()
    assert told["stranger"] is True
    assert "os.system" not in text
    assert text.startswith('"""From a bundle that somebody else has written')
    compile(text, "test", "exec")


def test_existing_files_are_not_replaced_and_nothing_is_left(tmp_path: Path) -> None:
    bundle = failing(tmp_path / "bundle")
    target = tmp_path / "out" / "test_relu.py"
    export_bundle(bundle, Form.PYTEST, target)
    before = sorted(path.name for path in target.parent.iterdir())
    with pytest.raises(TorchReproError, match="exists already"):
        export_bundle(bundle, Form.PYTEST, target)
    assert sorted(path.name for path in target.parent.iterdir()) == before
    assert all(name.startswith("test_relu.") for name in before)


@pytest.mark.parametrize(
    ("form", "verdict", "reason"),
    [
        (Form.PYTEST, None, "no recorded failure"),
        (
            Form.AOTI,
            Verdict(Kind.MISMATCH, comparison=Comparison((LeafComparison("grad[0]", Difference.VALUE),))),
            "no backward",
        ),
        (
            Form.FX_GRAPH_RUNNABLE,
            Verdict(Kind.MISMATCH, comparison=Comparison((LeafComparison("inputs[1]", Difference.VALUE),))),
            "torch's tool compares nothing else",
        ),
    ],
)
def test_what_a_form_cannot_show_is_said(
    form: Form, verdict: Verdict | None, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TorchReproError, match=reason) as error:
        export_bundle(failing(tmp_path / "bundle", verdict), form, tmp_path / "out.py")
    assert error.value.next_step


def test_a_place_that_cannot_be_written_to_is_named_as_the_user_named_it(tmp_path: Path) -> None:
    with pytest.raises(TorchReproError, match=r"cannot write /proc/x\.py: "):
        export_bundle(failing(tmp_path / "bundle"), Form.PYTEST, Path("/proc/x.py"))


def test_a_wrong_form_or_path_is_one_line(tmp_path: Path) -> None:
    for words in (("nothing", "--as", "pytest"), ("nothing", "--as", "onnx"), (".",)):
        done = torchrepro("export", *words, cwd=tmp_path)
        assert done.returncode == 125
        assert "Traceback" not in done.stderr
