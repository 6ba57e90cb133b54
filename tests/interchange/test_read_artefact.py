"""An artefact is read line by line and never executed; what cannot be understood is named with its line."""

from __future__ import annotations

from contextlib import suppress

import pytest
from artefact_text import ONE_TENSOR, SAMPLES, artefact
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.interchange.artefact import NumberInput, TensorInput
from torchrepro.interchange.find_artefacts import find_artefacts
from torchrepro.interchange.read_artefact import read_artefact
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place


def graph_lines(text: str) -> list[str]:
    return [line.strip() for line in read_artefact(text, "sample.py").graph_text.splitlines() if line.strip()]


def test_the_graph_keeps_the_lines_of_the_artefact() -> None:
    text = (SAMPLES / "aot_2_13" / "minifier_launcher.py").read_text()
    found = read_artefact(text, "minifier_launcher.py").graph_text.split("\n")
    relu = next(number for number, line in enumerate(text.split("\n")) if "relu = torch" in line)
    assert found[relu].strip() == "relu = torch.ops.aten.relu.default(addmm)"


@pytest.mark.parametrize("version", ["2_11", "2_13"])
def test_dynamic_sizes_are_symbols_with_the_values_they_had(version: str) -> None:
    (payload,) = find_artefacts(SAMPLES / f"trace_{version}")
    found = read_artefact(payload.text, "trace")
    assert found.symbols == {"s77": 5, "s86": 3}
    assert [item.expression for item in found.inputs if isinstance(item, NumberInput)] == ["s77", "s86"]
    tensor = found.inputs[3]
    assert isinstance(tensor, TensorInput)
    assert [(size.value, str(size)) for size in tensor.shape] == [(5, "s77"), (4, "4")]
    assert "f32[s77, 4]" in found.graph_text


def test_a_launcher_says_place_settings_backend_and_version() -> None:
    found = read_artefact((SAMPLES / "aot_2_11" / "minifier_launcher.py").read_text(), "launcher")
    assert (found.place, found.torch, found.accuracy) == (Place.AFTER_AOT, "2.11.0+cu130", False)
    assert found.configs["inductor"]["cpp.inject_relu_bug_TESTING_ONLY"] == "compile_error"
    captured = read_artefact((SAMPLES / "dynamo_2_13" / "minifier_launcher.py").read_text(), "launcher")
    assert (captured.place, captured.backend) == (Place.AFTER_CAPTURE, "inductor")


def test_what_fx_spells_otherwise_is_translated() -> None:
    lines = graph_lines(
        artefact(
            "y = x",
            "y += 1;  z = y;  y = None",
            "part = z[(Ellipsis, slice(0, 2, None))]",
            "made = torch.ops.aten.full.default([2], inf, device = device(type='cpu'), pin_memory = False)",
            "set_1 = _operator_setitem(z, 0, made);  set_1 = None",
            "buffer = torch.sin(z)",
            "return (part, made, buffer, math_floor(1.5))",
            parameters="L_x_",
        ).replace("y = x", "y = L_x_", 1)
    )
    assert lines[-7:] == [
        'def forward(self, y = arg("L_x_")):',
        "z = operator.iadd(y, 1)",
        "part = z[..., slice(0, 2, None)]",
        "made = torch.ops.aten.full.default([2], inf, device=torch.device('cpu'), pin_memory=False)",
        "set_1 = operator.setitem(z, 0, made)",
        'buffer_ = named("buffer", torch.sin(z))',
        "return (part, made, buffer_, math.floor(1.5))",
    ]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (artefact("for y in x: pass", "return (x,)"), 13, "no node of a graph"),
        (artefact("return (x,)", state="self.m = <lambda>()"), 11, "could not write the module"),
        (artefact(load=ONE_TENSOR.replace("None, 12", "'../../etc/passwd', 12")), 17, "no name of a storage"),
        (artefact(load=ONE_TENSOR.replace("(3,)", "(3 ** 99999,)")), 18, "is no size"),
        (artefact(load=ONE_TENSOR.replace("(3,)", "(9999999999 * 9999999999,)")), 18, "larger than a tensor"),
        (artefact(load=ONE_TENSOR.replace("(3,)", "(s0,)")), 18, "has no value"),
        (artefact(load=ONE_TENSOR.replace("(3,)", "(__import__('os').system('x'),)")), 18, "is no size"),
        (
            artefact(load="def load_args(reader):\n    import os\n    os.system('x')"),
            17,
            "does not load an input",
        ),
        (artefact(load="def load_args(reader):\n    reader.unsupported('x')"), 17, "no tensor or number"),
        (artefact(parameters="x, y"), 12, "takes 2 inputs"),
        (artefact(parameters="x, *y"), 12, "plain parameters"),
        (artefact("y = triton_kernel_wrapper_mutation(kernel_idx = 0)", "return (x,)"), 13, "Triton kernel"),
        (artefact(state="self.register_buffer('b', open('/etc/passwd'))"), 11, "no tensor that torch writes"),
        (artefact(state="self.register_buffer('b', tensor(exec('x')))"), 11, "is no value of a tensor"),
        (artefact(state="self.m = Linear.__class__(1, 2)"), 11, "no module of torch.nn"),
        (artefact(place="aoti"), 21, "where in the compiler"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(text: str, line: int, reason: str) -> None:
    with pytest.raises(TorchReproError) as error:
        read_artefact(text, "sample.py")
    assert error.value.fact.startswith(f"line {line}: ")
    assert reason in error.value.fact
    assert error.value.next_step


def test_code_around_the_graph_is_a_note_and_does_not_run() -> None:
    top = "__import__('os').system('touch /tmp/torchrepro-was-here')\ntorch._inductor.config.post_grad = f(x)"
    found = read_artefact(artefact(top=top), "sample.py")
    assert [note.partition(":")[0] for note in found.notes] == ["line 6 has no part in the bundle", "line 7"]


def test_nesting_without_end_is_refused() -> None:
    for text in (artefact("return " + "(" * 5000), artefact("return (" + "-" * 100_000 + "x,)")):
        with pytest.raises(TorchReproError):
            read_artefact(text, "sample.py")


_WORDS = st.sampled_from(
    [
        *(
            "x",
            "y = ",
            "torch.sin(x)",
            "None",
            "self.",
            "reader.tensor(",
            "buf0",
            ")",
            "(",
            "[",
            "]",
            ",",
            ";",
        ),
        *(
            "__import__('os')",
            "lambda: 0",
            "f'{x}'",
            "1e999",
            "9" * 400,
            "s0",
            "*",
            "**",
            "//",
            "\n        ",
            "=",
            ":",
        ),
        *(
            "return",
            "class A: pass",
            "'\\x00'",
            "tensor([",
            "Ellipsis",
            "device(type='cpu')",
            "await x",
            "x := 1",
        ),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WORDS, max_size=12).map(" ".join), st.sampled_from(["body", "state", "load", "top"]))
def test_any_text_is_read_or_refused_with_a_reason(words: str, where: str) -> None:
    parts: dict[str, str] = {}
    if where == "body":
        text = artefact(words, "return (x,)")
    else:
        parts[where] = f"def load_args(reader):\n    {words}" if where == "load" else words
        text = artefact(**parts)  # type: ignore[arg-type]
    with suppress(TorchReproError):  # any other exception is a bug
        read_artefact(text, "sample.py")
