"""What `torchrepro compare` must answer for the programs in `real/`, on torch 2.13.0 with inductor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    verdicts: tuple[str, ...]
    """More than one where the machine decides: a wrong kernel may or may not bring down the process."""
    exit_code: int = 1
    blamed: str = "compiled"
    path: str = ""
    """What must be among the values that differ."""


WRONG = ("mismatch",)
ANSWERS: dict[str, Answer] = {
    "case_191499": Answer(WRONG, path="out[0]"),
    "case_191499b": Answer(WRONG, path="out[0]"),
    "case_191499_big": Answer(WRONG, path="out"),
    "case_196570": Answer(("compile_error",)),
    "case_196570_big": Answer(("compile_error",)),
    "case_198131": Answer(WRONG, path="inputs[0]"),
    "case_198131_big": Answer(WRONG, path="prev"),
    "case_197067": Answer(("crash",)),
    "case_194706": Answer(("compile_error",)),
    "case_195422": Answer(WRONG, path="inputs[0]"),
    "case_192985": Answer(WRONG, path="out"),
    "case_197896": Answer(WRONG, path="out[1]"),
    "case_179804": Answer(WRONG, path="grad"),
    "case_188217": Answer(("compile_error",)),
    "case_fuzz_acosh": Answer(("mismatch", "non_finite"), path="out"),
    "case_fuzz_softshrink_nan": Answer(WRONG, path="out"),
    "case_185246": Answer(("missing_error",)),
    "case_fuzz_gelu": Answer(("pass",), exit_code=0, blamed="eager"),
    "case_174078": Answer(("pass",), exit_code=0, blamed="nobody"),
}
