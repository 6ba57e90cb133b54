"""Words, code and fences of Markdown out of untrusted text.

It must not become markup, a mention, a link or the end of a fence. GitHub makes mentions (`@name`), issue
numbers (`#123`) and emoji after Markdown: a backslash does not stop them, a code span does. Every word of
prose that is not a plain word becomes code, which is also how one would write `out[0]` or `aten.erf.default`.
"""

from __future__ import annotations

import re

from torchrepro.nouns.errors import visible

_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*|\d+(?:[.,]\d+)*(?:e[+-]?\d+)?%?")


_MARKS = re.compile(r"(?P<before>[(\"]*)(?P<core>.*?)(?P<after>[,.;:!?)\"]*)", re.DOTALL)


_LONG = 80
"""A script of more lines than this is folded."""


def fenced(text: str, language: str = "") -> str:
    """Write a block of code whose fence is longer than any in the text."""
    text = visible(text).rstrip("\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def folded(text: str) -> str:
    """Write a script, folded if it is long."""
    block = fenced(text, "python")
    if text.count("\n") < _LONG:
        return block
    return f"<details><summary>repro.py</summary>\n\n{block}\n\n</details>"


def code(text: str) -> str:
    """Write a text as code inside a line."""
    text = " ".join(visible(text).split())
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    # A blank separates the fence from a backtick at either end.
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """Write a sentence with every word that is not a plain one as code; neighbours share a span."""
    shown: list[str] = []
    foreign: list[str] = []
    for word in visible(text).split():
        found = _MARKS.fullmatch(word)
        assert found is not None  # the pattern matches anything
        before, core, after = found.group("before", "core", "after")
        starts_a_list = not shown and core.isdigit() and after
        if _PLAIN_WORD.fullmatch(core) and not starts_a_list:
            shown += [code(" ".join(foreign))] if foreign else []
            foreign = []
            shown.append(f"{before}{core}{after}")
        elif core and not before and after and set(after) <= set(",.;:"):
            foreign.append(core)
            shown.append(code(" ".join(foreign)) + after)
            foreign = []
        else:
            foreign.append(word)
    shown += [code(" ".join(foreign))] if foreign else []
    return " ".join(shown)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
