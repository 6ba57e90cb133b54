"""Render a report as one HTML page: template, script, style and the policy that allows only them.

Everything in a bundle is untrusted. Jinja escapes what goes into the template. What the script draws is JSON,
and is inserted into the page only as text: a trusted-types policy makes the browser reject anything else. The
content security policy allows only the script and the style with these hashes.

Pygments highlights source text; its output is escaped, and its text is unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer

from torchrepro.nouns.results import Located
from torchrepro.nouns.sections import Facts, culprit_facts, error, ladder_table, values_table
from torchrepro.nouns.sentences import KINDS
from torchrepro.nouns.verdict import Comparison, Kind
from torchrepro.report.contents import Contents, Picture
from torchrepro.report.environments import lines_of, settings_lines
from torchrepro.report.evidence import evidence_rows
from torchrepro.report.graph_picture import grouped
from torchrepro.report.sections import differences_table, growth_table, steps_table

_LEXERS = {
    "python": PythonLexer(stripnl=False, ensurenl=False),
    "triton": PythonLexer(stripnl=False, ensurenl=False),
    "cpp": CppLexer(stripnl=False, ensurenl=False),
}
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True)
_ROWS = 50
_LIMIT = 60_000
"""Maximum characters to highlight: 0.1 s. Each coloured word is an HTML element."""


def highlighted(source: str, language: str) -> Markup:
    """Return source with a coloured `span` for each word; unchanged if the language has no lexer."""
    lexer = _LEXERS.get(language)
    if lexer is None or len(source) > _LIMIT:
        return escape(_without_controls(source))
    return Markup(highlight(_without_controls(source), lexer, _FORMATTER))


def _without_controls(value: Any) -> Any:
    """Return text that does not control the terminal of who prints the file; markup of ours as it is."""
    return _CONTROLS.sub("\ufffd", value) if type(value) is str else value


def page_of(contents: Contents) -> str:
    """Return the whole page, which is valid UTF-8; its tables are those of the other formats."""
    located, verdict = contents.located or Located(bundle="", kind=Kind.PASS), contents.verdict
    comparison = verdict.comparison if verdict is not None else None
    page = template().render(
        report=contents,
        assets=assets(),
        pictures=pictures_of(contents),
        payload=Markup(payload_of(contents)),
        environment=lines_of(contents.environment).items(),
        settings=settings_lines(contents.settings).items(),
        differences=differences_table(contents),
        values=values_table(comparison or Comparison(()), limit=_ROWS),
        evidence=Facts.of(evidence_rows(contents.evidence)),
        culprit=Facts.of(culprit_facts(located)),
        ladder=ladder_table(located),
        growth=growth_table(located, _ROWS),
        steps=steps_table(contents.steps, _ROWS),
    )
    return valid(page)


def valid(page: str) -> str:
    """Return valid UTF-8: a file name may have lone surrogates as text; NUL is an error in any HTML."""
    return page.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


@cache
def template(name: str = "page.html") -> jinja2.Template:
    """Return a template of the page; what goes into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        finalize=_without_controls,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "highlighted": highlighted,
        "error": error,
        "begun": lambda text: text[:1].upper() + text[1:],
        "count": "{:,}".format,
        "shortened": shortened,
    }
    environment.globals |= {"kind_words": KINDS}
    return environment.get_template(name)


def shortened(text: str, limit: int = 200_000) -> str:
    """Truncate a text and append how much is left out: a C++ compiler can print megabytes."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters"


# Later files use what the earlier ones define.
_SCRIPTS = (
    "elements.js",
    "copying.js",
    "theme.js",
    "axes.js",
    "live_plot.js",
    "plots.js",
    "heat.js",
    "parts.js",
    "layout.js",
    "dragging.js",
    "picture.js",
    "main.js",
)


@dataclass(frozen=True, slots=True)
class Assets:
    """The parts that every page has."""

    style: Markup
    script: Markup
    policy: str


@cache
def assets() -> Assets:
    here = files(__package__)
    style = "\n" + here.joinpath("assets/style.css").read_text("utf-8")
    own = "\n".join(here.joinpath(f"assets/{name}").read_text("utf-8") for name in _SCRIPTS)
    vendored = here.joinpath("vendored/dagre/dagre.min.js").read_text("utf-8")
    vendored = "\n".join(
        line for line in vendored.splitlines() if not line.startswith("//# sourceMappingURL")
    )
    licence = here.joinpath("vendored/dagre/LICENSE").read_text("utf-8")
    script = f"\n/* dagre (@dagrejs/dagre)\n\n{licence}*/\n{vendored}\n(() => {{\n{own}\n}})();\n"
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    return Assets(Markup(style), Markup(script), policy)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# As JSON these are the same characters; as HTML they could begin or end an element.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ESCAPES = {
    ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029" + "".join(map(chr, range(0x7F, 0xA0)))
}


def payload_of(contents: Contents) -> str:
    """Return the data of the pictures and plots as JSON.

    Texts are places in a table: op names, module paths and source lines repeat hundreds of times.
    """
    places: dict[str, int] = {}

    def place(*texts: str) -> list[int]:
        return [places.setdefault(text, len(places)) for text in texts]

    located = contents.located
    data = {
        "pictures": {name: _picture(picture, place) for name, picture in pictures_of(contents).items()},
        "growth": [
            [
                *place(point.node, point.op, point.module, point.source),
                number_or_word(point.eager),
                number_or_word(point.compiled),
            ]
            for point in (located.growth if located else ())
        ],
        "guilty": located.op.node if located and located.op else "",
        "errors": [
            {
                "path": error.path,
                "edges": list(map(number_or_word, error.edges)),
                "eager": error.eager,
                "compiled": error.compiled,
                "rows": [list(map(number_or_word, row)) for row in error.rows],
                "dims": error.dims,
            }
            for error in contents.errors
        ],
        "steps": [
            [step.query, round(step.seconds, 3), step.ops, step.inputs, step.elements, step.pass_name]
            for step in contents.steps
        ],
    }
    return as_json({"strings": list(places), **data})


def pictures_of(contents: Contents) -> dict[str, Picture]:
    """Return the pictures that have nodes."""
    pictures = {"minimal": contents.minimal, "original": contents.original}
    return {name: picture for name, picture in pictures.items() if picture is not None and picture.nodes}


def as_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _picture(picture: Picture, place: Callable[..., list[int]]) -> dict[str, Any]:
    groups, group_of = grouped(picture.nodes)
    numbers = {node.name: number for number, node in enumerate(picture.nodes)}
    return {
        "groups": [[*place(group.label), group.parent, group.nodes, int(group.open)] for group in groups],
        "nodes": [
            [
                *place(node.name, node.op, node.kind, node.module, node.source, node.shape),
                int(node.guilty),
                group,
                [numbers[name] for name in dict.fromkeys(node.inputs) if name in numbers],
            ]
            for node, group in zip(picture.nodes, group_of, strict=True)
        ],
    }


def number_or_word(value: float | None) -> float | str | None:
    """Return a number rounded to the three digits of a plot; "inf" and "nan", which JSON does not have."""
    if value is None:
        return None
    if math.isfinite(value):
        return float(f"{value:.3g}")
    return "nan" if math.isnan(value) else "inf"
