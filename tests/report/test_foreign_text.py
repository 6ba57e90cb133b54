"""Whatever a bundle says, it stays text: in Markdown, in an issue, in a notebook, in a terminal."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from findings import contents_of
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from torchrepro.nouns.sentences import plain
from torchrepro.report.contents import Contents
from torchrepro.report.formats import as_json
from torchrepro.report.markdown import code, fenced, github_issue, markdown, prose
from torchrepro.report.text import WIDTH, as_text

NASTY = [
    "```\n# owned",
    "~~~\n</details>",
    "`` ` ```` @pytorch/core fixes #123 GH-1 https://github.com/a/b/issues/1",
    "<img src=x onerror=alert(1)> <!-- --> ]]>",
    "[a](javascript:b) ![c](d) | e | f |\n| --- |",
    "\x1b]0;title\x07\x1b[31mred\r\n\tend\u2028next\x85x\x00",
    "1. one\n- two\n> three\n===\n---\n# four",
    "</script><script>alert(1)</script>",
    ":tada: www.evil.example @someone, (#7) \\@you",
    "word" * 100,
]
FOREIGN = st.one_of(
    st.sampled_from(NASTY),
    st.text(st.sampled_from("`~@#<>|[]()*_-+=&\\!:/.\n\r\t x1"), max_size=40),
    st.text(max_size=40),
)
OURS = ("<details><summary>repro.py</summary>", "</details>", "<!-- labels:")
LINKED_BY_GITHUB = re.compile(r"@\w|#\d|\bGH-\d|://|www\.|:\w+:")


def rendered_parts(text: str) -> tuple[list[str], list[str], set[str]]:
    """(plain text, HTML, kinds of elements) that a reader of Markdown makes of a text."""
    plain_text, html, kinds = [], [], set()
    for block in MarkdownIt("commonmark").enable("table").parse(text):
        for token in (block, *(block.children or ())):
            kinds.add(token.type)
            if token.type == "text":
                plain_text.append(token.content)
            elif token.type in ("html_block", "html_inline"):
                html.append(token.content.strip())
    return plain_text, html, kinds


def assert_harmless(render: Callable[[Contents], str], foreign: str) -> None:
    plain_text, html, kinds = rendered_parts(render(contents_of(foreign)))
    _, _, ours = rendered_parts(render(contents_of("word")))
    assert [part for part in plain_text if LINKED_BY_GITHUB.search(part)] == []
    assert [part for part in html if not part.startswith(OURS)] == []
    assert headings(render(contents_of(foreign))) <= headings(render(contents_of("word")))
    assert kinds <= ours | {"text", "code_inline", "softbreak"}


def headings(text: str) -> Counter[str]:
    """How many there are of each level."""
    return Counter(
        token.tag for token in MarkdownIt("commonmark").parse(text) if token.type == "heading_open"
    )


@given(FOREIGN)
def test_markdown_takes_nothing_of_it_for_markup(foreign: str) -> None:
    assert_harmless(markdown, foreign)


@given(FOREIGN)
def test_an_issue_takes_nothing_of_it_for_markup(foreign: str) -> None:
    assert_harmless(github_issue, foreign)


@given(FOREIGN)
def test_a_fence_holds_what_is_in_it(foreign: str) -> None:
    tokens = MarkdownIt("commonmark").parse(fenced(foreign, "text") + "\n\nafter\n")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]


@given(FOREIGN)
def test_code_and_prose_stay_one_paragraph(foreign: str) -> None:
    for text in (code(foreign), prose(f"The result: {foreign}")):
        tokens = MarkdownIt("commonmark").parse(text)
        assert [token.type for token in tokens] in ([], ["paragraph_open", "inline", "paragraph_close"])


def test_prose_reads_like_prose() -> None:
    said = "With torch.compile 3 of 120 elements of out[0] are wrong: inf at index (0, 5), not 89.28."
    assert prose(said) == (
        "With `torch.compile` 3 of 120 elements of `out[0]` are wrong: inf at index (0, 5), not 89.28."
    )


@given(FOREIGN)
def test_text_fits_80_columns_and_controls_no_terminal(foreign: str) -> None:
    contents = contents_of(foreign)
    lines = as_text(Contents(title="t", sentence=contents.sentence, bundle="b")).split("\n")
    lines += as_text(replace(contents, script="")).split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)


@given(FOREIGN)
def test_a_title_is_plain_words(foreign: str) -> None:
    shown = plain(foreign)
    assert "\n" not in shown
    assert not set(shown) & set("@#<>`*&|\\~!")


class Elements(HTMLParser):
    """What a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


OF_NOTEBOOKS = {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "pre"}


@given(FOREIGN)
def test_a_notebook_shows_it_as_text(foreign: str) -> None:
    contents = contents_of(foreign)
    assert contents.located is not None
    assert contents.verdict is not None
    html = contents._repr_html_() + contents.located._repr_html_() + contents.verdict._repr_html_()
    page = Elements()
    page.feed(html)
    assert page.seen <= OF_NOTEBOOKS | {"details", "summary"}
    assert page.attributes <= {"colspan", "open"}


@pytest.mark.parametrize("foreign", NASTY)
def test_json_gives_back_what_was_there(foreign: str) -> None:
    assert json.loads(as_json(contents_of(foreign)))["script"] == foreign
