"""The formats of a report: one row each.

The report as data: what `--format json` writes, and `--against` reads. Described in docs/reporting.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torchrepro.nouns.plain import as_data
from torchrepro.nouns.version import __version__
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


@dataclass(frozen=True, slots=True)
class Row:
    """How a format is made, and how a file of it is called."""

    ending: str
    render: Callable[[Contents], str]


def rendered(contents: Contents, format_: Format) -> str:
    """The report in a format."""
    return _FORMATS[format_].render(contents)


def ending_of(format_: Format) -> str:
    """What the name of a file ends in: `.report.html`."""
    return _FORMATS[format_].ending


# Only what is asked for is imported: Jinja and the page take longer than all the others together.
def _html(contents: Contents) -> str:
    from torchrepro.report.page import page_of

    return page_of(contents)


def _text(contents: Contents) -> str:
    from torchrepro.report.text import as_text

    return as_text(contents)


def _json(contents: Contents) -> str:

    return as_json(contents)


def _markdown(contents: Contents) -> str:
    from torchrepro.report.markdown import markdown

    return markdown(contents)


def _github(contents: Contents) -> str:
    from torchrepro.report.github import github_issue

    return github_issue(contents)


_FORMATS = {
    Format.HTML: Row(".report.html", _html),
    Format.TEXT: Row(".report.txt", _text),
    Format.JSON: Row(".report.json", _json),
    Format.MARKDOWN: Row(".report.md", _markdown),
    Format.GITHUB: Row(".issue.md", _github),
}
