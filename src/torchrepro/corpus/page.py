"""The findings of a run as one HTML page that needs nothing else; escaped as a report is (`report/page`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchrepro.corpus.code_diff import changed, sides_of, two_columns
from torchrepro.corpus.findings import Counted, State, Summary
from torchrepro.corpus.index import Corpus
from torchrepro.corpus.outputs import Findings, section_of
from torchrepro.nouns import __version__
from torchrepro.nouns.sections import Facts
from torchrepro.report.page.html import assets, template, valid

_ROWS, _DIFFERENCES, _LINES = 2000, 20, 400


def page_of(
    corpus: Corpus, summary: Summary, buckets: Sequence[Counted], findings: Findings, *, diff_code: bool
) -> str:
    """Return the page: counts, buckets, bundles worst first, and the changes of generated code."""
    section = section_of(summary, [])
    facts = next(part for part in section.parts if isinstance(part, Facts))
    # State by state: the worst come first without all of them in memory.
    worst_first = (each for state in State for each in findings() if each.state is state)
    shown = list(itertools.islice(worst_first, _ROWS))
    left_out = summary.total - len(shown)
    differing = itertools.islice(filter(changed, findings()), _DIFFERENCES) if diff_code else ()
    names = [f"torch {each.torch}" for each in summary.interpreters]
    page = template("corpus.html").render(
        title=section.title,
        facts=facts,
        summary=summary,
        buckets=list(buckets)[:_ROWS],
        findings=shown,
        more=f"and {left_out:,} more, in --json" if left_out > 0 else "",
        differences=[
            (each.name, *names, list(itertools.islice(two_columns(*sides_of(corpus, each)), _LINES)))
            for each in differing
        ],
        assets=assets(),
        version=__version__,
    )
    return valid(page)
