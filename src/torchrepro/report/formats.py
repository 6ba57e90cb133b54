"""The formats of a report, a row each; and JSON, which `--against` reads (docs/reporting.md)."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from torchrepro.nouns import __version__
from torchrepro.nouns.verdict import as_data

if TYPE_CHECKING:
    from torchrepro.report.contents import Contents

FORMAT = 1
"""Incremented whenever a field changes its meaning, but not for new fields."""


def as_json(contents: Contents) -> str:
    """Return the report as one JSON object; verdict and located as in `check --json` and `locate --json`.

    Infinity and NaN are the strings "inf", "-inf" and "nan".
    """
    found = {"format": FORMAT, "torchrepro": __version__, **as_data(asdict(contents))}
    if contents.verdict is not None:
        found["verdict"] = as_data(contents.verdict.to_dict())
    if contents.located is not None:
        found["located"] = contents.located.to_dict()
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


class Format(StrEnum):
    HTML = "html"
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    GITHUB = "github"

    @property
    def ending(self) -> str:
        """The suffix of a file: `.report.html`."""
        return _FORMATS[self][0]


_FORMATS = {
    Format.HTML: (".report.html", "torchrepro.report.page.html:page_of"),
    Format.TEXT: (".report.txt", "torchrepro.report.text:as_text"),
    Format.JSON: (".report.json", "torchrepro.report.formats:as_json"),
    Format.MARKDOWN: (".report.md", "torchrepro.report.markdown:markdown"),
    Format.GITHUB: (".issue.md", "torchrepro.report.markdown:github_issue"),
}


def rendered(contents: Contents, format_: Format) -> str:
    """Render a report. Only the format's own module is imported: that of the page is the slowest."""
    text: str = resolve_name(_FORMATS[format_][1])(contents)
    return text
