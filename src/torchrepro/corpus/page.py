"""The findings of a run as one HTML page that needs nothing else; escaped as a report is (`report/page`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchrepro.corpus.code_diff import DIFFERENCES, changes_in, sides_of, two_columns
from torchrepro.corpus.findings import Counted, State, Summary
from torchrepro.corpus.index import Corpus
from torchrepro.corpus.outputs import Findings, section_of, worst_first
from torchrepro.nouns import __version__
from torchrepro.nouns.sections import Facts
from torchrepro.report.page.html import assets, template, valid

_ROWS, _LINES = 2000, 400
_TONES = {
    **dict.fromkeys((State.REGRESSED, State.FAILS_OTHERWISE), "bad"),
    **dict.fromkeys((State.CANNOT_RUN, State.FLAKY), "warn"),
    **dict.fromkeys((State.FIXED, State.PASSES), "good"),
}
"""Classes of the style sheet; states without one are as they were."""


def page_of(
    corpus: Corpus, summary: Summary, buckets: Sequence[Counted], findings: Findings, *, diff_code: bool
) -> str:
    """Return the page: counts, buckets, bundles worst first, and the changes of generated code."""
    section = section_of(summary, [])
    facts = next(part for part in section.parts if isinstance(part, Facts))
    shown = list(itertools.islice(worst_first(findings), _ROWS))
    left_out = summary.total - len(shown)
    differing = changes_in(worst_first(findings))[:DIFFERENCES] if diff_code else []
    names = [f"torch {each.torch}" for each in summary.interpreters]
    page = template("corpus.html").render(
        title=section.title,
        facts=facts,
        summary=summary,
        tones={state: _TONES.get(state, "") for state in State},
        buckets=list(buckets)[:_ROWS],
        findings=shown,
        more=f"and {left_out:,} more, in --json" if left_out > 0 else "",
        differences=[
            (
                *(change.finding.name, change.more, *names),
                list(itertools.islice(two_columns(*sides_of(corpus, change.finding)), _LINES)),
            )
            for change in differing
        ],
        assets=assets(),
        version=__version__,
    )
    return valid(page)
