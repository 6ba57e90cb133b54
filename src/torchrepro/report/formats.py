"""The formats of a report: one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torchrepro.report.contents import Contents


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
    from torchrepro.report.data import as_json

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
