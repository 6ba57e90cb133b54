"""The formats of a report, a row each; and JSON, which `--against` reads (docs/reporting.md)."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from typing import Any

from torchrepro.nouns import __version__
from torchrepro.nouns.verdict import as_data
from torchrepro.report.contents import Contents

FORMAT = 1
"""Raised whenever a field changes its meaning; new fields do not raise it."""


def as_json(contents: Contents) -> str:
    """One JSON object, complete. Infinity and NaN are the words "inf", "-inf" and "nan"."""
    return json.dumps(data_of(contents), indent=1, allow_nan=False) + "\n"


def data_of(contents: Contents) -> dict[str, Any]:
    """The contents as plain data; verdict and located as `check --json` and `locate --json` have them."""
    found: dict[str, Any] = as_data(asdict(contents))
    if contents.verdict is not None:
        found["verdict"] = as_data(contents.verdict.to_dict())
    if contents.located is not None:
        found["located"] = contents.located.to_dict()
    return {"format": FORMAT, "torchrepro": __version__, **found}


class Format(StrEnum):
    HTML = "html"
    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    GITHUB = "github"

    @property
    def ending(self) -> str:
        """What the name of a file ends in: `.report.html`."""
        return _ENDINGS[self]


_ENDINGS = {
    Format.HTML: ".report.html",
    Format.TEXT: ".report.txt",
    Format.JSON: ".report.json",
    Format.MARKDOWN: ".report.md",
    Format.GITHUB: ".issue.md",
}
_RENDERERS = {
    Format.HTML: "torchrepro.report.page.html:page_of",
    Format.TEXT: "torchrepro.report.text:as_text",
    Format.JSON: "torchrepro.report.formats:as_json",
    Format.MARKDOWN: "torchrepro.report.markdown:markdown",
    Format.GITHUB: "torchrepro.report.markdown:github_issue",
}


def rendered(contents: Contents, format_: Format) -> str:
    """Render a report. Only what the format needs is imported: the page takes longer than all others."""
    module, _, function = _RENDERERS[format_].partition(":")
    text: str = getattr(import_module(module), function)(contents)
    return text
