from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from torchrepro import Kind, Repro, Signature, save_bundle
from torchrepro.nouns.results import Minified
from torchrepro.report.bucket import Bucket, bucket_of, canonical_graph
from torchrepro.report.collect import collect
from torchrepro.report.markdown import github_issue

_COUNTS = (
    *("start_ops", "start_inputs", "start_elements", "ops", "inputs", "elements"),
    *("queries", "original_runs"),
)


def chain(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.relu(torch.cos(x)),)


def renamed(argument: torch.Tensor) -> tuple[torch.Tensor]:
    between = torch.cos(argument)
    return (torch.relu(between),)


def saved(path: Path, function: object = chain, kind: Kind = Kind.MISMATCH) -> Path:
    graph = torch.fx.symbolic_trace(function)
    for number, node in enumerate(graph.graph.nodes):
        if node.op == "call_function" and function is renamed:
            node.name = f"other_{number}"
    graph.recompile()
    return save_bundle(Repro(graph, (torch.ones(3),), expected=Signature(kind)), path)


def test_names_of_variables_do_not_count(tmp_path: Path):
    first, second = saved(tmp_path / "a"), saved(tmp_path / "b", renamed)
    assert first.joinpath("graph.py").read_text() != second.joinpath("graph.py").read_text()
    assert canonical_graph(first) == canonical_graph(second)


def test_a_bucket_does_not_depend_on_the_date_or_the_place(tmp_path: Path):
    first = saved(tmp_path / "here" / "a")
    second = saved(tmp_path / "there" / "b")  # another date, another run id
    assert bucket_of(first).fingerprint == bucket_of(second).fingerprint
    assert bucket_of(first).fingerprint != bucket_of(saved(tmp_path / "c", kind=Kind.CRASH)).fingerprint


@pytest.mark.parametrize("changed", ["graph", "culprit"])
def test_the_minimal_graph_and_the_culprit_tell_failures_of_one_signature_apart(changed: str):
    plain = Bucket("mismatch")
    assert Bucket("mismatch", **{changed: "aten.cos"}).fingerprint != plain.fingerprint


def test_the_fingerprint_is_the_same_in_every_release():
    # Issues have it in them: a change would file every known failure a second time.
    assert Bucket("mismatch | backend", "v1 = v0 + 1", "backend pass x").fingerprint == "b9bf12b1f6609248"


def test_what_minify_and_locate_left_is_part_of_the_bucket(tmp_path: Path):
    bundle = saved(tmp_path / "failing")
    alone = bucket_of(bundle)
    run = tmp_path / "failing.minified"
    shutil.copytree(bundle, run / "minimal")
    places = {"original": str(bundle), "directory": str(run), "bundle": "minimal", "script": "repro.py"}
    result = Minified(**places, **dict.fromkeys(_COUNTS, 1), seconds=1.0, signature="", reproduces=True)
    (run / "result.json").write_text(json.dumps(msgspec.to_builtins(result)))
    minified = bucket_of(bundle)
    assert "torch.relu" in minified.graph
    assert minified.fingerprint != alone.fingerprint
    assert bucket_of(run) == minified


def test_an_issue_has_the_bucket_in_a_hidden_comment(tmp_path: Path):
    bundle = saved(tmp_path / "failing")
    text = github_issue(collect(bundle))
    assert f"<!-- torchrepro-bucket: {bucket_of(bundle).fingerprint} -->" in text.splitlines()
