"""`torchrepro locate` as a user meets it."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import answer, torchrepro
from rich.console import Console

from torchrepro import Repro, save_bundle
from torchrepro.cli.locate import print_located
from torchrepro.cli.progress import Lines
from torchrepro.nouns.results import (
    Confidence,
    GuiltyGraph,
    GuiltyOp,
    Kernel,
    Located,
    Part,
    Rung,
    Way,
    Workaround,
)
from torchrepro.nouns.verdict import Kind, Stage

CONTRACT = {
    "stage",
    "pass",
    "graph",
    "op",
    "workaround",
    "workaround_verified",
    "compiles",
    "confidence",
}
FOUND = Located(
    bundle="b",
    kind=Kind.MISMATCH,
    directory="/run/b/located",
    stage=Stage.BACKEND,
    part=Part("vectorisation", "cpp.simdlen", "the failure goes away without vectorised C++ code"),
    graph=GuiltyGraph(1, 3, "b", "graph 1 of 3", "model.py:12 in forward"),
    op=GuiltyOp(
        "lo",
        "aten.amin.default",
        Way.WINDOW,
        "encoder.norm",
        "model.py:28 in forward: lo = [x].amin()",
        0.0,
        0.3,
    ),
    workaround=Workaround({"cpp.simdlen": 1}, "torch.compile(model, options={'cpp.simdlen': 1})", True),
    kernel=Kernel("cpp_fused_amin_0", "cpp", "...", "kernel.cpp"),
    rungs=(
        Rung("aot_eager", Stage.AOT, Kind.PASS),
        Rung("inductor", Stage.BACKEND, Kind.MISMATCH, "out"),
    ),
    compiles=15,
    seconds=31.4,
    confidence=Confidence.VERIFIED,
    notes=("of the target",),
)


def printed(located: Located) -> list[str]:
    file = io.StringIO()
    print_located(located, file=file)
    return file.getvalue().splitlines()


def test_the_answer_is_a_few_lines_and_last_of_all_its_path() -> None:
    lines = printed(FOUND)
    assert lines[0] == "the failing stage is the backend (generating and running code)"
    text = "\n".join(lines)
    assert "op           aten.amin.default (node lo)" in text
    assert "module       encoder.norm" in text
    assert "model.py:28 in forward: lo = [x].amin()" in text, "what is quoted is no markup"
    assert "workaround   torch.compile(model, options={'cpp.simdlen': 1})" in text
    assert "verified: the failure goes away" in text
    assert "graph 1 of 3; begins at model.py:12 in forward" in text
    assert [line.split() for line in lines if line.startswith("> ")] == [
        [">", "inductor", "backend", "mismatch", "out"]
    ]
    assert "note: of the target" in text
    assert lines[-1] == "/run/b/located/result.json"


def test_who_is_not_found_is_said_and_why() -> None:
    lines = printed(Located(bundle="b", kind=Kind.MISMATCH, stopped="the time is up"))
    assert lines[0] == "the culprit is unknown"
    assert "the time is up" in lines[1]
    healthy = printed(Located(bundle="b", kind=Kind.PASS, notes=("it does not fail here, in 3 runs",)))
    assert healthy[0] == "no culprit: it does not fail here"
    assert "in 3 runs" in healthy[-1]


def test_exit_codes_and_keys_are_those_of_the_contract() -> None:
    assert FOUND.exit_code == 0
    assert Located(bundle="b", kind=Kind.MISMATCH).exit_code == 1
    assert set(FOUND.to_dict()) >= CONTRACT
    assert FOUND.to_dict()["pass"] == "cpp.simdlen"
    assert replace(FOUND, workaround=None).to_dict()["workaround_verified"] is False


def test_in_a_pipe_each_question_is_a_line_once() -> None:
    file = io.StringIO()
    lines = Lines(Console(file=file), phases=True)
    for message in (
        {"phase": "load"},
        {"phase": "locate"},
        {"step": "a [stage]"},
        {"step": "a [stage]"},
        {"other": 1},
        {"stopping": True},
    ):
        lines.show(message)
    assert file.getvalue().splitlines() == [
        "torchrepro: loading the bundle",
        "torchrepro: a [stage]",
        "torchrepro: stopping: returning what was found so far (Ctrl-C again leaves at once)",
    ]


@pytest.mark.slow
def test_a_real_bug_of_torch_is_located_and_the_answer_given_again_at_once(tmp_path: Path) -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the bugs are those of torch 2.13")
    # pytorch #191499: the smallest byte of a vector is polluted by lanes that are not in use.
    graph = torch.fx.symbolic_trace(lambda x: ((x + 1).amin(),))
    inputs = (torch.randint(20, 120, (64,), dtype=torch.uint8),)
    bundle = save_bundle(Repro(graph, inputs), tmp_path / "failing")
    finished = torchrepro("locate", bundle, "--json")
    found = answer(finished)
    assert finished.returncode == 0, finished
    assert set(found) >= CONTRACT
    assert (found["stage"], found["op"]["node"], found["confidence"]) == ("backend", "amin", "verified")
    assert found["workaround_verified"] is True
    kept = bundle / "located"
    assert "kernel(" in (kept / found["kernel"]["file"]).read_text()
    assert sorted(path.name for path in kept.iterdir()) == [
        "kernel.cpp",
        "lock",
        "output_code.py",
        "result.json",
        "run.json",
    ]

    began = time.monotonic()
    again = torchrepro("locate", bundle)
    assert time.monotonic() - began < 10, "no torch is imported"
    assert again.stdout.splitlines()[-1] == str(kept / "result.json")


@pytest.mark.thorough
def test_what_cannot_be_located_is_one_line_and_what_does_not_fail_has_nobody_guilty(tmp_path: Path) -> None:
    missing = torchrepro("locate", tmp_path / "nowhere")
    assert missing.returncode == 125
    assert "does not exist" in missing.stderr
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    healthy = torchrepro(
        "locate", save_bundle(Repro(graph, (torch.ones(3),)), tmp_path / "healthy"), "--json"
    )
    assert healthy.returncode == 1
    assert (answer(healthy)["kind"], answer(healthy)["found"]) == ("pass", False)
