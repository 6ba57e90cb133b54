"""An issue for PyTorch's tracker, in the order of its template, ready to be pasted. Read in a minute.

The first line is the title. Of the user's machine it tells versions, hardware and torch's switches, no more
(`privacy.py`), and nothing in it can mention anybody (`markup.py`).
"""

from __future__ import annotations

from pathlib import Path

from torchrepro.nouns.comparison import LeafComparison
from torchrepro.nouns.located import Located, Rung, Way
from torchrepro.nouns.sentences import counted, index_of
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.contents import Contents
from torchrepro.report.environments import lines_of
from torchrepro.report.markup import code, fenced, folded, prose, visible

_SCRIPT_LIMIT = 40_000
"""Characters: GitHub takes 65,536 in all."""
_LOG_LINES, _LOG_LINE = 30, 300
_LEAVES = 3
_LABELS = {
    "inductor": "module: inductor",
    "aot_eager": "module: aotdispatch",
    "eager": "module: dynamo",
}
_STAGES = {
    "capture": "module: dynamo",
    "aot": "module: aotdispatch",
    "decomposition": "module: decompositions",
}


def github_issue(contents: Contents) -> str:
    """Title, description with the script, error logs, versions; and which labels would fit."""
    sections = [
        contents.title,
        "### 🐛 Describe the bug",
        prose(contents.sentence),
        _guilt(contents.located),
        *(f"- {prose(line)}" for line in contents.explained_beside),
        _script(contents),
        "### Error logs",
        _logs(contents),
        "### Versions",
        fenced(_versions(contents), "text"),
        _labels(contents),
    ]
    return "\n\n".join(part for part in sections if part).replace("\n\n- ", "\n- ") + "\n"


def _guilt(located: Located | None) -> str:
    if located is None or not located.found:
        return ""
    found = [f"First stage that fails: {code(located.stage.value)}"]
    if located.part is not None:
        found[0] += f", {prose(located.part.kind)} {code(located.part.name)}"
    found[0] += f" ({located.confidence.value})."
    if located.rungs:
        tried = ", ".join(f"{code(rung.backend)} {_did(rung)}" for rung in located.rungs)
        found.append(f"Ablation: {tried}.")
    if located.op is not None:
        place = f" at {code(located.op.source)}" if located.op.source else ""
        told = "It comes with" if located.op.way is Way.PIECE else "First wrong op:"
        found.append(f"{told} {code(located.op.op)}{place}.")
    if located.sensitivity is not None and located.sensitivity.words:
        found.append(f"Conditioning: {prose(located.sensitivity.words)}.")
    if located.workaround is not None and located.workaround.code and located.workaround.verified:
        found.append(f"It goes away with {code(located.workaround.code)}.")
    return "\n".join(found)


def _did(rung: Rung) -> str:
    if rung.kind is Kind.PASS:
        return "passes"
    return f"fails ({rung.kind.value})" if rung.fails else "cannot be tested"


def _script(contents: Contents) -> str:
    if not contents.script:
        return ""
    lines = len(contents.script.splitlines())
    if contents.script_is_minimal:
        words = f"Minified repro ({counted(lines, 'line')}, seen to fail in a fresh process):"
    else:
        words = f"Repro ({counted(lines, 'line')}, not minified; it reads the files of the bundle beside it):"
    if len(contents.script) > _SCRIPT_LIMIT:
        return f"{words} it is too long for an issue, attach {code(Path(contents.bundle).name)} to it."
    return f"{words}\n\n{folded(contents.script)}"


def _logs(contents: Contents) -> str:
    verdict = contents.verdict
    if verdict is None:
        return "None: it has not been judged."
    return fenced("\n".join(_evidence(verdict, contents.traceback)), "text")


def _evidence(verdict: Verdict, traceback: str) -> list[str]:
    """The telling end of what was printed, or the values that are wrong."""
    if traceback.strip():
        return _tail(traceback)
    if verdict.raised is not None:
        return _tail(f"{verdict.raised.type}: {verdict.raised.message}")
    if verdict.comparison is not None and verdict.comparison.differing:
        leaves = verdict.comparison.differing
        shown = [line for leaf in leaves[:_LEAVES] for line in _leaf(leaf)]
        return shown + (
            [f"... and {len(leaves) - _LEAVES} more values differ"] if len(leaves) > _LEAVES else []
        )
    if verdict.kind in (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY) and verdict.stderr_tail.strip():
        return [verdict.summary, *_tail(verdict.stderr_tail)]
    return [str(verdict)]


def _leaf(leaf: LeafComparison) -> list[str]:
    facts = [f"{leaf.mismatched} of {leaf.elements} elements"] if leaf.mismatched else [leaf.difference.value]
    if leaf.max_abs:
        facts.append(f"max abs error {leaf.max_abs:.3g}, max rel error {leaf.max_rel:.3g}")
    lines = [f"{leaf.path}{index_of(leaf)}: {', '.join(facts)}"]
    values = {"eager": leaf.ref_value, "compiled": leaf.res_value, "float64": leaf.truth_value}
    shown = "   ".join(f"{name} {value}" for name, value in values.items() if value)
    return lines + ([f"  {shown}"] if shown else [f"  {leaf.detail}"])


def _tail(text: str) -> list[str]:
    """The last lines; a line of a C++ compiler can be a kilometre long."""
    lines = [line[:_LOG_LINE] for line in visible(text).splitlines() if line.strip()]
    left_out = len(lines) - _LOG_LINES
    return ([f"... {left_out} lines before"] if left_out > 0 else []) + lines[-_LOG_LINES:]


def _versions(contents: Contents) -> str:
    lines = lines_of(contents.environment) if contents.environment is not None else {}
    lines |= {name: str(value) for name, value in (contents.settings or {}).items()}
    return "\n".join(f"{name}: {value}" for name, value in lines.items())


def _labels(contents: Contents) -> str:
    """As a comment, for whoever may set them."""
    labels = ["oncall: pt2"]
    compiler = str((contents.settings or {}).get("compiler", "inductor")).partition("(")[0]
    labels += [_LABELS[compiler]] if compiler in _LABELS else []
    if contents.located is not None and contents.located.stage.value in _STAGES:
        labels = [labels[0], _STAGES[contents.located.stage.value]]
    kinds = {
        Kind.MISMATCH: "module: correctness (silent)",
        Kind.NON_FINITE: "module: NaNs and Infs",
        Kind.CRASH: "module: crash",
    }
    if contents.verdict is not None and contents.verdict.kind in kinds:
        labels.append(kinds[contents.verdict.kind])
    return f"<!-- labels: {', '.join(labels)} -->"
