"""The report as one HTML page that is self-contained: no other file, no request."""

from __future__ import annotations

from torchrepro.report.contents import Contents
from torchrepro.report.page.html import page_of

__all__ = ["Contents", "page_of"]
