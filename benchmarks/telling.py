"""What a benchmark says: a line as it goes along, and its table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def tell(line: str) -> None:
    """On standard error: standard output is for the table."""
    print(line, file=sys.stderr, flush=True)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], summary: str) -> None:
    """For a person; the marks of Markdown are left out."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(cell.replace("**", "") for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(table)
    console.print(summary)
