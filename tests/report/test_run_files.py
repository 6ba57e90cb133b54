"""What was written down about a failure is read again as it was, and a stranger's file breaks nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Raised,
    Stage,
    Verdict,
    as_data,
)
from torchrepro.report.run_files import verdict_in

LEAF = LeafComparison(
    path="out[0]",
    difference=Difference.VALUE,
    detail="further away",
    blamed=Blame.COMPILED,
    index=(1, 2),
    ref_value="1",
    res_value="inf",
    truth_value="1.5",
    elements=6,
    mismatched=2,
    max_abs=math.inf,
    max_rel=0.5,
    max_ulp=3.0,
    rmse_ref=1e-7,
    rmse_res=0.25,
    cosine=0.5,
)
VERDICT = Verdict(
    Kind.MISMATCH,
    Stage.BACKEND,
    "a summary",
    Raised("ValueError", "said", "from here"),
    "SIGSEGV",
    Comparison((LEAF, replace(LEAF, path="out[1]", index=None, rmse_ref=None)), ("a note",)),
    ("another note",),
    "the last words",
    1.5,
)


def test_every_field_comes_back() -> None:
    assert verdict_in(json.loads(json.dumps(as_data(VERDICT.to_dict())))) == VERDICT


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "no such kind"},
        {"kind": "mismatch", "comparison": 7},
        {"kind": "mismatch", "comparison": {"differing": 7}},
        {"kind": "mismatch", "comparison": {"differing": [None, 3]}},
        {"kind": "mismatch", "comparison": {"differing": [{"path": []}], "notes": {}}},
    ],
)
def test_what_cannot_be_read_is_none(data: dict[str, Any]) -> None:
    assert verdict_in(data) is None
