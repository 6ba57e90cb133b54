"""Ranks of one job trace in lock step: what each is about to compile is agreed before anyone compiles.

`proposal.py` says what is exchanged, `collective.py` how ranks agree on it, `rounds.py` how they hear of one
another.

It is asked for (`trace(..., ranks="agree")`) and never assumed: a rank may well call a captured function
alone (rank 0 evaluates), and every entry into captured code costs a round through the job's store, beside the
wait for the slowest rank.
"""

from __future__ import annotations

from torchrepro.ranks.rounds import RanksMissing
from torchrepro.second_opinion.ranks.collective import (
    run_compiler_collective,
    should_recompile,
    tell_failure,
)
from torchrepro.second_opinion.ranks.proposal import Agreement, BreakPoint, Proposal, RanksDisagree

__all__ = [
    "Agreement",
    "BreakPoint",
    "Proposal",
    "RanksDisagree",
    "RanksMissing",
    "run_compiler_collective",
    "should_recompile",
    "tell_failure",
]
