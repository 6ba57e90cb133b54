"""Text of strangers in Markdown: nothing in it may become markup, a mention, a link or the end of a fence.

Mentions (`@name`), issue numbers (`#123`) and emoji are made by GitHub after Markdown: a backslash does not
stop them, a code span does. Every word of prose that is not a plain word becomes code, which is also how a
person would write `out[0]` or `aten.erf.default`.
"""

from __future__ import annotations

import re

_PLAIN_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*|\d+(?:[.,]\d+)*(?:e[+-]?\d+)?%?")
_MARKS = re.compile(r"(?P<before>[(\"]*)(?P<core>.*?)(?P<after>[,.;:!?)\"]*)", re.DOTALL)
_LONG = 80
"""Lines of a script."""
_LINE_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def visible(text: str) -> str:
    """The text with control characters made visible and one way to end a line: it commands no terminal."""
    text = _LINE_BREAKS.sub("\n", text)
    return "".join(
        character if character.isprintable() or character in "\n\t" else _shown(character)
        for character in text
    )


def fenced(text: str, language: str = "") -> str:
    """A block of code that ends where we end it: its fence is longer than any in the text."""
    text = visible(text).rstrip("\n")
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def folded(script: str) -> str:
    """A script as code; a long one, which nobody reads first, is folded."""
    block = fenced(script, "python")
    if script.count("\n") < _LONG:
        return block
    return f"<details><summary>repro.py</summary>\n\n{block}\n\n</details>"


def code(text: str) -> str:
    """A text as code inside a line."""
    text = " ".join(visible(text).split())
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    # A blank at each end belongs to the fence where a backtick stands beside it.
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def prose(text: str) -> str:
    """A sentence in which every word that is not a plain one is code; neighbours share a span."""
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


def cell(text: str) -> str:
    """A text as code in a table, where a bar would end the cell even inside code."""
    return code(text.replace("|", "¦"))


def _shown(character: str) -> str:
    return "\N{SYMBOL FOR ESCAPE}" if character == "\x1b" else "\N{REPLACEMENT CHARACTER}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall(r"`+", text)), default=0)
