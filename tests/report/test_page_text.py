"""What stands in the page, read as text."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from html import unescape
from importlib.resources import files
from pathlib import Path

import pytest
from page_samples import SAMPLES, SCRIPT, bare, compile_error, mismatch

from torchrepro.nouns.results import Confidence, Growth, Way
from torchrepro.nouns.sentences import CONFIDENCES, KINDS, STAGES, WAYS
from torchrepro.nouns.verdict import Kind, Stage
from torchrepro.report.page.html import page_of

ROOT = Path(__file__).resolve().parents[2]


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def payload(page: str) -> dict[str, object]:
    found = re.search(r'id="payload">(.*?)</script>', page, re.DOTALL)
    assert found
    data: dict[str, object] = json.loads(found.group(1))
    return data


def test_sections_come_in_the_order_in_which_one_asks() -> None:
    assert sections(page_of(mismatch())) == [
        "verdict",
        "script",
        "culprit",
        "graphs",
        "errors",
        "minifying",
        "environment",
        "details",
    ]


def test_sections_without_data_are_left_out() -> None:
    assert sections(page_of(bare())) == ["verdict"]
    page = page_of(compile_error())
    assert sections(page) == ["verdict", "script", "culprit", "environment", "details"]
    assert "plot-" not in re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_link_of_the_page_has_its_target_in_it(name: str) -> None:
    page = page_of(SAMPLES[name]())
    targets = re.findall(r'\bhref="#([\w-]+)"', page)
    assert targets
    assert all(f'id="{target}"' in page for target in targets)


def test_the_script_is_there_character_by_character() -> None:
    tricky = f"\n\n{SCRIPT}\tx = '\u2028 &amp; <b>'\n\n\n"
    page = page_of(replace(bare(), script=tricky))
    code = re.search(r"<pre tabindex=\"0\"><code>(.*?)</code></pre>", page, re.DOTALL)
    assert code
    assert unescape(re.sub(r"<[^>]*>", "", code.group(1))) == tricky


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page = page_of(mismatch())
    policy = unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for element, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_what_is_not_a_number_is_said_in_words() -> None:
    contents = mismatch()
    assert contents.located
    growth = (
        Growth("a", "op", eager=0.0, compiled=math.inf),
        Growth("b", "op", eager=None, compiled=math.nan),
    )
    page = page_of(replace(contents, located=replace(contents.located, growth=growth)))
    shown = payload(page)["growth"]
    assert isinstance(shown, list)
    assert [point[-2:] for point in shown] == [[0.0, "inf"], [None, "nan"]]


def test_a_name_that_is_no_unicode_does_not_stop_the_page() -> None:
    page = page_of(replace(bare(), bundle="caf\udce9\0", title="\ud800"))
    assert page.encode("utf-8")
    assert "\0" not in page


def test_there_are_words_for_every_kind_stage_confidence_and_way() -> None:
    for enum, said in ((Kind, KINDS), (Stage, STAGES), (Confidence, CONFIDENCES), (Way, WAYS)):
        assert set(said) == set(enum)


def test_vendored_libraries_are_what_their_readme_says() -> None:
    vendored = files("torchrepro.report.page") / "vendored"
    readme = (vendored / "README.md").read_text()
    for path in ("dagre/dagre.min.js",):
        digest = hashlib.sha256((vendored / path).read_bytes()).hexdigest()
        assert f"`{path}` | `{digest}`" in readme
    assert "Permission is hereby granted" in page_of(bare()), "the licence goes where the library goes"


@pytest.mark.slow
def test_a_wheel_has_all_that_a_page_is_made_of(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    here = ROOT / "src" / "torchrepro" / "report" / "page"
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in here.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())
