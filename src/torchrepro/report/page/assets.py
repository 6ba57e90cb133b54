"""The scripts and the style of the page, and the policy that names them by their hashes."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markupsafe import Markup

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
    """What is put into every page."""

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
