"""Which of the generated kernels computes an op, and its source. No compiler runs."""

from __future__ import annotations

from pathlib import Path

import msgspec

from torchrepro.locate.kernels import Written, kernel_in, read_written
from torchrepro.nouns.results import GuiltyOp, Way

CODE = """
cpp_fused_add_erf_0 = async_compile.cpp_pybinding(['const float*'], r'''
#include <prefix.h>
extern "C" void kernel(const float* in_ptr0) {}
''')

triton_poi_fused_mul_1 = async_compile.triton('triton_poi_fused_mul_1', '''
import triton
@triton.jit
def triton_poi_fused_mul_1(in_ptr0): pass
''', device_str='cuda')

async_compile.wait(globals())
"""
GENERATED = (
    Written("kernel", "cpp_fused_add_erf_0", "PLACEHOLDER", "cpp", ("input_2", "erf"), ("aten.erf.default",)),
    Written("kernel", "triton_poi_fused_mul_1", "", "triton", ("mul", "input_3"), ("aten.mul.Tensor",)),
    Written(
        "call", "extern_kernels.addmm", "", "extern", ("permute", "addmm", "input_1"), ("aten.t.default",)
    ),
    Written("code", text=CODE),
)


def op(node: str, name: str = "torch.nn.functional.gelu") -> GuiltyOp:
    return GuiltyOp(node, name, Way.WINDOW)


def test_the_kernel_of_a_node_is_found_by_the_nodes_that_it_was_made_from() -> None:
    found = kernel_in(GENERATED, op("input_2"))
    assert found is not None
    assert (found.name, found.language) == ("cpp_fused_add_erf_0", "cpp")
    assert found.source.startswith("#include <prefix.h>")
    assert found.source.endswith("{}\n")


def test_a_triton_kernel_is_taken_out_of_the_code_of_its_graph() -> None:
    found = kernel_in(GENERATED, op("input_3"))
    assert found is not None
    assert found.language == "triton"
    assert found.source.startswith("import triton")


def test_a_call_of_a_library_has_a_name_and_no_source() -> None:
    found = kernel_in(GENERATED, op("input_1", "torch.nn.functional.linear"))
    assert found is not None
    assert (found.name, found.language, found.source) == ("extern_kernels.addmm", "extern", "")


def test_where_the_names_of_nodes_were_lost_the_op_decides() -> None:
    found = kernel_in(GENERATED, op("renamed", "torch.erf"))
    assert found is not None
    assert found.name == "cpp_fused_add_erf_0"
    assert kernel_in(GENERATED, op("renamed", "aten.tanh.default")) is None


def test_of_a_compilation_that_ended_early_the_kernel_is_what_was_generated_so_far() -> None:
    early = (Written("kernel", "cpp_fused_sin_0", "void kernel() {}", "cpp", ("sin",)),)
    found = kernel_in(early, op("sin"))
    assert found is not None
    assert found.source == "void kernel() {}"


def test_without_an_op_a_kernel_is_named_only_if_there_is_no_other() -> None:
    assert kernel_in(GENERATED, None) is None
    found = kernel_in(GENERATED[1:], None)
    assert found is not None
    assert found.name == "triton_poi_fused_mul_1"


def test_a_value_that_two_kernels_compute_is_in_the_one_named_after_it_and_in_backward_in_the_last() -> None:
    names = ("mul_0", "erf_1", "neg_2")
    twice = [Written("kernel", f"cpp_fused_{name}", name, "cpp", ("erf",)) for name in names]
    forward, backward = kernel_in(twice, op("erf", "torch.erf")), kernel_in(twice, op("erf"), backward=True)
    assert forward is not None
    assert forward.name == "cpp_fused_erf_1"
    assert backward is not None
    assert backward.name == "cpp_fused_neg_2"


def test_what_a_killed_process_had_written_down_is_read_without_its_half_line(tmp_path: Path) -> None:
    path = tmp_path / "written.jsonl"
    lines = [msgspec.json.encode(piece) for piece in GENERATED]
    path.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:20])
    assert read_written(path) == list(GENERATED[:2])


def test_a_kernel_that_is_not_in_the_code_is_what_was_generated() -> None:
    other = Written("kernel", "cpp_fused_add_erf", "early", "cpp", ("add",))
    found = kernel_in((other, *GENERATED), op("add"))
    assert found is not None
    assert found.source == "early"
