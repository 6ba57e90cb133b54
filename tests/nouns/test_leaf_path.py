"""Where a value lies, taken apart."""

from __future__ import annotations

import pytest

from torchrepro.nouns.verdict import LeafPath


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("", None, "", "")),
        ("out", ("out", None, "", "")),
        ("out[0]", ("out", 0, "", "")),
        ("out[12].hidden[3]", ("out", 12, "", ".hidden[3]")),
        ('out["logits"][1]', ("out", None, "logits", "[1]")),
        (".last_hidden_state", ("", None, "", ".last_hidden_state")),
        ("inputs[3].values()", ("inputs", 3, "", ".values()")),
        ('grad["inputs[3]"]', ("grad", 3, "", "")),
        ('grad["inputs[3][0]"]', ("grad", 3, "", "[0]")),
        ("""grad["inputs['x']"]""", ("grad", None, "inputs['x']", "")),
        ('grad["layers.0.weight"]', ("grad", None, "layers.0.weight", "")),
        ('state["running_mean"]', ("state", None, "running_mean", "")),
        ('python["globals.seen"][2]', ("python", None, "globals.seen", "[2]")),
    ],
)
def test_a_path_has_its_parts_and_keeps_its_text(text: str, parts: tuple[object, ...]) -> None:
    path = LeafPath.parse(text)
    assert (path.part, path.index, path.name, path.rest) == parts
    assert str(path) == text


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        ("out[1]", "b"),
        ("out[1].x", "b"),
        ("out[2]", None),
        ("inputs[0]", "x"),
        ('grad["inputs[0]"]', "x"),
        ('grad["weight"]', None),
        ('state["weight"]', None),
        ("out", None),
    ],
)
def test_a_path_belongs_to_an_output_or_an_input(text: str, owner: str | None) -> None:
    assert LeafPath.parse(text).owner(["a", "b"], ["x"]) == owner
