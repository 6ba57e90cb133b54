"""Whatever a stranger writes into a bundle is text in the page, and nothing else."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from page_samples import HOSTILE, hostile

from torchrepro.report.page.html import page_of

Attributes = tuple[tuple[str, str | None], ...]


class Skeleton(HTMLParser):
    """Elements with their attributes, without the coloured words of code; and the texts of a few of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Attributes]] = []
        self.texts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        coloured = tag == "span" and "code" in self._open
        if not coloured:
            self.elements.append((tag, tuple(attrs)))
        self._open.append(dict(attrs).get("id") or tag)
        if tag in ("meta", "br"):
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "br"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for name in set(self._open) & {"title", "payload", "verdict-title"}:
            self.texts[name] = self.texts.get(name, "") + data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data!r}")


@cache
def harmless() -> list[tuple[str, Attributes]]:
    return Skeleton(page_of(hostile("x"))).elements


MARKUP = ["<", ">", "&", '"', "'", "</script>", "<!--", "-->", "<script>", "]]>", "{{", "}}", "{%", "\u2028"]
NASTY = ["onerror=alert(1)", "<img src=x onerror=1>", "&lt;", "javascript:", "</title>", "</style>"]
PIECES = st.sampled_from([*MARKUP, *NASTY, "\\", "\n", "\x00", "\ud800"])
# Rows without a value are left out of every format.
TEXTS = st.lists(PIECES | st.text(max_size=8), min_size=1, max_size=8).map("".join).filter(str.strip)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
@example(HOSTILE)
@example("<!--<script>")
@example("'+alert(1)+'")
def test_no_text_of_a_bundle_makes_an_element_or_an_attribute(text: str) -> None:
    page = page_of(hostile(text))
    found = Skeleton(page)
    assert found.elements == harmless()
    whole = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", "\ufffd", text)
    whole = whole.encode("utf-8", "replace").decode()
    assert found.texts["title"] == whole
    assert found.texts["verdict-title"] == whole
    strings = json.loads(found.texts["payload"])["strings"]
    assert text.encode("utf-8", "replace").decode() in strings


@given(st.text())
def test_the_payload_cannot_end_the_element_that_it_is_in(text: str) -> None:
    from torchrepro.report.page.html import as_json

    written = as_json([text, HOSTILE])
    assert not set("<>&\u2028\u2029") & set(written)
    assert json.loads(written) == [text, HOSTILE]
