"""Scripts as a reader sees them: the whole text, for one failure of each kind."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from script_cases import ERROR, captured, first_text, lowered, scripts_for, wrong

from torchrepro.graph_text.metadata import symbols_of
from torchrepro.nouns.repro import Ambient, Autocast, Compiler, Place, Repro
from torchrepro.nouns.verdict import Difference, Kind, Raised, Stage, Verdict
from torchrepro.script.candidates import first_script, input_names
from torchrepro.script.document import with_facts

_X = torch.ones(2, 3)


def _expect(repro: Repro, verdict: Verdict, text: str) -> None:
    assert first_text(repro, verdict) == text
    compile(text, "repro.py", "exec")


def test_a_wrong_result() -> None:
    x = torch.full((17,), 20, dtype=torch.uint8)
    _expect(
        captured(lambda x: x.amin(), x),
        wrong(eager="20", compiled="0"),
        """\
import torch


def f(x):
    return x.amin()


x = torch.full((17,), 20, dtype=torch.uint8)
eager = f(x)
compiled = torch.compile(f)(x)
torch.testing.assert_close(compiled, eager)
""",
    )


def test_one_of_several_results() -> None:
    _expect(
        captured(lambda x: (x + 1, x * 2), _X),
        wrong("out[1]"),
        """\
import torch


def f(x):
    return x + 1, x * 2


x = torch.ones(2, 3)
eager = f(x)
compiled = torch.compile(f)(x)
torch.testing.assert_close(compiled[1], eager[1])
""",
    )


def test_an_error() -> None:
    _expect(
        lowered(lambda x: torch.relu(x), _X.t()),
        ERROR,
        """\
import torch


def f(x):
    return torch.relu(x)


x = torch.ones(2, 3).t()
f(x)  # eager is fine
torch.compile(f)(x)  # NotImplementedError: no lowering for aten.foo
""",
    )


def test_a_crash_in_backward() -> None:
    x = torch.ones(3, requires_grad=True)
    _expect(
        captured(lambda x: x.exp(), x),
        Verdict(Kind.CRASH, Stage.BACKEND, signal="SIGSEGV"),
        """\
import torch


def f(x):
    return x.exp()


x = torch.ones(3, requires_grad=True)
f(x).sum().backward()  # eager is fine
torch.compile(f)(x).sum().backward()  # SIGSEGV
""",
    )


def test_a_wrong_gradient() -> None:
    x, w = torch.full((2, 3), 2.0, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    _expect(
        captured(lambda x, w: F.linear(x, w), x, w),
        wrong('grad["inputs[1]"]'),
        """\
import torch
import torch.nn.functional as F


def f(x, w):
    return F.linear(x, w)


def run(f):
    x = torch.full((2, 3), 2.0, requires_grad=True)
    w = torch.ones(4, 3, requires_grad=True)
    out = f(x, w)
    out.sum().backward()
    return w.grad


eager = run(f)
compiled = run(torch.compile(f))
torch.testing.assert_close(compiled, eager)
""",
    )


def test_the_gradient_as_it_was_judged() -> None:
    x = torch.ones(3, requires_grad=True)
    text = first_text(captured(lambda x: x.exp(), x), wrong('grad["inputs[0]"]'), exact=True)
    assert "    out.backward(torch.tensor([-0.875, -0.125, 0.875]))\n" in text


def test_an_input_that_is_written_to() -> None:
    def function(x: Any, y: Any) -> Any:
        y.copy_(x)
        return x + 1

    _expect(
        captured(function, _X, torch.zeros(2, 3)),
        wrong("inputs[0]"),
        """\
import torch


def f(y, x):
    y.copy_(x)
    return x + 1


def run(f):
    y = torch.zeros(2, 3)
    x = torch.ones(2, 3)
    f(y, x)
    return y


eager = run(f)
compiled = run(torch.compile(f))
torch.testing.assert_close(compiled, eager)
""",
    )


def test_what_stands_around_the_call() -> None:
    repro = captured(lambda x: x @ x, torch.ones(2, 2))
    ambient = Ambient(
        grad_enabled=False,
        autocast=(Autocast("cpu", "bfloat16"),),
        default_dtype="float64",
        threads=3,
        configs={"inductor": {"cpp.simdlen": 0}},
        environ={
            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
            "CXX": "clang++",
            "CC": "/usr/bin/gcc",
        },  # of this machine
    )
    compiler = Compiler(options={"max_fusion_size": 1})
    _expect(
        replace(repro, ambient=ambient, compiler=compiler),
        wrong(),
        """\
import os

os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"

import torch
import torch._inductor.config

torch.set_default_dtype(torch.float64)
torch.set_num_threads(3)
torch._inductor.config.cpp.simdlen = 0


def f(x):
    return x @ x


x = torch.ones(2, 2, dtype=torch.float32)
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    eager = f(x)
    compiled = torch.compile(f, options={"max_fusion_size": 1})(x)
torch.testing.assert_close(compiled, eager)
""",
    )


def test_dynamic_sizes() -> None:
    everything = first_text(captured(lambda x: x.view(x.shape[0], -1), torch.ones(3, 4), dynamic=True), ERROR)
    assert "torch.compile(f, dynamic=True)(x)" in everything


def test_a_dimension_that_alone_is_dynamic_is_marked() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, example_inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    x = torch.ones(3, 4)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(lambda x: x.view(x.shape[0], 2, 2).sum(0), backend=backend)(x)
    (graph,) = graphs
    text = first_text(Repro(graph, (3, torch.ones(3, 4)), symbols=symbols_of(graph)), wrong())
    assert "x = torch.ones(3, 4)\ntorch._dynamo.mark_dynamic(x, 0)\n" in text
    assert "torch.compile(f)(x)" in text


def test_random_draws_are_the_same_on_both_sides() -> None:
    _expect(
        captured(lambda x: F.dropout(x, 0.5), torch.ones(8)),
        wrong(),
        """\
import torch
import torch._inductor.config
import torch.nn.functional as F

torch._inductor.config.fallback_random = True  # draw as eager does


def f(x):
    return F.dropout(x)


def run(f):
    x = torch.ones(8)
    torch.manual_seed(0)
    return f(x)


eager = run(f)
compiled = run(torch.compile(f))
torch.testing.assert_close(compiled, eager)
""",
    )


def test_calls_that_came_before() -> None:
    repro = replace(captured(lambda x: x + 1, _X), earlier=((torch.ones(4, 3),), (torch.zeros(5, 3),)))
    text = first_text(repro, wrong())
    assert (
        "def run(f):\n    f(torch.ones(4, 3))\n    f(torch.zeros(5, 3))\n    x = torch.ones(2, 3)\n" in text
    )


def test_numbers_that_are_none_may_be_equal() -> None:
    x = torch.tensor([float("nan")] * 16 + [1.0])
    text = first_text(captured(F.softshrink, x), wrong(difference=Difference.NON_FINITE, eager="nan"))
    assert "assert_close(compiled, eager, equal_nan=True)" in text


def test_an_error_that_is_missing() -> None:
    verdict = Verdict(Kind.MISSING_ERROR, raised=Raised("RuntimeError", "p must be in [0, 1]"))
    p = torch.tensor([1.7])
    _expect(
        lowered(lambda p: torch.relu(p), p),
        verdict,
        """\
import torch


def f(x):
    return torch.relu(x)


def raises(f):
    try:
        f(x)
    except Exception as error:
        return type(error).__name__
    return "nothing"


x = torch.tensor([1.7])
eager, compiled = raises(f), raises(torch.compile(f))
assert compiled == eager, f"eager raises {eager}, compiled raises {compiled}"
""",
    )


def test_state_belongs_to_a_module() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(3))
            self.weight = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x: Any) -> Any:
            return x * self.mask + self.weight

    _expect(
        Repro(torch.fx.symbolic_trace(Scaled()), (torch.ones(3),)),
        wrong("out"),
        """\
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(3))
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x * self.mask + self.weight


model = Model()
x = torch.ones(3)
eager = model(x)
compiled = torch.compile(model)(x)
torch.testing.assert_close(compiled, eager)
""",
    )


def test_a_program_compiled_ahead_of_time() -> None:
    repro = replace(lowered(torch.relu, _X), place=Place.EXPORT, compiler=Compiler("aot_inductor"))
    text = first_text(repro, wrong("out"))
    assert "program = torch.export.export(model, (x,))\n" in text


def test_the_ladder_ends_with_the_graph_as_it_was_captured() -> None:
    scripts = scripts_for(lowered(lambda x: x + 1, _X), ERROR)
    assert [bool(script.remark) for script in scripts] == [False, True]
    assert "compile_fx_inner(graph, list(inputs))" in scripts[-1].text
    assert "torch.ops.aten.add.Tensor(" in scripts[-1].text
    assert "tensors.safetensors" in scripts[-1].side_files


def test_what_cannot_be_written_by_hand_is_left_to_the_bundle() -> None:
    leaf = torch.nn.Linear(2, 2)
    scripts = scripts_for(
        Repro(torch.fx.symbolic_trace(torch.nn.Sequential(leaf)), (torch.ones(1, 2),)), ERROR
    )
    assert len(scripts) == 1
    assert "the module 0 inside the graph" in scripts[0].remark


def test_the_docstring_says_what_goes_wrong_and_where_it_was_seen() -> None:
    text = with_facts(first_script(lowered(torch.relu, _X), ERROR), ["Any size will do."]).text
    lines = text.splitlines()
    assert lines[0] == '"""torch.compile raises NotImplementedError: no lowering for aten.foo.'
    assert lines[2].startswith(f"Seen with torch {torch.__version__} on ")
    assert lines[3:5] == ["Any size will do.", '"""']


def test_texts_do_not_change_from_one_time_to_the_next() -> None:
    repro = lowered(lambda x, y: (x + y).sum(), _X, _X * 2)
    assert scripts_for(repro, ERROR)[0] == first_script(repro, ERROR)


def test_inputs_are_named_as_in_the_script() -> None:
    repro = lowered(F.linear, _X, torch.ones(4, 3), torch.ones(4))
    text = first_script(repro, ERROR).text
    assert f"def f({', '.join(input_names(repro).values())}):" in text


@pytest.mark.skipif(shutil.which("ruff") is None, reason="formats with ruff")
def test_scripts_are_formatted() -> None:
    def function(first: Any, second: Any, third: Any) -> Any:
        values, indices = torch.sort(first, 1, descending=True)
        normal = F.batch_norm(values, second, third, None, None, True, 0.123456, 0.000123)
        joined = torch.cat([first, values, normal, first, values, normal, first, values, normal], dim=0)
        return joined.std(dim=(0, 1), keepdim=True) ** 2, torch.einsum("ij,kj->ik", first, values) + indices[
            0
        ]

    inputs = (torch.rand(4, 4), torch.zeros(4), torch.ones(4))
    repros = [(captured(function, *inputs), wrong("out[1]")), (lowered(function, *inputs), ERROR)]
    for repro, verdict in repros:
        for script in scripts_for(repro, verdict)[:-1]:
            arguments = ["ruff", "format", "--isolated", "--line-length", "100", "-"]
            shown = subprocess.run(arguments, input=script.text, capture_output=True, text=True, check=True)
            assert shown.stdout == script.text
