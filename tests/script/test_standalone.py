"""The standalone `repro.py`: plain torch, exits 1 exactly if the recorded failure shows again."""

from __future__ import annotations

import inspect
import operator
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import capture
from script_cases import ERROR, wrong

from torchrepro import Compiler, Kind, Place, Repro, Signature, save_bundle
from torchrepro.bundle.manifest import decode_manifest
from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.nouns.repro import Ambient, Autocast
from torchrepro.nouns.verdict import Stage, Verdict
from torchrepro.script import standalone, standalone_runtime
from torchrepro.script.standalone import standalone_script
from torchrepro.state.ambient import capture_ambient
from torchrepro.user_code.closure.text import RESERVED

INJECTED = "cpp.inject_relu_bug_TESTING_ONLY"
"""A setting of torch itself that breaks the kernel of relu."""


def saved(repro: Repro, path: Path) -> Path:
    """A bundle with the verdict that the repro gets now."""
    verdict = judge_repro(repro)
    return save_bundle(replace(repro, expected=Signature.of(verdict)), path, verdict=verdict)


def run(bundle: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(bundle / "repro.py")], cwd="/", capture_output=True, text=True, timeout=200
    )


def with_bug(repro: Repro, bug: str) -> Repro:
    return replace(repro, ambient=replace(capture_ambient(), configs={"inductor": {INJECTED: bug}}))


def without_bug(bundle: Path) -> None:
    """The same script on a compiler that has been fixed."""
    script = bundle / "repro.py"
    kept = [line for line in script.read_text().splitlines() if INJECTED not in line]
    script.write_text("\n".join(kept))


def relu(dynamic: bool | None) -> Repro:
    (found,) = (
        item
        for item in capture(lambda x: torch.relu(x).sum(-1), torch.randn(5, 33), dynamic=dynamic)
        if item.place == "inference"
    )
    return Repro(found.graph, found.inputs, Place.AFTER_AOT, symbols=symbols_of(found.graph))


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.thorough)])
def test_after_aot_a_wrong_value_shows_and_a_fixed_compiler_passes(
    dynamic: bool | None, tmp_path: Path
) -> None:
    bundle = saved(with_bug(relu(dynamic), "accuracy"), tmp_path / "b")
    failing = run(bundle)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert failing.stdout.endswith("reproduced\n")
    without_bug(bundle)
    fixed = run(bundle)
    assert fixed.returncode == 0, fixed.stdout + fixed.stderr
    assert fixed.stdout.endswith("not reproduced\n")


@pytest.mark.slow
@pytest.mark.thorough
def test_a_compile_error_shows_and_another_error_does_not_count(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    repro = with_bug(Repro(graph, (torch.randn(33),)), "compile_error")
    bundle = saved(repro, tmp_path / "b")
    failing = run(bundle)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert "CppCompileError" in failing.stdout
    script = bundle / "repro.py"
    script.write_text(script.read_text().replace("compile_error", "runtime_error"))
    other = run(bundle)
    assert other.returncode == 0, other.stdout + other.stderr


@pytest.mark.slow
def test_values_that_no_line_of_code_makes_come_from_a_file_next_to_the_script(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda a, b, c: (torch.sparse.mm(a, b), c))
    coo = torch.eye(3).to_sparse()
    non_leaf = torch.ones(3, 2, requires_grad=True) * 2
    inputs = (coo, non_leaf, torch.tensor([1 + 2j]).conj())
    bundle = save_bundle(Repro(graph, inputs, compiler=Compiler("aot_eager")), tmp_path / "b")
    assert (bundle / "values.pt").exists()
    finished = run(bundle)
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.slow
def test_nested_graphs_constants_and_state_are_in_the_script(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> Any:
        scaled = x * torch.tensor([0.5, 2.0])
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (scaled,))

    found = capture(function, torch.ones(3, 2))[0]
    repro = Repro(found.graph, found.inputs, compiler=Compiler("aot_eager"))
    finished = run(save_bundle(repro, tmp_path / "b"))
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_a_script_that_cannot_be_made_says_where_to_go(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    bundle = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "b")
    manifest = decode_manifest((bundle / "manifest.json").read_bytes(), "here")
    text = "class Graph:\n    def forward(self, x):\n        y = sym(u0)\n        return y\n"
    assert "torchrepro check" in standalone_script(manifest, text, None)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_signature_without_a_failure_makes_a_script_that_only_runs(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    repro = Repro(graph, (torch.ones(2),), compiler=Compiler("eager"), expected=Signature(Kind.PASS))
    assert run(save_bundle(repro, tmp_path / "b")).returncode == 0


# Scripts of every form, run here with the eager backend: nothing is compiled.

EAGER = Compiler("eager")
CALLS: dict[str, int] = {"count": 0}


def users_function(x: torch.Tensor, factor: int, *, shift: int = 2) -> torch.Tensor:
    CALLS["count"] += 1
    return x * factor + shift


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.register_buffer("scale", torch.ones(4))
        self.shift = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return (self.layers(x) * self.scale + self.shift,)


def relu_graph() -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (torch.relu(x),)), (torch.ones(3),), compiler=EAGER)


def writing_graph() -> Repro:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    total = graph.call_function(operator.iadd, (graph.call_function(operator.add, (a, b)), b))
    graph.call_function(operator.setitem, (total, 0, float("inf")))
    part = graph.call_function(operator.getitem, (total, (slice(None, 1), 0)))
    graph.output((total, graph.call_method("neg", (part,))))
    return Repro(torch.fx.GraphModule({}, graph), (torch.ones(2, 2), torch.ones(2, 2)), compiler=EAGER)


def under_autocast() -> Repro:
    ambient = Ambient(autocast=(Autocast("cpu", "bfloat16", True, True),), grad_enabled=False)
    graph = torch.fx.symbolic_trace(lambda x: (x @ x,))
    return Repro(graph, (torch.ones(2, 2),), compiler=EAGER, ambient=ambient)


FORMS: dict[str, Callable[[], Repro]] = {
    "modules with state": lambda: Repro(
        torch.fx.symbolic_trace(Model()), (torch.ones(3, 4, requires_grad=True),), compiler=EAGER
    ),
    "writes in place": writing_graph,
    "autocast without gradients": under_autocast,
    "earlier calls": lambda: replace(relu_graph(), earlier=((torch.zeros(3),), (torch.ones(3),))),
    "below AOT": lambda: replace(relu_graph(), place=Place.AFTER_AOT),
    "a call of a function": lambda: repro_of_call(
        users_function, (torch.ones(2), 3), {"shift": 4}, compiler=EAGER, ambient=Ambient()
    ),
    "a call of a module": lambda: repro_of_call(
        Model(), (torch.ones(3, 4),), {}, compiler=EAGER, ambient=Ambient()
    ),
}


def run_here(bundle: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the script prints; it must end with 0."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(bundle / "repro.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert ended.value.code == 0, f"{ended.value.code} {printed}"
    return printed


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_repro_runs(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run_here(save_bundle(FORMS[form](), tmp_path / "b"), capsys)
    assert printed == "not reproduced\n"


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (wrong(), ""),
        (ERROR, ""),
        (Verdict(Kind.MISSING_ERROR, Stage.BACKEND), "eager does not raise any more\n"),
        (Verdict(Kind.HANG, Stage.BACKEND, seconds=70.0), ""),
        (
            Verdict(Kind.CRASH, Stage.BACKEND),
            "if the next line is missing, the process has crashed: reproduced\n",
        ),
    ],
    ids=lambda value: value.kind.value if isinstance(value, Verdict) else "",
)
def test_a_failure_that_does_not_show_is_not_reproduced(
    verdict: Verdict, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repro = replace(relu_graph(), expected=Signature.of(verdict))
    bundle = save_bundle(repro, tmp_path / "b", verdict=verdict)
    assert run_here(bundle, capsys) == f"{told}not reproduced\n"


def test_a_lost_side_effect_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verdict = wrong('python["globals.CALLS"]["count"]')
    repro = replace(FORMS["a call of a function"](), expected=Signature.of(verdict))
    bundle = save_bundle(repro, tmp_path / "b", verdict=verdict)
    script = bundle / "repro.py"
    # A compiler that loses what the function does to a dictionary.
    lossy = "    return lambda *args, **kwargs: args[0] * args[1] + kwargs['shift']"
    text = script.read_text()
    assert '    return torch.compile(module, backend="eager")' in text
    script.write_text(text.replace('    return torch.compile(module, backend="eager")', lossy))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 1
    assert 'python["globals.CALLS"]["count"] differs' in capsys.readouterr().out


def test_a_defect_of_the_script_writer_does_not_cost_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise KeyError("a defect")

    monkeypatch.setattr(standalone, "standalone_script", broken)
    bundle = save_bundle(relu_graph(), tmp_path / "b")
    manifest = decode_manifest((bundle / "manifest.json").read_bytes(), "here")
    assert "repro.py could not be written (KeyError: 'a defect')" in manifest.notes
    assert "torchrepro check" in (bundle / "repro.py").read_text()


def test_code_of_the_user_keeps_clear_of_the_names_of_the_script() -> None:
    own = {name for name, value in vars(standalone_runtime).items() if inspect.isfunction(value)}
    constants = {name for name in vars(standalone_runtime) if name.isupper()}
    assert own | constants <= set(RESERVED)
