"""A failing frame as a bundle: all of it comes back in a fresh process, code runs on trust alone."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import frontend_frames
import pytest
import torch
from commands import answer, as_strangers, torchrepro

from torchrepro import Compiler, Place, load_bundle
from torchrepro.bundle.manifest import decode_manifest
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest, read_source_text
from torchrepro.bundle.user_calls import callee_of, run_call
from torchrepro.engine.check_bundle import check_bundle
from torchrepro.frontend.runtime.capture import CaptureError
from torchrepro.frontend.source import FrameState
from torchrepro.judge.execute import verdict_of
from torchrepro.nouns.errors import CannotSerialise, TorchReproError
from torchrepro.nouns.repro import Frontend
from torchrepro.nouns.verdict import Signature
from torchrepro.second_opinion.api import trace
from torchrepro.second_opinion.record_frame import keep_failure, record_frame

EAGER = Compiler("eager")


def state_of(function: Any, *args: Any, **kwargs: Any) -> FrameState:
    """The frame of a call at its start."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return FrameState(bound.arguments, cells)


def step_frame() -> tuple[Any, FrameState]:
    step = frontend_frames.make(torch.tensor([0.5, 0.25]))
    state = state_of(step, torch.randn(2, 2), [torch.ones(2), 2.0], 3, 4, extra=0.5)
    return step, state


def replayed(bundle: Path) -> Any:
    repro = load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    return run_call(repro.graph, repro.inputs, callee_of(repro.graph))


def test_tensors_lists_a_closure_a_global_and_defaults_come_back(tmp_path: Path) -> None:
    step, state = step_frame()
    arguments = state.locals
    expected = step(arguments["x"], arguments["items"], 3, 4, extra=0.5)
    bundle = record_frame(step, state, None, tmp_path / "frame", compiler=EAGER)
    manifest = read_manifest(bundle)
    assert manifest.place is Place.BEFORE_CAPTURE
    assert "globals read: helper" in manifest.notes
    assert "variables closed over: bias, count" in manifest.notes
    assert "def step(x" in read_source_text(bundle)
    assert torch.equal(replayed(bundle), expected)


def test_a_method_is_recorded_with_its_object(tmp_path: Path) -> None:
    cell, x = frontend_frames.Cell(), torch.randn(2)
    state = state_of(frontend_frames.Cell.forward, cell, x)
    bundle = record_frame(frontend_frames.Cell.forward, state, None, tmp_path / "frame", compiler=EAGER)
    assert torch.equal(replayed(bundle), cell(x))


def test_the_record_says_where_it_failed_and_keeps_the_text(tmp_path: Path) -> None:
    step, state = step_frame()
    with pytest.raises(TypeError) as failed:
        step(torch.ones(2), 5)
    bundle = record_frame(step, state, failed.value, tmp_path / "frame", compiler=EAGER)
    lines, first = inspect.getsourcelines(step)
    line = first + next(number for number, text in enumerate(lines) if text.strip().startswith("for"))
    note = f"a frame of frontend_frames.make.<locals>.step, line {line}, failed with TypeError"
    assert note in read_manifest(bundle).notes
    assert "def step(x" in read_source_text(bundle)


def test_a_value_that_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with (tmp_path / "log.txt").open("w") as file:
        state = state_of(frontend_frames.log, torch.ones(2), file)
        with pytest.raises(
            CannotSerialise, match=r"the frame of log cannot be kept: the local sink is a _io\."
        ):
            record_frame(frontend_frames.log, state, None, tmp_path / "frame", compiler=EAGER)
    assert not (tmp_path / "frame").exists()


def test_a_frame_that_has_run_already_is_refused(tmp_path: Path) -> None:
    state = FrameState({"x": torch.ones(2), "sink": None, "y": 3}, {})
    with pytest.raises(CannotSerialise, match=r"the frame of log is not at its start \(y\)"):
        record_frame(frontend_frames.log, state, None, tmp_path / "frame")


def test_a_manifest_from_before_front_ends_could_be_chosen_is_still_read(tmp_path: Path) -> None:
    step, state = step_frame()
    bundle = record_frame(step, state, None, tmp_path / "frame")
    data = json.loads((bundle / "manifest.json").read_text())
    assert data["compiler"].pop("frontend") == "torchrepro"
    assert decode_manifest(json.dumps(data).encode(), "old").compiler.frontend is Frontend.DYNAMO


def test_the_standalone_script_says_that_plain_torch_cannot_capture_so(tmp_path: Path) -> None:
    step, state = step_frame()
    bundle = record_frame(step, state, None, tmp_path / "frame")
    with pytest.raises(SystemExit, match="torchrepro's own front end"):
        exec((bundle / "repro.py").read_text(), {})


def test_a_captured_graph_has_no_front_end_to_choose(tmp_path: Path) -> None:
    from torchrepro import Repro, save_bundle

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    bundle = save_bundle(Repro(graph, (torch.ones(2),), compiler=EAGER), tmp_path / "graph")
    with pytest.raises(TorchReproError, match="captured already"):
        check_bundle(bundle, frontend=Frontend.TORCHREPRO)


@pytest.mark.slow
def test_in_a_fresh_process_the_code_runs_on_trust_alone(tmp_path: Path) -> None:
    bundle = record_frame(*step_frame(), None, tmp_path / "frame", compiler=EAGER)
    refused = torchrepro("check", as_strangers(bundle), cwd=tmp_path)
    assert refused.returncode == 125
    assert "--trust source" in refused.stderr
    checked = torchrepro("check", "--json", "--trust", "source", bundle, cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert answer(checked)["verdict"] == "pass"


def test_an_error_says_where_its_frame_was_recorded_or_why_not(tmp_path: Path) -> None:
    step, state = step_frame()
    error = ValueError("boom")
    keep_failure(step, state, error, tmp_path, EAGER)
    (bundle,) = tmp_path.iterdir()
    assert error.__notes__ == [f"torchrepro has recorded the frame: torchrepro check --trust source {bundle}"]
    assert "globals read: helper, sum" not in read_manifest(bundle).notes
    assert "globals read: helper" in read_manifest(bundle).notes
    other = ValueError("boom")
    keep_failure(frontend_frames.log, FrameState({"x": object(), "sink": open}, {}), other, tmp_path, EAGER)
    assert "torchrepro could not record the frame: " in other.__notes__[0]


def test_trace_records_the_call_in_which_the_backend_fails(tmp_path: Path) -> None:
    step, state = step_frame()
    captured = trace(step, backend=frontend_frames.refusing, record=tmp_path / "kept")
    with pytest.raises(ValueError, match="no kernel") as failed:
        captured(*inspect.signature(step).bind(**state.locals).args[:2])
    (bundle,) = (tmp_path / "kept").iterdir()
    assert f"torchrepro check --trust source {bundle}" in failed.value.__notes__[0]
    assert read_manifest(bundle).compiler.frontend is Frontend.TORCHREPRO


def test_a_call_is_recorded_as_it_began_where_a_later_region_fails(tmp_path: Path) -> None:
    def outer() -> Any:
        def late(x: torch.Tensor) -> torch.Tensor:
            print(end="")
            return x + 1

        return late

    captured = trace(outer(), backend=frontend_frames.refusing, record=tmp_path)
    with pytest.raises(ValueError, match="no kernel") as failed:
        captured(torch.ones(2))
    (bundle,) = tmp_path.iterdir()
    assert f"torchrepro check --trust source {bundle}" in failed.value.__notes__[0]


def test_the_error_of_a_nested_function_is_the_same_wherever_it_is_nested() -> None:
    def outer() -> Any:
        return lambda x: print(x)

    def other() -> Any:
        return lambda x: print(x)

    told = []
    for made in (outer(), other()):
        with pytest.raises(CaptureError) as failed:
            trace(made, backend="eager", fullgraph=True)(torch.ones(2))
        told.append(Signature.of(verdict_of(failed.value)))
    assert told[0] == told[1]


@pytest.mark.slow
class TestReplayByOurOwnFrontEnd:
    @pytest.mark.thorough
    def test_a_healthy_frame_passes_with_either_front_end(self, tmp_path: Path) -> None:
        own = Compiler("eager", frontend=Frontend.TORCHREPRO)
        bundle = record_frame(*step_frame(), None, tmp_path / "frame", compiler=own)
        for words in ((), ("--frontend", "dynamo")):
            checked = torchrepro("check", "--json", "--trust", "source", *words, bundle, cwd=tmp_path)
            assert checked.returncode == 0, checked.stderr + checked.stdout
            assert answer(checked)["verdict"] == "pass"

    def test_a_frame_that_cannot_be_compiled_fails_again_in_the_same_way(self, tmp_path: Path) -> None:
        step, state = step_frame()
        captured = trace(step, backend=frontend_frames.refusing)
        with pytest.raises(ValueError, match="no kernel") as failed:
            captured(*inspect.signature(step).bind(**state.locals).args[:2])
        own = Compiler("frontend_frames:refusing", frontend=Frontend.TORCHREPRO)
        bundle = record_frame(step, state, failed.value, tmp_path / "frame", compiler=own)
        trusting = ("--trust", "source", "--trust", "frontend_frames")
        place = Path(frontend_frames.__file__).parent
        checked = torchrepro("check", "--json", *trusting, bundle, cwd=place)
        assert checked.returncode == 1, checked.stderr + checked.stdout
        assert answer(checked)["signature"].startswith("compile_error | backend | ValueError")

    def test_a_frame_that_is_not_one_graph_fails_again_in_capture(self, tmp_path: Path) -> None:
        function, x = frontend_frames.speaking, torch.ones(2)
        with pytest.raises(CaptureError) as failed:
            trace(function, backend="eager", fullgraph=True)(x)
        own = Compiler("eager", fullgraph=True, frontend=Frontend.TORCHREPRO)
        bundle = record_frame(function, state_of(function, x), failed.value, tmp_path / "f", compiler=own)
        checked = torchrepro("check", "--json", "--trust", "source", bundle, cwd=tmp_path)
        assert checked.returncode == 1, checked.stderr + checked.stdout
        assert answer(checked)["signature"].startswith("compile_error | capture | CaptureError")

    def test_compare_takes_a_front_end(self, tmp_path: Path) -> None:
        model = tmp_path / "model.py"
        model.write_text("import torch\n\ndef build():\n    return lambda x: x.sin() + 1, (torch.ones(3),)\n")
        words = ("--backend", "eager", "--frontend", "torchrepro", "--json")
        compared = torchrepro("compare", "model.py:build", *words, cwd=tmp_path)
        assert compared.returncode == 0, compared.stderr + compared.stdout
