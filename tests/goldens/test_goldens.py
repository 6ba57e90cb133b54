"""The command line answers as it did when the goldens were recorded (`tests/goldens/record.py`)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import record
import torch

from benchmarks.minify.cases import Case, chosen

HERE = Path(__file__).resolve().parent
_SIZES = ("ops", "inputs", "signature", "exit_code")
FIRM = {
    "c18": {"minify": _SIZES, "locate": ("stage", "op", "part")},
    "194706": {"check": (), "script": (), "minify": (*_SIZES, "elements"), "locate": ()},
    "185246": {"check": (), "script": (), "minify": (*_SIZES, "elements"), "locate": ()},
    "191499b": {"check": (), "minify": (*_SIZES, "elements"), "locate": ("stage", "op", "part")},
}
"""What is compared of programs whose other answers differ from run to run; an empty tuple is everything.

c18 fails in some of its runs only; 194706 compiles so slowly that the time limit ends its explanation;
185246 is `bernoulli`, which inductor draws otherwise than eager: with 0.5 the two agree by chance;
191499b returns memory that was never written, which now and then holds the right value.
"""


@pytest.fixture(autouse=True)
def _environment_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bundles keep these two, and scripts set them again where they matter: a user's program has neither."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")


def _golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "cases" / f"{name}.json").read_text())
    return {part: record.masked(answer) for part, answer in found.items()}


def _case(name: str) -> Case:
    (case,) = chosen([name])
    if not case.injected and not torch.__version__.startswith("2.13."):
        pytest.skip(f"a bug of torch 2.13; this is {torch.__version__}, where it may be fixed or differ")
    return case


def _require_as_recorded(answer: dict[str, Any], name: str, parts: Iterable[str]) -> None:
    golden, firm = _golden(name), FIRM.get(name)
    for part in parts if firm is None else firm:
        keys = firm[part] if firm else ()
        now, then = ({key: one[part][key] for key in keys} if keys else one[part] for one in (answer, golden))
        _require_equal(now, then)


def _bundles() -> list[str]:
    return sorted(path.stem for path in (HERE / "bundles").glob("*.zip"))


def _recorded_keys(answer: Any, golden: Any) -> Any:
    """Return an answer without the keys that were added since: those that were there must stay."""
    if isinstance(answer, list) and isinstance(golden, list) and len(answer) == len(golden):
        return [_recorded_keys(one, other) for one, other in zip(answer, golden, strict=True)]
    if not isinstance(answer, dict) or not isinstance(golden, dict):
        return answer
    return {key: _recorded_keys(one, golden[key]) for key, one in answer.items() if key in golden}


def _require_equal(answer: Any, golden: Any) -> None:
    known = _recorded_keys(answer, golden)
    now, then = (json.dumps(one, indent=1, sort_keys=True).splitlines() for one in (known, golden))
    difference = "\n".join(difflib.unified_diff(then, now, "golden", "now", lineterm=""))
    assert not difference, difference


@pytest.mark.slow
@pytest.mark.parametrize("verb", record.VERBS)
def test_the_help_of_a_verb_is_as_recorded(verb: str) -> None:
    assert record.help_of(verb) == (HERE / "help" / f"{verb}.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", _bundles())
def test_a_held_bundle_is_still_opened_and_shown(name: str, tmp_path: Path) -> None:
    shown = record.run_verb(["show", str(HERE / "bundles" / f"{name}.zip"), "--json"], _case(name), tmp_path)
    assert shown["exit_code"] == 0


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", _bundles())
@pytest.mark.timeout(1200)
def test_a_held_bundle_is_checked_minified_and_located_as_recorded(name: str, tmp_path: Path) -> None:
    answer = record.record_bundle(HERE / "bundles" / f"{name}.zip", _case(name), tmp_path)
    _require_as_recorded(answer, name, ("check", "script", "minify", "locate"))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted(path.stem for path in (HERE / "cases").glob("*.json")))
@pytest.mark.timeout(1800)
def test_a_program_is_caught_minified_and_located_as_recorded(name: str, tmp_path: Path) -> None:
    answer = record.record_case(_case(name), tmp_path)
    _require_as_recorded(answer, name, sorted(_golden(name).keys() - {"cost"}))
