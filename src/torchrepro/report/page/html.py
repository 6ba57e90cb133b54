"""From contents to HTML: the template filled in, with a script, a style and the policy that allows only them.

Everything in a bundle is written by strangers. Jinja escapes what goes into the template. What the script
draws is JSON, and reaches the page only as text: a policy of trusted types makes the browser refuse anything
else. The content security policy knows the script and the style by their hashes and allows nothing more.

Source text in colours, by Pygments: escaped, and exactly the text that was given.
"""

from __future__ import annotations

from functools import cache

import jinja2
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer

from torchrepro.nouns.sentences import WAYS
from torchrepro.report.contents import Contents
from torchrepro.report.page import words
from torchrepro.report.page.assets import assets
from torchrepro.report.page.payload import payload_of, pictures_of
from torchrepro.report.page.words import environment_rows, setting_rows, worst_growth

_LEXERS = {
    "python": PythonLexer(stripnl=False, ensurenl=False),
    "triton": PythonLexer(stripnl=False, ensurenl=False),
    "cpp": CppLexer(stripnl=False, ensurenl=False),
}
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True)
_LIMIT = 60_000
"""Characters: 0.1 s. Beyond it colours help nobody, and each word costs an element."""


def highlighted(source: str, language: str) -> Markup:
    """Source with a `span` for each word that has a colour; as it is where the language has no lexer."""
    lexer = _LEXERS.get(language)
    if lexer is None or len(source) > _LIMIT:
        return escape(source)
    return Markup(highlight(source, lexer, _FORMATTER))


def page_of(contents: Contents) -> str:
    """The whole page, ready to be written as UTF-8."""
    page = _template().render(
        report=contents,
        assets=assets(),
        pictures=pictures_of(contents),
        payload=Markup(payload_of(contents)),
        environment=environment_rows(contents.environment),
        settings=setting_rows(contents.settings),
        worst_growth=worst_growth(contents.located.growth if contents.located else ()),
    )
    # A file name that is no UTF-8 is a lone surrogate in a text; a NUL is an error in any HTML.
    return page.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "highlighted": highlighted,
        "error": words.error,
        "begun": words.begun,
        "count": words.count,
        "duration": words.duration,
        "shortened": words.shortened,
    }
    environment.globals |= {
        "kind_words": words.KINDS,
        "stage_words": words.STAGES,
        "confidence_words": words.CONFIDENCES,
        "way_words": WAYS,
        "times_worse": words.times_worse,
    }
    return environment.get_template("page.html")
