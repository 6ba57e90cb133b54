from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from corpora import NEW, OLD

from torchrepro.corpus.code_diff import changes_in, two_columns
from torchrepro.corpus.findings import Counted, Finding, Outcome, Result, State, Summary
from torchrepro.corpus.index import Corpus
from torchrepro.corpus.outputs import section_of, write_github, write_json, write_junit
from torchrepro.corpus.page import page_of
from torchrepro.report.text import lines_of_sections

HOSTILE = '<script>alert(1)</script>"\x1b[31m\n::error::x --><![CDATA[ \ud800'
FAILED = Outcome(Result.FAILS, HOSTILE, 1, 1, "", 1.5, "a")


def finding(identity: str, state: State, *, accepted: bool = False) -> Finding:
    return Finding(identity, HOSTILE, "b0c4e7", state, HOSTILE, "mismatch", (FAILED,), accepted=accepted)


FOUND = [
    finding("aa", State.REGRESSED),
    finding("bb", State.STILL_FAILS, accepted=True),
    finding("cc", State.CANNOT_RUN),
    finding("dd", State.FIXED),
]
SUMMARY = Summary("corpus", (NEW,), {each.state: 1 for each in FOUND}, 7, 0, 3.25)
BUCKETS = [Counted("b0c4e7", State.REGRESSED, HOSTILE, 452, HOSTILE)]


def findings() -> Iterator[Finding]:
    return iter(FOUND)


def test_junit_has_the_bucket_as_a_property_and_the_signature_as_a_type():
    file = io.StringIO()
    write_junit(file, SUMMARY, findings)
    suite = ElementTree.fromstring(file.getvalue().encode())[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("4", "1", "1")
    regressed, accepted, lost, fixed = suite
    assert regressed.find("properties/property").attrib == {"name": "bucket", "value": "b0c4e7"}
    assert regressed.find("failure").get("type").startswith("<script>alert(1)</script>")
    assert accepted.find("skipped") is not None
    assert accepted.find("failure") is None
    assert lost.find("error") is not None
    assert [child.tag for child in fixed] == ["properties"]


def test_json_is_one_object_with_every_finding():
    file = io.StringIO()
    write_json(file, SUMMARY, BUCKETS, findings)
    told = json.loads(file.getvalue())
    assert [each["id"] for each in told["findings"]] == ["aa", "bb", "cc", "dd"]
    assert told["states"]["cannot-run"] == 1
    assert "fresh process with fresh compile caches" in told["isolation"]


def test_an_annotation_cannot_be_ended_by_a_name_in_a_bundle(tmp_path: Path):
    file, target = io.StringIO(), tmp_path / "summary.md"
    write_github(SUMMARY, BUCKETS, findings, file, {"GITHUB_STEP_SUMMARY": str(target)})
    lines = file.getvalue().splitlines()
    assert len(lines) == 2  # regressed and cannot run; accepted and fixed ones are no news
    assert all(
        line.count("::") >= 2 and line.startswith(("::error title=", "::warning title=")) for line in lines
    )
    assert "452" in target.read_text()
    assert "\x1b" not in target.read_text()


def test_the_annotations_are_the_worst_buckets_and_not_the_first_bundles():
    lost = [finding(f"{number:02}", State.CANNOT_RUN) for number in range(20)]
    old = replace(finding("e", State.STILL_FAILS), expired="2020-01-01")
    many = [*lost, old, *(finding(f"r{number}", State.REGRESSED) for number in range(3))]
    file = io.StringIO()
    write_github(SUMMARY, BUCKETS, lambda: iter(many), file, {})
    first, second, third = file.getvalue().splitlines()
    assert first.startswith("::error title=regressed")
    assert " and 2 more::" in first
    assert second.startswith("::warning title=cannot run")
    assert "its entry in the baseline expired on 2020-01-01" in third


def test_a_change_of_the_code_is_shown_once_for_all_bundles_that_have_it():
    def changed(identity: str, old: str, new: str) -> Finding:
        outcomes = (replace(FAILED, code=old), replace(FAILED, code=new))
        return replace(finding(identity, State.STILL_FAILS), outcomes=outcomes)

    found = changes_in([changed("a", "1", "2"), changed("b", "1", "1"), changed("c", "1", "2"), FOUND[0]])
    assert [(change.finding.id, change.more) for change in found] == [("a", 1)]


def test_the_table_says_how_it_was_run_and_controls_no_terminal():
    text = "\n".join(line.text for line in lines_of_sections([section_of(SUMMARY, BUCKETS)], 80))
    assert "fresh process with fresh compile caches" in " ".join(text.split())
    assert "\x1b" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_page_is_escaped_and_allows_nothing_from_elsewhere(tmp_path: Path):
    two = Summary("corpus", (OLD, NEW), SUMMARY.states, 7, 0, 3.25)
    with Corpus(tmp_path / "corpus", create=True) as corpus:
        page = page_of(corpus, two, BUCKETS, findings, diff_code=True)
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    page.encode("utf-8")


@pytest.mark.parametrize("old", [["a", "b", "c"], [], ["c"]])
def test_two_columns_have_every_line_that_differs(old: list[str]):
    new = ["a", "x", "c"]
    rows = list(two_columns(old, new))
    assert {right for same, _, right in rows if not same and right} == set(new) - set(old)
    assert {left for same, left, _ in rows if not same and left} == set(old) - set(new)
