"""A report as Markdown, and as an issue for PyTorch's tracker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from torchrepro.nouns.errors import on_one_line, visible
from torchrepro.nouns.results import Located, Way
from torchrepro.nouns.sections import Code, Facts, Lines, Part, Table, counted, of_verdict
from torchrepro.nouns.sentences import culprit_of
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.contents import Contents
from torchrepro.report.environments import lines_of, settings_lines
from torchrepro.report.evidence import section_of
from torchrepro.report.sections import Limits, sections_of
from torchrepro.report.text import lines_of_sections

_LIMITS = Limits(rows=20, nodes=60, wide=True)
_SCRIPT_LIMIT = 40_000
"""Maximum characters: GitHub accepts 65,536 in all."""
_LOG_LINES, _LOG_LINE, _LOG_WIDTH = 30, 300, 120


def markdown(contents: Contents) -> str:
    """Render the whole report: for a wiki, a pull request, a chat."""
    first, *others = sections_of(contents, _LIMITS)
    found = [f"# {prose(contents.title)}", prose(first.title), *_parts(first.parts)]
    for section in others:
        found += [f"## {prose(section.title[:1].upper() + section.title[1:])}", *_parts(section.parts)]
    return "\n\n".join(found) + "\n"


def _parts(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        match part:
            case Facts(rows=rows) if rows:
                yield table_of(Table(("", ""), rows))
            case Table() if part.rows:
                yield table_of(part)
                if part.more:
                    yield f"{prose(part.more[:1].upper() + part.more[1:])}."
            case Code(text=text, language="text") if text.strip():
                yield fenced(text, "text")
            case Code(text=text, language="python", title="") if text:
                yield folded(text)
            case Code(text=text, language=language, title=title) if text:
                yield from (prose(title), fenced(text, language))
            case Lines(lines=(line,), label=""):
                yield prose(line)
            case Lines(lines=lines) if lines:
                yield "\n".join(f"- {prose(line)}" for line in lines)


def table_of(table: Table) -> str:
    """Return a table in Markdown, its cells as code."""
    lines = [f"| {' | '.join(table.head)} |", f"|{' --- |' * len(table.head)}"]
    for number, row in enumerate(table.rows):
        mark = "**→** " if number in table.marked else ""
        lines.append(f"| {mark}{' | '.join(code(cell.replace('|', '¦')) for cell in row)} |")
    return "\n".join(lines)


def github_issue(contents: Contents) -> str:
    """Render an issue in the order of PyTorch's template; the first line is the title.

    If a custom operator is the culprit, it is an issue for the maintainers of the operator, and says so.
    It has only versions, hardware and torch's switches of the user's machine (`privacy.py`).
    """
    versions = {**lines_of(contents.environment), **settings_lines(contents.settings)}
    sections = [
        contents.title,
        *(_not_for_pytorch(contents.located) if contents.located is not None else ()),
        "### 🐛 Describe the bug",
        prose(contents.sentence),
        _culprit(contents.located),
        *(f"- {prose(line)}" for line in contents.explained_elsewhere),
        _script(contents),
        *_evidence(contents),
        "### Error logs",
        _logs(contents.verdict, contents.traceback),
        f"Generated code of the repro: {code(contents.trace)}, attached." if contents.trace else "",
        "### Versions",
        fenced("\n".join(f"{name}: {value}" for name, value in versions.items()), "text"),
        _labels(contents),
        f"<!-- torchrepro-bucket: {contents.bucket} -->" if contents.bucket else "",
    ]
    return "\n\n".join(part for part in sections if part).replace("\n\n- ", "\n- ") + "\n"


def _not_for_pytorch(located: Located) -> Iterator[str]:
    if located.blamed:
        kind = located.blamed.partition(" ")[0]
        what = "does not do what it declares" if kind == "operator" else "makes compiled code fail"
        yield (
            f"> This is no bug of PyTorch: the custom {prose(located.blamed)} {what}. "
            f"Please report it where that {kind} is maintained, not at pytorch/pytorch."
        )


def _culprit(located: Located | None) -> str:
    if located is None or not located.found:
        return ""
    if located.blamed:
        return prose(culprit_of(located))
    found = [f"First stage that fails: {code(located.stage.value)}"]
    part = located.part
    if part is not None and part.verified:
        found[0] += f", {prose(part.kind)} {code(part.name)}"
    found[0] += f" ({located.confidence.value})."
    if part is not None and not part.verified:
        found.append(f"Turning off the {prose(part.kind)} {code(part.name)} hides it.")
    if located.rungs:
        tried = [
            (rung.backend, "passes")
            if rung.kind is Kind.PASS
            else (rung.backend, f"fails ({rung.kind.value})" if rung.fails else "cannot be tested")
            for rung in located.rungs
        ]
        found.append(f"Ablation: {', '.join(f'{code(backend)} {did}' for backend, did in tried)}.")
    if located.op is not None:
        place = f" at {code(located.op.source)}" if located.op.source else ""
        told = "It appears with" if located.op.way is Way.PIECE else "First wrong op:"
        found.append(f"{told} {code(located.op.op)}{place}.")
    if located.sensitivity is not None and located.sensitivity.words:
        found.append(f"Conditioning: {prose(located.sensitivity.words)}.")
    if located.workaround is not None and located.workaround.code and located.workaround.verified:
        found.append(f"It goes away with {code(located.workaround.code)}.")
    return "\n".join(found)


def _script(contents: Contents) -> str:
    if not contents.script:
        return ""
    lines = counted(len(contents.script.splitlines()), "line")
    if contents.script_is_minimal:
        words = f"Minified repro ({lines}, fails in a fresh process):"
    else:
        words = f"Repro ({lines}, not minified; it reads the files of its bundle):"
    if len(contents.script) > _SCRIPT_LIMIT:
        return f"{words} it is too long for an issue, attach {code(Path(contents.bundle).name)} to it."
    return f"{words}\n\n{folded(contents.script)}"


def _logs(verdict: Verdict | None, traceback: str) -> str:
    """Return the end of the traceback, or the verdict with the wrong values."""
    if verdict is None:
        return "None: it has not been judged."
    raised = verdict.raised
    said = traceback.strip() or (f"{raised.type}: {raised.message}" if raised is not None else "")
    section = of_verdict(replace(verdict, notes=()), limit=3)
    lines = _tail(said) if said else [line.text for line in lines_of_sections([section], _LOG_WIDTH)]
    return fenced("\n".join(lines), "text")


def _tail(text: str) -> list[str]:
    """Return the last lines, each truncated: those of a C++ compiler can be very long."""
    lines = [line[:_LOG_LINE] for line in visible(text).splitlines() if line.strip()]
    left_out = len(lines) - _LOG_LINES
    return ([f"... {left_out} lines before"] if left_out > 0 else []) + lines[-_LOG_LINES:]


def _evidence(contents: Contents) -> Iterator[str]:
    """Yield the answers to what maintainers ask first, and the script as a failing test."""
    if contents.evidence is None:
        return
    section = section_of(replace(contents.evidence, labels=()))
    yield from ("**What maintainers ask first**", *_parts(section.parts))
    test = contents.evidence.unit_test
    if test and len(contents.script) + len(test) < _SCRIPT_LIMIT:
        block = fenced(test, "python")
        yield f"<details><summary>The same as a failing test for pytest</summary>\n\n{block}\n\n</details>"


def _labels(contents: Contents) -> str:
    """Return the suggested labels as a comment."""
    labels = contents.evidence.labels if contents.evidence is not None else ()
    return f"<!-- labels: {', '.join(labels)} -->" if labels else ""


# Words, code and fences out of untrusted text. It must not become markup, a mention, a link or the end of a
# fence. GitHub makes mentions (`@name`), issue numbers (`#123`) and emoji after Markdown: a backslash does
# not stop them, a code span does. Every word of prose that is not a plain word becomes code, which is also
# how one would write `out[0]` or `aten.erf.default`.

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
    text = on_one_line(text)
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
