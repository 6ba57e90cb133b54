"""What a stranger's bundle may choose: compilers by a table, settings and environment by name and by value.

Settings and environment variables name programs to run (`cpp.cxx`), flags of a compiler (`cpp.march`), files
to read and to write. A stranger's bundle may set numbers, switches and words of a table. The user's own
bundle may set all that is data, but what names a program or a file. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchrepro.nouns.repro import AOT_INDUCTOR, telling_environment

COMPILERS = frozenset(
    {
        *("inductor", AOT_INDUCTOR, "cudagraphs", "ts", "aot_ts", "invoke_subgraph"),
        *("eager", "eager_noexcept", "eager_debug", "pre_dispatch_eager", "aot_eager"),
        *("aot_eager_default_partitioner", "aot_eager_decomp_partition"),
        *("aot_eager_decomp_partition_with_mode", "aot_eager_decomp_partition_crossref"),
        *("relu_compile_error_TESTING_ONLY", "relu_runtime_error_TESTING_ONLY"),
        *("relu_accuracy_error_TESTING_ONLY", "non_leaf_compile_error_TESTING_ONLY"),
    }
)
"""Backends of torch itself that run no other code and write no file of their own."""
MODES = frozenset({"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"})

_PROGRAMS_AND_FILES = re.compile(
    r"cxx|flag|dir|path|file|command|compiler_bin|include|library|(?<![a-z])log|url|remote|host"
)
# These write files next to the program, load code, start processes or end up on a command line.
_STRANGERS_NOT = re.compile(
    r"debug|trace|dump|repro|profil|save|record|upload|worker|metadata|march|arch|libs?(?![a-z])|shim"
    r"|custom|model_name|override|allowlist|denylist|ignorelist|regex|cutlass|rocm|halide|opt_level|root"
    r"|lookup|hook|spec(?![a-z])|version|target|print|write|cache|logging|choices_class|external",
    re.IGNORECASE,
)
_SETTING_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.+\-]{0,64}")
_WORDS = frozenset(
    {
        *("", "0", "1", "all", "none", "default", "DEFAULT", "EXHAUSTIVE", "off", "on", "fast", "info"),
        *("warn", "error", "silent", "ATEN", "TRITON", "CPP", "analytical", "benchmark", "heuristic"),
        *("intermediates", "outputs", "combined", "needs_fixed_stride_order", "flexible_layout"),
        *("needs_exact_strides", "needs_contiguous_strides", "original_aten", "torch", "inductor_node"),
        *("dynamic", "unbacked", "oblivious", "float32", "float64", "complex64", "complex128", "int32"),
        *("int64", "flops", "testing", "dp", "greedy", "ilp", "same_as_forward", "donated", "no_static"),
        *("cpp", "triton", "compile_error", "runtime_error", "accuracy", "ignore", "ATen", "sum", "tanh"),
    }
)
"""The values of settings that are words, in torch 2.11 to 2.15."""
_LARGEST = 1 << 53
_NESTING = 8

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,80}")
_NUMBER = re.compile(r"-?\d{1,9}(?:\.\d{1,9})?(?:,\d{1,9}){0,8}|[Tt]rue|[Ff]alse|", re.ASCII)
_VALUES = {
    "ATEN_CPU_CAPABILITY": re.compile(r"default|avx2|avx512(?:_vnni)?|amx|vsx|zvector|sve\d*"),
    "CUBLAS_WORKSPACE_CONFIG": re.compile(r":\d{1,6}:\d{1,4}", re.ASCII),
    "PYTORCH_CUDA_ALLOC_CONF": re.compile(r"(?:[a-z_0-9]+:[A-Za-z0-9.]+,?){0,8}"),
}


def safe_settings(settings: Mapping[str, Any], *, own: bool) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a bundle may choose, and the names of those that were refused."""
    safe = {name: value for name, value in settings.items() if _may_set(name, value, own=own)}
    return safe, [name for name in settings if name not in safe]


def safe_environment(recorded: Mapping[str, str], *, own: bool) -> tuple[dict[str, str], list[str]]:
    """Return the recorded environment variables that may be set again, and the names of the others."""
    allows = _own_may_export if own else _stranger_may_export
    told = telling_environment(recorded)
    safe = {name: value for name, value in told.items() if allows(name, value)}
    return safe, [name for name in recorded if name not in safe]


def _may_set(name: str, value: Any, *, own: bool, depth: int = 0) -> bool:
    """Return whether a bundle may give a setting this value; a stranger's, of words, those of the table."""
    if _PROGRAMS_AND_FILES.search(name) or not _SETTING_NAME.fullmatch(name) or depth > _NESTING:
        return False
    if not own and _STRANGERS_NOT.search(name):
        return False
    if isinstance(value, list):
        return all(_may_set(name, item, own=own, depth=depth + 1) for item in value)
    if isinstance(value, dict):
        return all(_may_set(str(key), item, own=own, depth=depth + 1) for key, item in value.items())
    if isinstance(value, str):
        words = [value] if own or depth else value.split(",")
        return all(_PLAIN_WORD.fullmatch(word) and (own or word in _WORDS) for word in words)
    return value is None or (type(value) in (bool, int, float) and (own or abs(value) <= _LARGEST))


def _own_may_export(name: str, value: str) -> bool:
    return name not in ("CC", "CXX") and "/" not in value


def _stranger_may_export(name: str, value: str) -> bool:
    if not _VARIABLE.fullmatch(name) or _STRANGERS_NOT.search(name) or name.startswith("TORCH_LOGS"):
        return False
    return bool(_VALUES.get(name, _NUMBER).fullmatch(value))
