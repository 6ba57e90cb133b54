"""A report is made of what lies in and around a bundle; what is missing is left out, its command named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from findings import GUILTY, MISMATCH, RAISED, failing_bundle, located_in, minified_beside, run_of_user

from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.nouns.results import Confidence, GuiltyGraph
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.report.collect import Measured, collect
from torchrepro.report.contents import Contents, ErrorMap
from torchrepro.report.formats import Format, rendered


def guilty_nodes(contents: Contents) -> list[list[str]]:
    pictures = [contents.original, contents.minimal]
    return [
        [node.name for node in picture.nodes if node.guilty] for picture in pictures if picture is not None
    ]


def test_a_bundle_alone_gives_verdict_graph_and_environment(tmp_path: Path) -> None:
    contents = collect(failing_bundle(tmp_path / "failing"))
    assert contents.verdict is not None
    assert contents.verdict.comparison is not None
    assert contents.verdict.comparison.differing == MISMATCH.comparison.differing  # type: ignore[union-attr]
    assert contents.original is not None
    assert [node.op for node in contents.original.nodes if node.kind == "op"] == [
        "torch.erf",
        "operator.add",
        "torch.tanh",
        ".relu",
    ]
    assert contents.environment is not None
    assert contents.environment.torch
    assert contents.minimal is None
    assert not contents.script_is_minimal
    assert [step.split(" failing ")[0] for step in contents.next_steps] == [
        "torchrepro locate",
        "torchrepro minify",
    ]


def test_all_that_was_found_out_is_put_together(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    minified_beside(bundle)
    located_in(bundle)
    contents = collect(bundle)
    assert contents.script == "import torch\nprint(torch.erf(torch.ones(2)))\n"
    assert contents.script_is_minimal
    assert contents.script_verified
    assert contents.explained == ("any value of x fails (9 tried)",)
    assert [(step.query, step.ops, step.pass_name) for step in contents.steps] == [
        (0, 4, "original"),
        (3, 2, "windows"),
        (9, 1, "shapes"),
    ]
    assert guilty_nodes(contents) == [["erf"], ["erf"]]
    assert contents.located is not None
    assert contents.located.growth[0].compiled == float("inf")
    assert contents.title == "torch.compile: wrong result of torch.erf on CPU"
    assert "lowering aten.erf" in contents.guilt
    assert "at model.py:12 in forward: erf(x)" in contents.guilt
    assert "with it turned off, the failure goes away" in contents.guilt
    assert contents.next_steps == ()


def _sent(bundle: Path, run: Path) -> None:
    """Results that came along with a bundle: their author's mark is not this user's."""
    for place in (run, bundle / "located"):
        told = json.loads((place / "run.json").read_text())
        (place / "run.json").write_text(json.dumps({**told, "mark": "0" * 64}))


def _about_another(bundle: Path, run: Path) -> None:
    """Another bundle under the name of the one that was searched."""
    (bundle / "located").rename(run / "kept")
    shutil.rmtree(bundle)
    failing_bundle(bundle, RAISED)
    (run / "kept").rename(bundle / "located")


def _copied(bundle: Path, run: Path) -> None:
    for place in (run, bundle / "located"):
        shutil.copytree(place, place.with_name("copy"))
        shutil.rmtree(place)
        shutil.move(place.with_name("copy"), place)


@pytest.mark.parametrize("happened", [_sent, _about_another, _copied])
def test_results_that_this_user_did_not_write_are_not_verified(
    happened: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    run = minified_beside(bundle)
    located_in(bundle)
    happened(bundle, run)
    contents = collect(bundle)
    assert contents.located is not None
    assert contents.located.confidence is Confidence.UNKNOWN
    assert not contents.script_verified
    assert not contents.script_is_minimal
    assert [note for note in contents.notes if "nothing in it was verified here" in note]
    steps = [step.split(" failing ")[0] for step in contents.next_steps]
    assert steps == ["torchrepro locate", "torchrepro minify"]
    for format_ in Format:
        text = rendered(contents, format_)
        assert "fails in a fresh process" not in text
        assert "goes away" not in text
        assert ">verified<" not in text


@pytest.mark.parametrize("named", ["failing.minified", "failing.minified/minimal"])
def test_a_run_of_minify_leads_to_its_bundle(named: str, tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    minified_beside(bundle)
    contents = collect(tmp_path / named)
    assert contents.bundle == "failing"
    assert contents.original is not None
    assert contents.script_is_minimal


def test_without_its_original_a_run_is_about_the_minimal_one(tmp_path: Path) -> None:
    run = minified_beside(failing_bundle(tmp_path / "failing"))
    shutil.rmtree(tmp_path / "failing")
    contents = collect(run)
    assert contents.original is None
    assert contents.minimal is not None
    assert "not here any more" in contents.notes[0]


def test_a_result_of_an_older_version_has_no_steps(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    minified_beside(bundle, history=False)
    assert collect(bundle).steps == ()


def test_a_strangers_result_cannot_name_a_file_of_this_machine(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    run = minified_beside(bundle)
    (tmp_path / "secret").write_text("token")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "script": str(tmp_path / "secret")}))
    assert collect(bundle).script == ""


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kind": 3}', '{"bundle": "x", "kind": "no such kind"}'])
def test_damaged_results_are_left_out(damage: str, tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    run = minified_beside(bundle)
    located_in(bundle)
    (bundle / "located" / "result.json").write_text(damage)
    (run / "result.json").write_text(damage)
    contents = collect(bundle)
    assert contents.located is None
    assert contents.minimal is None
    assert len(contents.next_steps) == 2


def test_a_wrong_path_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(TorchReproError):
        collect(tmp_path / "nothing")


def test_located_in_the_minimal_bundle_counts_as_well(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    located_in(minified_beside(bundle) / "minimal")
    contents = collect(bundle)
    assert guilty_nodes(contents) == [[], ["erf"]]
    assert contents.located is not None


def errors_of(contents: Contents) -> list[str]:
    return [errors.path for errors in contents.errors]


def test_only_wrong_values_are_run_for(tmp_path: Path) -> None:
    asked: list[Path] = []

    def measure(bundle: Path, _: object) -> Measured:
        asked.append(bundle)
        return Measured(MISMATCH, (ErrorMap("out[0]", (3, 4)),))

    bundle = failing_bundle(tmp_path / "failing")
    assert errors_of(collect(bundle, measure=measure)) == ["out[0]"]
    assert errors_of(collect(failing_bundle(tmp_path / "raising", RAISED), measure=measure)) == []
    assert asked == [bundle]


def test_a_bundle_that_nobody_has_judged_is_judged(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "unknown", None)
    assert collect(bundle).next_steps == ("torchrepro check unknown tells whether it fails",)
    contents = collect(bundle, measure=lambda *_: Measured(MISMATCH))
    assert contents.verdict is not None
    assert contents.verdict.kind is Kind.MISMATCH


@pytest.mark.parametrize(
    ("measured", "note"),
    [
        (Measured(note="could not be run for this report: no such compiler"), "no such compiler"),
        (Measured(Verdict(Kind.PASS)), "it does not fail on this machine"),
        (Measured(RAISED), "on this machine it fails in another way"),
    ],
)
def test_what_running_it_shows_is_a_note(measured: Measured, note: str, tmp_path: Path) -> None:
    contents = collect(failing_bundle(tmp_path / "failing"), measure=lambda *_: measured)
    assert [one for one in contents.notes if note in one]
    assert contents.verdict is not None
    assert contents.verdict.kind is Kind.MISMATCH


LEAF = LeafComparison(
    "out", Difference.NON_FINITE, blamed=Blame.COMPILED, elements=1, mismatched=1, res_value="inf"
)
SENTENCES = [
    (Verdict(Kind.MISMATCH, comparison=Comparison((LEAF,))), "it gives inf"),
    (Verdict(Kind.MISMATCH, summary="lost"), "wrong: lost"),
    (Verdict(Kind.CRASH, signal="SIGSEGV"), "dies of SIGSEGV"),
    (Verdict(Kind.HANG, summary="no end after 9 s"), "no end after 9 s"),
    (replace(RAISED, kind=Kind.MISSING_ERROR), "Without torch.compile this raises"),
    (replace(RAISED, kind=Kind.RUN_ERROR), "raises an error, and runs without it"),
    (Verdict(Kind.INVALID, summary="eager fails"), "Nothing can be said"),
    *((Verdict(kind), "") for kind in Kind),
]


@pytest.mark.parametrize(("verdict", "words"), SENTENCES)
def test_every_verdict_is_a_sentence(verdict: Verdict, words: str, tmp_path: Path) -> None:
    contents = collect(failing_bundle(tmp_path / "failing", verdict))
    assert words in contents.sentence
    assert contents.sentence[0].isupper() or contents.sentence.startswith("torch.compile")
    assert len(contents.title) <= 100


def test_who_was_not_found_is_not_named(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    located_in(
        bundle, replace(GUILTY, stage=type(GUILTY.stage).NONE, op=None, notes=("it passes everywhere",))
    )
    assert collect(bundle).guilt == "The culprit is unknown: it passes everywhere."


def test_the_guilty_of_several_graphs_is_named_and_drawn(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    graph = GuiltyGraph(1, 3, "/home/ada/graph", "backward of graph 1", "model.py:3 in forward")
    located_in(bundle, replace(GUILTY, graph=graph))
    failing_bundle(bundle / "located" / "graph")
    contents = collect(bundle)
    assert "Of 3 compiled graphs it is backward of graph 1" in contents.guilt
    assert contents.original is not None
    assert contents.original.title == "failing graph"


def test_a_zip_is_a_bundle_like_any_other(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing.zip")
    assert bundle.is_file()
    minified_beside(bundle)
    (run_of_user(tmp_path / "failing.located", bundle) / "result.json").write_text(
        json.dumps(GUILTY.to_dict())
    )
    contents = collect(bundle)
    assert contents.bundle == "failing.zip"
    assert contents.script_is_minimal
    assert guilty_nodes(contents) == [["erf"], ["erf"]]


def test_a_damaged_bundle_has_no_report(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    damaged = (bundle / "manifest.json").read_bytes().replace(b'"torch"', b'"torcH"', 1)
    (bundle / "manifest.json").write_bytes(damaged)
    with pytest.raises(BundleError, match=r"manifest\.json of .* is damaged"):
        collect(bundle)
