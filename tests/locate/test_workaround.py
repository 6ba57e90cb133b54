"""The line that a user is told to write: seen to make the repro pass, and no more than is needed."""

from __future__ import annotations

import pytest
from synthetic_compiler import Answer, Asked, inquiry_of, small_repro

from torchrepro.locate.component import Found
from torchrepro.locate.stages import find_stage
from torchrepro.locate.switches import Off
from torchrepro.locate.workaround import code_for, find_workaround
from torchrepro.nouns.repro import Compiler, Place, Repro
from torchrepro.nouns.results import Part, Workaround
from torchrepro.nouns.verdict import Kind


def workaround_for(answer: Answer, off: Off | None, repro: Repro | None = None) -> Workaround | None:
    inquiry = inquiry_of(answer, repro=repro)
    found = Found(Part("pass", "a pass"), off) if off is not None else None
    return find_workaround(inquiry, find_stage(inquiry), found)


def passes_with(**options: object) -> Answer:
    """Inductor fails unless it has these options; the other backends pass."""

    def answer(question: Asked) -> Kind:
        wanted = all(question.options.get(name) == value for name, value in options.items())
        return Kind.PASS if question.backend != "inductor" or (options and wanted) else Kind.MISMATCH

    return answer


def test_the_option_that_turns_the_guilty_part_off_is_told_first() -> None:
    found = workaround_for(passes_with(inplace_buffers=False), Off({"inductor": {"inplace_buffers": False}}))
    assert found == Workaround(
        {"inplace_buffers": False}, "torch.compile(model, options={'inplace_buffers': False})", True
    )


def test_of_several_options_only_those_that_are_needed_are_told() -> None:
    off = Off({"inductor": {"max_autotune": False, "max_autotune_gemm": False, "benchmark_fusion": False}})
    found = workaround_for(passes_with(max_autotune_gemm=False), off)
    assert found is not None
    assert found.options == {"max_autotune_gemm": False}


def test_a_pass_is_turned_off_by_its_name() -> None:
    off = Off(parts={"passes": ("pass_pattern_1",)})
    found = workaround_for(passes_with(disabled_passes="pass_pattern_1"), off)
    assert found is not None
    assert found.options == {"disabled_passes": "pass_pattern_1"}


def test_a_pass_that_has_an_option_is_turned_off_by_it() -> None:
    off = Off(parts={"passes": ("reorder_for_locality",)})
    found = workaround_for(passes_with(reorder_for_locality=False), off)
    assert found is not None
    assert found.options == {"reorder_for_locality": False}


def test_a_rewrite_is_turned_off_with_its_matcher() -> None:
    off = Off(parts={"patterns": ("fuse_attention.sdpa",)})
    found = workaround_for(passes_with(pattern_matcher=False), off)
    assert found is not None
    assert found.options == {"pattern_matcher": False}


def test_for_a_wrong_lowering_operators_are_called_as_they_are() -> None:
    off = Off(parts={"lowerings": ("aten.erf.default",)})
    found = workaround_for(passes_with(fallback_by_default=True), off)
    assert found is not None
    assert found.options == {"fallback_by_default": True}


def test_a_setting_of_torch_is_a_line_of_its_own() -> None:
    def answer(question: Asked) -> Kind:
        off = question.repro.ambient.configs.get("functorch", {}).get("donated_buffer") is False
        return Kind.PASS if off else Kind.MISMATCH

    found = workaround_for(answer, Off({"functorch": {"donated_buffer": False}}))
    assert found is not None
    assert (found.code, found.verified) == ("torch._functorch.config.donated_buffer = False", True)


def test_without_an_option_the_highest_backend_that_passes_is_told() -> None:
    found = workaround_for(passes_with(), None)
    assert found == Workaround(
        code="torch.compile(model, backend='aot_eager_decomp_partition')", verified=True
    )


def test_where_every_backend_fails_the_function_is_not_compiled() -> None:
    def answer(question: Asked) -> Kind:
        off = question.repro.ambient.configs.get("dynamo", {}).get("disable")
        return Kind.PASS if off else Kind.MISMATCH

    found = workaround_for(answer, None, small_repro(place=Place.BEFORE_CAPTURE))
    assert found == Workaround(code="@torch.compiler.disable", verified=True)


@pytest.mark.parametrize("kind", [Kind.MISMATCH, Kind.COMPILE_ERROR, Kind.INVALID])
def test_what_does_not_pass_is_no_workaround(kind: Kind) -> None:
    def answer(question: Asked) -> Kind:
        return kind if question.options or question.backend != "inductor" else Kind.MISMATCH

    assert workaround_for(answer, Off({"inductor": {"inplace_buffers": False}})) is None


def test_a_mode_is_spelt_out_since_options_exclude_it() -> None:
    repro = small_repro(compiler=Compiler(mode="reduce-overhead", fullgraph=True))
    found = workaround_for(
        passes_with(inplace_buffers=False), Off({"inductor": {"inplace_buffers": False}}), repro
    )
    assert found is not None
    assert found.options == {"triton.cudagraphs": True, "inplace_buffers": False}
    assert "fullgraph=True" in found.code
    assert "mode=" not in found.code


def test_the_call_of_a_compiler_is_written_as_a_user_would() -> None:
    assert code_for(small_repro()) == "torch.compile(model)"
    custom = small_repro(compiler=Compiler("pkg.mod:compile", dynamic=True))
    assert code_for(custom) == "torch.compile(model, backend=compile, dynamic=True)"
    ahead = small_repro(place=Place.EXPORT, compiler=Compiler("aot_inductor", options={"max_fusion_size": 1}))
    assert "inductor_configs={'max_fusion_size': 1}" in code_for(ahead)


def test_a_graph_that_every_backend_breaks_is_run_as_it_is() -> None:
    found = workaround_for(lambda question: Kind.PASS if question.backend == "eager" else Kind.MISMATCH, None)
    assert found == Workaround(code="torch.compile(model, backend='eager')", verified=True)
