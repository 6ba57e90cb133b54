"""The watch of one rank among others: one run id for all, and nobody goes on alone after a failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchrepro.catch.settings import LAUNCHED
from torchrepro.ranks.agreement import Failure, Ranks

if TYPE_CHECKING:
    from torchrepro.catch.session import Session
    from torchrepro.nouns.verdict import Verdict


def join_run(session: Session) -> None:
    """Bundles of all ranks go under one run id, with the number of the rank in their names."""
    ranks = _ranks(session)
    if ranks is not None:
        session.run_id, session.label = ranks.run_id(session.run_id), f"rank{ranks.rank}-"


def announce_unfinished(session: Session, bundle: Path) -> None:
    """If this rank dies now, the others name this bundle; a launcher finishes it under another name."""
    ranks = None if LAUNCHED in os.environ else _ranks(session)
    if ranks is not None:
        ranks.announce(str(bundle))


def keep_step(session: Session, event: str) -> None:
    """All is well here: wait for the others. Raises `RankFailed` if one of them has failed or died."""
    ranks = _ranks(session)
    if ranks is not None:
        agreement = ranks.agree(event)
        if agreement.failing:
            raise agreement.error()


def tell_ranks(session: Session, verdict: Verdict, bundle: Path | None, event: str = "") -> None:
    """Tell the others of a failure before it is raised. Without an event, they are not expected to come."""
    ranks = _ranks(session)
    if ranks is None:
        return
    failure = Failure(str(verdict).partition("\n")[0], str(bundle or ""))
    if event:
        ranks.agree(event, failure)
    else:
        ranks.tell(failure)


def _ranks(session: Session) -> Ranks | None:
    return Ranks.current(timeout=session.settings.rank_timeout)
