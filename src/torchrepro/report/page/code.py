"""Source text in colours, by Pygments: escaped, and exactly the text that was given."""

from __future__ import annotations

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer

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
