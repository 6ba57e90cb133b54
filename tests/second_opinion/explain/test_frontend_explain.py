"""What a person is told about a capture: graphs, breaks with their lines, functions, the second opinion."""

from __future__ import annotations

import json
import subprocess
import sys

import frontend_explained as explained
import pytest
import torch
from rich.console import Console

import torchrepro
from torchrepro import CaptureExplanation, TorchReproError, explain_capture
from torchrepro.frontend.graph_breaks import BreakKind
from torchrepro.report.text import WIDTH
from torchrepro.second_opinion.explain_call import explain_call


@pytest.fixture
def x() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0])


def test_one_graph_needs_no_explanation(x: torch.Tensor) -> None:
    told = explain_capture(explained.straight, x)
    assert told.whole
    assert (len(told.graphs), told.ops, told.breaks) == (1, 3, ())
    assert told.summary == "straight became one graph with 3 operations: nothing in it needs Python."
    assert torch.equal(told.result, explained.straight(x))


def test_functions_in_the_graph_are_counted(x: torch.Tensor) -> None:
    (inlined,) = explain_capture(explained.straight, x).inlined
    assert (inlined.name, inlined.times) == ("scaled", 2)
    assert inlined.file == explained.__file__


def test_a_decision_on_a_tensor_is_told_with_its_line_and_what_to_write(x: torch.Tensor) -> None:
    told = explain_capture(explained.deciding, x)
    (found,) = told.breaks
    assert found.kind is BreakKind.DATA
    assert found.place.text == "    if y.sum() > 0:"
    assert found.place.function == "deciding"
    assert found.expression == "y.sum() > 0"
    assert found.reason == "a decision (if, while, and, or, not) needs the value of a tensor"
    assert "torch.where" in found.hint
    assert [region.after for region in told.regions] == [1, None]
    assert not told.whole
    assert torch.equal(told.result, explained.deciding(x))


def test_the_expression_is_underlined(x: torch.Tensor) -> None:
    lines = str(explain_capture(explained.deciding, x)).splitlines()
    quoted = next(number for number, line in enumerate(lines) if line.endswith("if y.sum() > 0:"))
    start = lines[quoted].index("y.sum()")
    assert lines[quoted + 1] == " " * start + "^" * len("y.sum() > 0")


def test_a_break_in_a_called_function_is_told_once_with_its_callers(x: torch.Tensor) -> None:
    told = explain_capture(explained.calls_speaking, x)
    (found,) = told.breaks
    assert found.kind is BreakKind.OUTSIDE
    assert [place.function for place in found.frames] == ["calls_speaking", "speaking"]
    assert found.frames[0].text.strip() == "y = speaking(x)"
    assert [region.depth for region in told.regions] == [0, 1, 1, 0]
    assert told.regions[0].calls == "speaking"
    assert told.native == ('print("spoken")',)
    assert "called at" in str(told)


def test_a_function_that_is_captured_already_does_not_break_anew(x: torch.Tensor) -> None:
    told = explain_capture(explained.calls_speaking_twice, x)
    assert len(told.breaks) == 1


def test_guards_graphs_and_code_are_there_to_read(x: torch.Tensor) -> None:
    told = explain_capture(explained.deciding, x)
    first, second = told.regions
    assert first.graph.startswith("def forward(self, x):")
    assert "None" not in first.graph
    assert first.inputs[0].source == "argument x"
    assert first.inputs[0].tensor == "float32 (3,)"
    assert any(line.startswith("argument x: Tensor of float32, shape (3,)") for line in first.guards)
    assert second.inputs[0].source == "variable y"
    assert first.code.startswith("def region(")
    assert not any(" at 0x" in line for region in told.regions for line in region.guards)


def test_a_module_and_its_keywords(x: torch.Tensor) -> None:
    gate = explained.Gate()
    told = explain_capture(gate, x, twice=True)
    assert told.name == "Gate"
    assert {given.source for given in told.regions[0].inputs} >= {"self.linear.weight", "self.linear.bias"}
    assert torch.equal(told.result, gate(x, twice=True))


def test_an_error_of_the_function_is_kept_beside_what_was_captured(x: torch.Tensor) -> None:
    told = explain_capture(explained.raising, x)
    assert isinstance(told.error, ValueError)
    assert told.raised == "ValueError: too large"
    assert told.breaks[0].kind is BreakKind.RAISES
    assert told.summary.startswith("The call raised ValueError: too large.")


def test_the_rest_of_a_function_that_python_runs_is_named(x: torch.Tensor) -> None:
    told = explain_capture(explained.handling, x)
    (found,) = told.breaks
    assert found.rest_of == "handling"
    assert told.native == ("the rest of handling",)
    assert "From here Python runs the rest of handling." in " ".join(str(told).split())


def test_the_function_really_runs_once(x: torch.Tensor, capsys: pytest.CaptureFixture[str]) -> None:
    explain_capture(explained.speaking, x)
    assert capsys.readouterr().out == "spoken\n"
    found: dict[str, torch.Tensor] = {}
    told = explain_capture(explained.changing, found, x)
    assert told.result is found
    assert x.tolist() == [2.0, 3.0, 4.0]


def test_what_is_not_captured_says_why(x: torch.Tensor) -> None:
    told = explain_capture(explained.yielding, x)
    assert told.regions == ()
    assert "a generator is captured as part of the function that uses it" in told.notes[0]
    assert "run by Python alone" in told.summary
    assert explain_capture(explained.untouched, x).summary == (
        "untouched does nothing with tensors that could become a graph."
    )


def test_a_loop_with_a_break_in_its_body_is_told_as_such(x: torch.Tensor) -> None:
    found = [
        each
        for each in explain_capture(explained.numbers, x).breaks
        if each.place.text.strip().startswith("for")
    ]
    # A front end that follows running iterators has no such break, and nothing to tell.
    for each in found:
        assert each.reason.startswith("the loop began before a break")


def test_a_place_that_is_captured_too_often_is_a_note(x: torch.Tensor) -> None:
    told = explain_capture(explained.numbers, x)
    assert any("Python runs what reads a number that changes from now on" in note for note in told.notes)


def test_what_is_not_python_is_refused_with_the_next_step() -> None:
    with pytest.raises(TorchReproError, match="wrap the call in a function"):
        explain_capture(len, [1])


def test_of_a_captured_or_compiled_function_the_original_is_explained(x: torch.Tensor) -> None:
    for wrapped in (
        torchrepro.trace(explained.deciding, backend="eager"),
        torch.compile(explained.deciding, backend="eager"),
        torchrepro.trace(explained.Gate(), backend="eager"),
    ):
        assert len(explain_capture(wrapped, x).breaks) == 1


def test_a_notebook_shows_it_escaped(x: torch.Tensor) -> None:
    assert "y.sum() &gt; 0" in explain_capture(explained.deciding, x)._repr_html_()


def test_a_backend_compiles_the_graphs(x: torch.Tensor) -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        seen.append(len(inputs))
        return graph.forward

    explain_call(explained.straight, (x,), backend=backend)
    assert seen == [1]


@pytest.mark.parametrize(
    "name", ["straight", "deciding", "calls_speaking", "numbers", "with_wide_text", "raising"]
)
def test_plain_text_is_readable_at_eighty_columns(name: str, x: torch.Tensor) -> None:
    told = explain_capture(getattr(explained, name), x)
    lines = told.text(guards=True, graphs=True, code=True).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert not any(line != line.rstrip() for line in lines)
    assert "\x1b" not in str(told)


def test_rich_shows_it(x: torch.Tensor) -> None:
    told = explain_capture(explained.calls_speaking, x)
    console = Console(width=WIDTH, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(told)
    assert "calls speaking" in console.export_text()


def test_text_of_the_program_is_no_markup(x: torch.Tensor) -> None:
    def marked(x: torch.Tensor) -> torch.Tensor:
        print("[bold red]no colour[/]")
        return x

    assert 'print("[bold red]no colour[/]")' in str(explain_capture(marked, x))


def test_data_goes_through_json_and_back(x: torch.Tensor) -> None:
    told = explain_capture(explained.calls_speaking, x)
    data = json.loads(json.dumps(told.to_dict()))
    assert data["graphs"] == len(told.graphs)
    assert data["breaks"][0]["kind"] == "outside_world"
    again = CaptureExplanation.from_dict(data)
    assert again.breaks == told.breaks
    assert str(again) == str(told)


@pytest.mark.slow
def test_dynamo_is_asked_on_copies(x: torch.Tensor) -> None:
    before = x.clone()
    told = explain_capture(explained.deciding, x, dynamo=True)
    dynamo = told.dynamo
    assert dynamo is not None
    assert (dynamo.graphs, dynamo.ops) == (len(told.graphs), told.ops)
    ((reason, place),) = dynamo.breaks
    assert reason
    assert place.endswith(f"frontend_explained.py:{told.breaks[0].place.line}")
    assert dynamo.agree
    assert [each.who for each in dynamo.agreements] == ["torchrepro", "dynamo"]
    assert torch.equal(x, before)
    assert "gives what Python gives" in str(told)


@pytest.mark.slow
def test_a_difference_is_told_and_no_more_than_that(x: torch.Tensor) -> None:
    dynamo = explain_capture(explained.restless, x, dynamo=True).dynamo
    assert dynamo is not None
    assert not dynamo.agree
    assert "Python does not agree with itself" in dynamo.note


@pytest.mark.slow
def test_draws_are_the_same_for_all_three(x: torch.Tensor) -> None:
    state = torch.get_rng_state()

    def drawing(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    told = explain_capture(drawing, x, dynamo=True)
    assert told.dynamo is not None
    assert told.dynamo.agree
    torch.set_rng_state(state)
    assert torch.equal(told.result, drawing(x))


def test_the_names_are_public_and_lazy() -> None:
    assert {"trace", "explain_capture", "CaptureExplanation", "CaptureError"} <= set(dir(torchrepro))
    asked = "import sys, torchrepro; torchrepro.CaptureExplanation; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "False"
