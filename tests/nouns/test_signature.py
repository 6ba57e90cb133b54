"""Two failures are the same one or they are not: what a signature keeps and what it forgets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.nouns.messages import normalise_message
from torchrepro.nouns.verdict import Kind, Raised, Signature, Stage, Verdict


def failure(message: str, **changes: object) -> Signature:
    fields = {"kind": Kind.COMPILE_ERROR, "stage": Stage.BACKEND, "raised": Raised("KeyError", message)}
    return Signature.of(Verdict(**{**fields, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'buf1'", "'buf27'"),
        ("size mismatch: [2, 3] and [4, 5, 6]", "size mismatch: [7, 8] and [1, 2]"),
        ("cannot multiply (2x3 and 4x5)", "cannot multiply (128x64 and 12x7)"),
        ("at 0x7f00deadbeef in arg0_1", "at 0x55aa in arg17_1"),
        ("file /tmp/a/b/cxyz.cpp failed", "file /home/me/cache/q.cpp failed"),
        ("no entry for primals_3", "no entry for primals_44"),
        ("cannot fuse op1_op2", "cannot fuse op3_op12_op13"),
    ],
)
def test_numbers_names_and_paths_do_not_tell_failures_apart(one: str, other: str) -> None:
    assert failure(one).matches(failure(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("expected float32", "expected float64"),
        ("no lowering for conv2d", "no lowering for conv3d"),
        ("relu fails", "erf fails"),
        ("cannot fuse op1_buf2", "cannot fuse op1_op2"),
        ("dtype int8 unsupported", "dtype int16 unsupported"),
    ],
)
def test_words_types_and_ops_do(one: str, other: str) -> None:
    assert not failure(one).matches(failure(other))


def test_the_kind_the_exception_and_the_stage_count() -> None:
    base = failure("m")
    assert not base.matches(failure("m", kind=Kind.RUN_ERROR))
    assert not base.matches(failure("m", raised=Raised("ValueError", "m")))
    assert not base.matches(failure("m", stage=Stage.AOT))
    assert base.matches(failure("m", stage=Stage.NONE)), "an unknown stage contradicts nobody"


def test_the_error_line_of_a_cpp_compiler_is_the_message() -> None:
    text = "C++ compile error\n\nCommand: g++ x\n/tmp/a/b.cpp:3:4: error: no member 'foo'\nnote: candidate"
    assert normalise_message(text) == "error: no member 'foo'"


def test_an_error_in_a_generated_file_is_told_apart_by_its_cause() -> None:
    one, other = "cgsezuoskdpm77nb5lwvemxhs7juwwcv.py", "cabczuoskdpm77nb5lwvemxhs7juwwcv.py"
    wrapped = f"Failed to import /tmp/c/gs/{one}\nSyntaxError: invalid syntax ({one}, line 29)"
    assert normalise_message(wrapped) == normalise_message(f"SyntaxError: invalid syntax ({other}, line 7)")
    assert normalise_message(wrapped) != normalise_message("Failed to import /tmp/a/b.py\nOSError: no space")


@given(st.text())
def test_normalising_twice_changes_nothing_more(message: str) -> None:
    once = normalise_message(message)
    assert normalise_message(once) == once


@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ["a1_" * 100_000, "op1_" * 100_000 + "x", "a" * 300_000 + "1"])
def test_a_message_without_end_is_normalised_in_time(text: str) -> None:
    """A stranger's bundle may have any message, and a chain of names took minutes."""
    assert len(normalise_message(text)) <= len(text) + len("<n>")
