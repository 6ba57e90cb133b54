"""The report as one HTML page that needs nothing but a browser: no file beside it, no request."""

from __future__ import annotations

from torchrepro.report.contents import Contents
from torchrepro.report.page.html import page_of

__all__ = ["Contents", "page_of"]
