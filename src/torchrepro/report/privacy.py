"""Remove paths of the user's machine from a report, because it is shared.

Most paths contain the user's name. The useful part is kept: the name of a file, and for installed code the
path inside its package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.nouns.repro import portable_environment, telling_environment
from torchrepro.report.contents import Contents

_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]|.*[/\\]lib[/\\]python3\.\d+[/\\]")
_MAY_BE_A_PATH = re.compile(r"[/\\]")
_PART = r"[^\s/\\'\"`<>|:;,()\[\]{}*?]"
_QUOTED = re.compile(
    r"(?P<quote>['\"`])(?P<path>(?:file://|~|[A-Za-z]:)?[/\\][^'\"`\n]*[/\\][^'\"`\n]*)(?P=quote)"
)
_BARE = re.compile(
    rf"(?P<url>\b(?!file:)[A-Za-z][\w+.-]+://\S*)"
    rf"|(?P<path>(?<![\w.\])])(?:file://|~|\b[A-Za-z]:)?(?:[/\\]{_PART}+){{2,}}[/\\]?|~[/\\]{_PART}+)"
)


def without_paths(text: str) -> str:
    """Return a text with every absolute path shortened to the part that may be shared."""
    if not _MAY_BE_A_PATH.search(text):
        return text
    # First, because the patterns would split a home directory at a blank in its name.
    text = _home().sub("~", text)
    text = _QUOTED.sub(lambda found: f"{found['quote']}{_shortened(found['path'])}{found['quote']}", text)
    return _BARE.sub(lambda found: found["url"] or _shortened(found["path"]), text)


@cache
def _home() -> re.Pattern[str]:
    home = str(Path.home()).rstrip("/\\")
    return re.compile(rf"{re.escape(home)}(?![\w.-])" if home else r"(?!)")


def script_without_paths(text: str) -> str:
    """Shorten paths in code, inside quotes only: elsewhere `a /b/c` may be a division."""
    return _QUOTED.sub(lambda found: f"{found['quote']}{_shortened(found['path'])}{found['quote']}", text)


def shareable(contents: Contents) -> Contents:
    """Return the contents without paths of this machine, in every text."""
    data = msgspec.to_builtins(contents)
    cleaned = {name: _cleaned(value) for name, value in data.items() if name != "script"}
    return msgspec.convert({**cleaned, "script": script_without_paths(contents.script)}, Contents)


def shareable_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch and its compilers, without those that name a file or a program."""
    return portable_environment(telling_environment(environ))


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


def _shortened(path: str) -> str:
    installed = _INSTALLED.sub("", path)
    if installed != path:
        return installed.replace("\\", "/")
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return f".../{name}"
