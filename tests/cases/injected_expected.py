"""What `torchrepro run` must catch in the programs in `injected/`, with inductor on the CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Catch:
    verdict: str
    signature: str
    """What must be in the signature of the bundle."""
    level: int = 3
    exit_code: int = 1
    """Of the program itself, as `subprocess` has it: negative for a signal."""
    threads: int = 1


NOT_COMPILED = "compile_error"
ACCURACY = Catch("mismatch", "mismatch", level=4)
CATCHES: dict[str, Catch] = {
    "c01_mlp_relu_cpp_compile_error": Catch(NOT_COMPILED, "CppCompileError"),
    # What one thread throws is a RuntimeError; thrown by several it ends the process.
    "c02_mixer_relu_cpp_throw": Catch("crash", "SIGABRT", exit_code=-6, threads=2),
    "c04_bert4_erf_compile_error": Catch(NOT_COMPILED, "FXBUG erf lowering"),
    "c05_bert12_rsqrt_accuracy": ACCURACY,
    "c07_t5_relu_log_accuracy": ACCURACY,
    "c09_transformer_rsqrt_segfault_run": Catch("crash", "SIGSEGV", exit_code=-11),
    "c10_transformer_erf_hang_compile": Catch("hang", "backend"),
    "c14_lstm_tanh_accuracy_value_dependent": ACCURACY,
    "c16_transformer_dynamic_erf_compile_error": Catch(NOT_COMPILED, "FXBUG erf lowering"),
    "c17_mixer_two_bugs_slippage": Catch(NOT_COMPILED, "FXBUG A: relu lowering"),
    "c18_mlp_flaky_compile_error": Catch(NOT_COMPILED, "FXBUG flaky relu lowering"),
    "c20_mlp_relu_accuracy_warm_cache": ACCURACY,
    # Only the backward graph fails, and it is compiled on fake tensors.
    "c22_gpt2_2_embedding_bwd_compile_error": Catch(NOT_COMPILED, "FXBUG masked index_put", level=2),
}
