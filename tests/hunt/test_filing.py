"""Which buckets are worth an issue, in which order they are reported, and what their page shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from torchrepro.engine.search.run_directory import write_json
from torchrepro.hunt import filing
from torchrepro.hunt.buckets import BucketDirectory, Bucketed, Recognised, buckets_in
from torchrepro.hunt.examine import examine
from torchrepro.hunt.filing import Criterion, Examined, Gate, Usual, gate_of, order_free
from torchrepro.hunt.report import report_on_hunt
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.save_bundle import save_bundle

NAME = __name__


def last_places(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A compiler whose `argmax` returns the last of equal elements, which is as right as the first."""
    return lambda x: (x.shape[0] - 1 - x.flip(0).argmax(0),)


def off_by_a_quarter(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return lambda *args: tuple(one + 0.25 for one in graph(*args))


def saved(place: Path, function: Callable[..., Any], compiler: str, *inputs: Tensor) -> Path:
    graph = torch.fx.symbolic_trace(function)
    repro = Repro(graph, inputs, compiler=Compiler(f"{NAME}:{compiler}"))
    return save_bundle(repro, place, verdict=Verdict(Kind.MISMATCH), script=False)


def examined(bundle: Path) -> Examined:
    return msgspec.convert(examine({"bundle": str(bundle), "trusted": [NAME]}, lambda phase: None), Examined)


def test_other_places_of_equal_elements_are_no_bug(tmp_path: Path) -> None:
    tied = torch.tensor([1.0, 3.0, 3.0, 2.0])
    found = examined(saved(tmp_path / "tie", lambda x: (x.argmax(0),), "last_places", tied))
    assert found.verdict is not None
    assert found.verdict.fails
    assert found.wrong == ["out[0]"] == list(found.ties)
    assert not order_free(found).holds
    assert order_free(replace(found, ties=())).holds


def test_a_wrong_place_of_another_element_is_one(tmp_path: Path) -> None:
    different = torch.tensor([[1.0, 3.0], [2.0, 1.0]])
    bundle = saved(tmp_path / "wrong", lambda x: (x.argmax(0) + x.argmin(0),), "off_by_a_quarter", different)
    assert not examined(bundle).ties


def test_a_wrong_value_fails_default_tolerances_and_has_its_float64_result(tmp_path: Path) -> None:
    bundle = saved(
        tmp_path / "off", lambda x: (x.sin(),), "off_by_a_quarter", torch.tensor([1.0, float("inf")])
    )
    found = examined(bundle)
    assert found.differs_by_default
    assert found.close.startswith("fails on out[0]: Mismatched elements")
    assert found.same_draws
    assert not found.without_truth
    assert found.dtypes == ("float32",)
    assert found.values == ("inf",)


PASSES = Criterion("default tolerances fail", True, "fails on out[0]")
GATE = Gate((PASSES,), Usual(0, 0, 0, 0, 1, "default settings, float32, 1 op, ordinary values"))


def write_bucket(place: Path, name: str, gate: Gate, seeds: int = 1) -> BucketDirectory:
    bucket = BucketDirectory(place / name)
    bucket.path.mkdir(parents=True)
    graph = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    save_bundle(Repro(graph, (torch.ones(2),)), bucket.bundle, verdict=Verdict(Kind.MISMATCH, summary=name))
    known = {"bucket": f"{name}_fingerprint", "seed": f"{name}-0", "directory": str(bucket.path)}
    told = Bucketed(**known, recognised=Recognised.NEW)
    bucket.finish(told)
    for number in range(1, seeds):
        bucket.add(f"{name}-{number}", Recognised.RULE)
    write_json(bucket.gate, msgspec.to_builtins(gate))
    return bucket


@pytest.fixture
def hunt(tmp_path: Path) -> Path:
    buckets = tmp_path / "hunt" / "buckets"
    failed = replace(PASSES, holds=False, reason="<b>passes</b> with default tolerances")
    unusual = replace(GATE.usual, values=2, words="default settings, float32, 1 op, values nan")
    write_bucket(buckets, "doubtful", replace(GATE, criteria=(failed,)), seeds=9)
    write_bucket(buckets, "unusual", replace(GATE, usual=unusual), seeds=3)
    write_bucket(buckets, "usual", GATE)
    (buckets / "unfinished" / "bundle").mkdir(parents=True)
    return tmp_path / "hunt"


def test_what_is_worth_an_issue_comes_first_then_what_is_usual(hunt: Path) -> None:
    report = report_on_hunt(hunt, hunt / "page.html", run=False)
    assert [row.directory for row in report.rows] == ["usual", "unusual", "doubtful"]
    assert [row.gate.worth for row in report.rows] == [True, True, False]
    assert [(len(row.seeds), row.recognised) for row in report.rows] == [(1, 0), (3, 2), (9, 8)]
    data = report.to_dict()
    assert json.loads(json.dumps(data))["rows"][0]["directory"] == "usual"
    assert (data["buckets"], data["worth"]) == (3, 2)


def test_the_page_escapes_what_it_quotes_and_links_an_issue_per_bucket(hunt: Path) -> None:
    report = report_on_hunt(hunt, hunt / "page.html", run=False)
    page = (hunt / "page.html").read_text()
    assert "13 failing programs in 3 buckets, 2 of them worth an issue" in page
    assert "&lt;b&gt;passes&lt;/b&gt;" in page
    assert "<b>passes" not in page
    for row in report.rows:
        assert f'href="{row.issue}"' in page
        assert (hunt / row.issue).read_text().strip()


def test_a_gate_is_asked_once(hunt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it is known")

    monkeypatch.setattr(filing, "ask_about_bundle", asked)
    assert all(gate_of(bucket).criteria for bucket in buckets_in(hunt / "buckets"))


def test_a_directory_without_buckets_is_an_error_that_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(TorchReproError, match="has no buckets") as raised:
        report_on_hunt(tmp_path / "nothing", tmp_path / "page.html")
    assert "--out of a hunt" in str(raised.value.next_step)
    assert not (tmp_path / "page.html").exists()


def test_a_program_counts_once_in_its_bucket(hunt: Path) -> None:
    bucket = BucketDirectory(hunt / "buckets" / "usual")
    bucket.add("usual-0", Recognised.RULE)
    with (bucket.path / "seeds.jsonl").open("a") as file:
        file.write('{"seed": "cut of')
    assert [member.seed for member in bucket.members()] == ["usual-0"]
