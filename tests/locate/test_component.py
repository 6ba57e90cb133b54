"""What inside a stage is named as culprit, and what that costs, with a compiler that is wrong on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_compiler import Answer, Asked, inquiry_of, small_repro

from torchrepro.locate.component import Found, find_part, proved
from torchrepro.locate.context import Inquiry
from torchrepro.locate.switches import by_name
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.results import GuiltyOp, Part, Way
from torchrepro.nouns.verdict import Kind, Raised, Stage, Verdict

LOWERED = [f"aten.op{number}.default" for number in range(60)]
MET: Mapping[str, Sequence[str]] = {
    "lowerings": LOWERED,
    "patterns": ["pad_mm.mm", "joint_graph.pointless_view", "fuse_attention.sdpa"],
    "passes": ["remove_noop_ops", "pass_pattern_1"],
    "decompositions": ["aten.gelu.default", "aten.native_layer_norm.default", "aten.addmm.default"],
}


def wrong_unless(*ways_out: Mapping[str, object]) -> Answer:
    """Fails unless all of one of these is turned off: options by name and value, or `kind:name`."""

    def is_out(question: Asked, way: Mapping[str, object]) -> bool:
        return all(
            question.has_off(*name.split(":", 1))
            if ":" in name
            else question.options.get(name) == value
            or any(values.get(name) == value for values in question.repro.ambient.configs.values())
            for name, value in way.items()
        )

    return lambda question: Kind.PASS if any(is_out(question, way) for way in ways_out) else Kind.MISMATCH


def part_of(answer: Answer, stage: Stage = Stage.BACKEND, **how: object) -> tuple[Found | None, Inquiry]:
    inquiry = inquiry_of(answer, met=MET, **how)  # type: ignore[arg-type]
    return find_part(inquiry, stage), inquiry


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(LOWERED))
def test_a_wrong_lowering_is_named_in_few_questions(culprit: str) -> None:
    found, inquiry = part_of(wrong_unless({f"lowerings:{culprit}": 1}))
    assert found is not None
    assert (found.part.kind, found.part.name) == ("lowering", culprit)
    assert inquiry.asked <= 9


def test_a_lowering_that_the_error_names_costs_one_question() -> None:
    raised = Raised("LoweringException", f"ValueError: no\n  target: {LOWERED[7]}\n  args[0]: ...")
    found, inquiry = part_of(
        wrong_unless({f"lowerings:{LOWERED[7]}": 1}),
        verdict=Verdict(Kind.COMPILE_ERROR, Stage.BACKEND, raised=raised),
    )
    assert found is not None
    assert found.part.name == LOWERED[7]
    assert inquiry.asked == 1


def test_an_op_that_another_step_suspects_is_asked_about_first() -> None:
    inquiry = inquiry_of(wrong_unless({f"lowerings:{LOWERED[33]}": 1}), met=MET)
    found = find_part(inquiry, Stage.BACKEND, suspects=["torch.op33"])
    assert found is not None
    assert found.part.name == LOWERED[33]
    assert inquiry.asked == 2


@pytest.mark.parametrize(
    ("option", "value", "kind"),
    [
        ("cpp.simdlen", 1, "vectorisation"),
        ("max_fusion_size", 1, "fusion"),
        ("inplace_buffers", False, "option"),
        ("allow_buffer_reuse", False, "option"),
    ],
)
def test_an_option_of_code_generation_is_named_and_a_suspected_lowering_told_beside_it(
    option: str, value: object, kind: str
) -> None:
    answer = wrong_unless({option: value}, {"lowerings:aten.op3.default": 1})
    inquiry = inquiry_of(answer, met=MET)
    found = find_part(inquiry, Stage.BACKEND, suspects=["aten.op3.default"])
    assert found is not None
    assert (found.part.kind, found.part.name) == (kind, option)
    assert found.off.settings == {"inductor": {option: value}}
    assert "aten.op3.default" in found.part.detail
    assert inquiry.asked <= 9


@pytest.mark.parametrize("kind", ["patterns", "passes"])
def test_a_wrong_pass_is_named(kind: str) -> None:
    for name in MET[kind]:
        found, inquiry = part_of(wrong_unless({f"{kind}:{name}": 1}))
        assert found is not None
        assert (found.part.kind, found.part.name) == ("pass", name)
        assert inquiry.asked <= 8


def test_two_passes_that_do_it_together_are_both_named() -> None:
    first, second = MET["passes"]
    found, _ = part_of(wrong_unless({f"passes:{first}": 1, f"passes:{second}": 1}))
    assert found is not None
    assert set(found.off.parts["passes"]) == {first, second}


def test_a_pass_that_does_the_same_once_another_one_is_off_is_found_too() -> None:
    early, late = "remove_noop_ops", "reorder_for_locality"

    def answer(question: Asked) -> Kind:
        if question.has_off("passes", early):
            compiler.met = {**MET, "passes": [late]}
        return Kind.PASS if {early, late} <= set(question.off.get("passes", ())) else Kind.MISMATCH

    inquiry = inquiry_of(lambda question: Kind.MISMATCH, met=MET)
    compiler: Any = inquiry.oracle
    compiler.answer = answer
    found = find_part(inquiry, Stage.BACKEND)
    assert found is not None
    assert set(found.off.parts["passes"]) == {early, late}


def test_a_group_that_fails_in_a_way_of_its_own_when_turned_off_is_asked_by_halves() -> None:
    def answer(question: Asked) -> Kind:
        if len(question.off.get("lowerings", ())) > 40:
            return Kind.COMPILE_ERROR
        return Kind.PASS if question.has_off("lowerings", LOWERED[50]) else Kind.MISMATCH

    found, _ = part_of(answer)
    assert found is not None
    assert found.part.name == LOWERED[50]


def test_a_failure_of_another_kind_is_no_way_out() -> None:
    def answer(question: Asked) -> Kind:
        return Kind.COMPILE_ERROR if question.options or question.off else Kind.MISMATCH

    found, _ = part_of(answer)
    assert found is None


@pytest.mark.parametrize("name", MET["decompositions"])
def test_a_wrong_decomposition_is_found_without_the_expensive_compiler_and_confirmed_with_it(
    name: str,
) -> None:
    found, inquiry = part_of(wrong_unless({f"decompositions:{name}": 1}), Stage.DECOMPOSITION)
    assert found is not None
    assert (found.part.kind, found.part.name) == ("decomposition", name)
    backends = [question.backend for question in inquiry.oracle.asked]  # type: ignore[attr-defined]
    assert backends.count("inductor") == 1
    assert backends[-1] == "inductor"
    assert inquiry.notes == []


def test_what_matters_under_a_cheaper_backend_alone_is_said() -> None:
    def answer(question: Asked) -> Kind:
        off = question.has_off("decompositions", "aten.gelu.default")
        return Kind.PASS if off and question.backend != "inductor" else Kind.MISMATCH

    found, inquiry = part_of(answer, Stage.DECOMPOSITION)
    assert found is not None
    assert not found.part.verified
    assert found.part.detail.startswith("turning it off hides the failure: ")
    assert "not under inductor" in found.part.detail
    assert proved(inquiry, found, None, None) == found


def proof(op: GuiltyOp | None, answer: Answer, name: str = "aten.gelu.default") -> Part:
    """Return what is said of a decomposition that makes the failure go away, given the first wrong op."""
    inquiry = inquiry_of(answer, met=MET)
    found = Found.of(by_name("decompositions", [name]))
    assert found is not None
    return proved(inquiry, found, op, inquiry.repro).part


def test_a_decomposition_is_verified_if_its_operator_is_the_wrong_op() -> None:
    def answer(question: Asked) -> Kind:
        return Kind.MISMATCH

    wrong = GuiltyOp("g", "torch.nn.functional.gelu", Way.OUTPUTS)
    assert proof(wrong, answer).verified
    for way in (Way.PIECE, Way.CONTRACT):
        assert not proof(replace(wrong, way=way), answer).verified
    assert "no op was shown" in proof(None, answer).detail
    # Another op fails alone, and the decomposition is nowhere in it: turning that off only hid the failure.
    other = GuiltyOp("g", "fastops.gram.default", Way.WINDOW)
    assert "fastops.gram.default, does not need it" in proof(other, answer).detail
    assert not proof(replace(other, way=Way.OUTPUTS), answer, "aten.tanh.default").verified


def test_a_decomposition_inside_the_wrong_op_is_verified_if_the_op_alone_passes_without_it() -> None:
    answer = wrong_unless({"decompositions:aten.native_layer_norm.default": 1})
    wrong = GuiltyOp("n", "torch.nn.functional.layer_norm", Way.WINDOW)
    assert proof(wrong, answer, "aten.native_layer_norm.default").verified
    assert not proof(wrong, answer, "aten.addmm.default").verified
    seen = replace(wrong, way=Way.OUTPUTS)
    assert proof(seen, answer, "aten.native_layer_norm.default").verified, "it occurs in the op"


def test_options_and_passes_need_no_wrong_op() -> None:
    found, inquiry = part_of(wrong_unless({"passes:remove_noop_ops": 1}))
    assert found is not None
    assert proved(inquiry, found, None, None).part.verified


def test_a_setting_of_aot_is_named() -> None:
    found, _ = part_of(wrong_unless({"donated_buffer": False}), Stage.AOT)
    assert found is not None
    assert found.part.name == "functorch.donated_buffer"


def test_of_a_compiler_that_is_not_known_nothing_is_asked() -> None:
    found, inquiry = part_of(lambda question: Kind.MISMATCH, repro=small_repro(compiler=Compiler("a.b:c")))
    assert found is None
    assert inquiry.asked == 0
