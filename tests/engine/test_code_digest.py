from __future__ import annotations

from torchrepro.engine.generated_code import digest_code, join_code, normalise_code

CODE = """# AOT ID: ['{number}_inference']
from ctypes import c_void_p
import torch
aten = torch.ops.aten
async_compile = AsyncCompile()


# kernel path: {path}/ab/{hash}.py
cpp_fused_add_{number} = async_compile.cpp_pybinding(['const float*'], r'''
#include "{path}/pi/{hash}.h"
extern "C" void kernel(const float* in_ptr0)
{{
    #pragma omp parallel num_threads({number}7)
    auto tmp0 = in_ptr0[0] + {constant};
}}
''')

def call(args):
    # Source Nodes: [{path}/model.py]
    buf1 = buf0; del buf0  # reuse
    cpp_fused_add_{number}(buf1)
    return (buf1, )


def benchmark_compiled_module(args, times={number}):
    pass
"""
HERE = {"path": "/tmp/torchinductor_me", "hash": "c" + "ab2" * 17, "number": "0", "constant": "1"}
THERE = {"path": "/home/you/.cache/inductor", "hash": "c" + "xy7" * 17, "number": "3", "constant": "1"}


def test_paths_hashes_and_numbers_of_kernels_do_not_count():
    assert normalise_code(CODE.format(**HERE)) == normalise_code(CODE.format(**THERE))


def test_a_change_in_a_kernel_counts():
    changed = CODE.format(**{**THERE, "constant": "2"})
    assert digest_code(join_code([CODE.format(**HERE)])) != digest_code(join_code([changed]))


def test_two_kernels_of_one_name_stay_two():
    text = normalise_code("cpp_fused_add_4(a)\ncpp_fused_add_7(b)\ncpp_fused_add_4(c)\n")
    assert text == "cpp_fused_add_0(a)\ncpp_fused_add_1(b)\ncpp_fused_add_0(c)\n"


def test_no_code_has_no_digest():
    assert digest_code(join_code([])) == ""
