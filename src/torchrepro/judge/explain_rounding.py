"""Before the compiled side is blamed: could rounding, or eager's own inconsistency, explain the difference?

Eager runs again, with noise on each op's result (`judge/noise.py`). A leaf that differs is explained if the
compiled result lies within what these runs give, element by element: one that no noise moves must be as close
as ever. Two pairs of runs with strong noise come first; where even that comes nowhere near the
compiled result, rounding is ruled out. Runs of a pair have opposite noise, so that an element within reach of
a kink crosses it in one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.judge.execute import Run
from torchrepro.judge.kinks import SideRecorder
from torchrepro.judge.noise import RoundingNoise
from torchrepro.judge.rule import Rule
from torchrepro.judge.suspects import LeafTensors, Suspect, suspect_of
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Blame, Comparison, Difference, LeafComparison

_STRONG = 256.0
_STRONG_RUNS = ((_STRONG, 1, 1.0), (_STRONG, 1, -1.0), (_STRONG, 2, 1.0), (_STRONG, 2, -1.0))
"""Amplitude, seed and sign of the runs that can rule rounding out."""
_RUNS = tuple(
    (amplitude, seed, sign) for amplitude, seed in ((1, 3), (2, 4), (3, 5), (4, 6)) for sign in (1, -1)
)
"""Those that can explain a difference, weakest first."""
_COMPARABLE = (Difference.VALUE, Difference.NON_FINITE, Difference.SHAPE, Difference.STRUCTURE)

_SECONDS = 60.0
"""No run starts after this time."""

RunEager = Callable[[AbstractContextManager[Any]], Run]
Compare = Callable[[Run, Rule], Comparison]
"""Compares a run, in the role of eager, with the compiled one."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The comparison without what was explained, and a sentence about each explanation."""

    comparison: Comparison
    notes: tuple[str, ...] = ()


def explain_differences(
    comparison: Comparison, eager: Run, rule: Rule, run_eager: RunEager, compare: Compare
) -> Explained:
    """Return the comparison with every leaf counted as the same that rounding or eager itself explains."""
    if not rule.asks_about_rounding or any(
        leaf.difference not in _COMPARABLE for leaf in comparison.differing
    ):
        return Explained(comparison)
    inquiry = _Inquiry(comparison, eager, rule, run_eager, compare)
    try:
        return inquiry.explain()
    except TorchReproError:
        raise
    except Exception as exc:
        note = f"rounding could not be ruled out: eager with noise raises {type(exc).__name__}: {exc}"
        return Explained(comparison, (note.splitlines()[0],))


class _Inquiry:
    """The leaves that differ, and the runs that may explain them."""

    def __init__(
        self, comparison: Comparison, eager: Run, rule: Rule, run_eager: RunEager, compare: Compare
    ) -> None:
        self._comparison = comparison
        self._rule = rule
        self._started = time.monotonic()
        self._run_eager = run_eager
        self._compare = compare
        self._paths = {leaf.path for leaf in comparison.differing}
        tensors, _ = self._seen(eager)
        self._suspects = [suspect_of(leaf, tensors.get(leaf.path), rule) for leaf in comparison.differing]
        self._notes: tuple[str, ...] = ()

    def _seen(self, run: Run) -> tuple[dict[str, LeafTensors], dict[str, LeafComparison]]:
        """Compare a run with the compiled one; return the tensors and the leaves at the suspected paths."""
        tensors: dict[str, LeafTensors] = {}

        def keep(path: str, ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor | None) -> None:
            if path in self._paths:
                tensors[path] = LeafTensors(ref, res, truth)

        found = self._compare(run, replace(self._rule, visit=keep))
        return tensors, {leaf.path: leaf for leaf in found if leaf.path in self._paths}

    def explain(self) -> Explained:
        for number, setting in enumerate(_STRONG_RUNS, 1):
            mode = RoundingNoise(*setting, compare_layouts=number == 1)
            self._add_run(mode, strong=True)
            if mode.inconsistent:
                self._ask_other_layouts(mode.inconsistent)
            if not self._suspects:
                break
            if not any(suspect.is_ruled_out() for suspect in self._suspects):
                return self._ask_rounding()
            if not mode.discontinuous:  # one run tells how far rounding is amplified
                break
            if self._out_of_time():
                self._notes += (f"rounding was asked about for {_SECONDS:g} s only",)
                break
        return Explained(self._comparison, self._notes)

    def _out_of_time(self) -> bool:
        return time.monotonic() - self._started > _SECONDS

    def _add_run(self, mode: RoundingNoise, *, strong: bool = False, weak: bool = False) -> None:
        tensors, leaves = self._seen(self._run_eager(mode))
        for suspect in self._suspects:
            given, leaf = tensors.get(suspect.leaf.path), leaves.get(suspect.leaf.path)
            value, same = None if given is None else given.ref, leaf is not None and leaf.same
            for kind in (True,) * strong + (False,) * weak:
                suspect.add(value, same, strong=kind)

    def _ask_other_layouts(self, inconsistent: Mapping[str, int]) -> None:
        """Blame eager for the leaves in which it gives, in another layout, what the compiled side gives."""
        for layout in (1, 2):
            self._add_run(RoundingNoise(0.0, 0, layout=layout), strong=True, weak=True)
        named = ", ".join(
            f"`{op}` ({count} element{'s' if count > 1 else ''})" for op, count in inconsistent.items()
        )
        explained = [suspect for suspect in self._suspects if suspect.is_explained(0)]
        text = f"eager is inconsistent: its vector and scalar code differ at {named}"
        self._explain(explained, text, Blame.EAGER)

    def _ask_rounding(self) -> Explained:
        number = 0
        for number, setting in enumerate(_RUNS, 1):
            self._add_run(RoundingNoise(*setting), weak=True)
            if self._out_of_time() or all(suspect.is_explained(number) for suspect in self._suspects):
                break
        explained = [suspect for suspect in self._suspects if suspect.is_explained(number)]
        if explained:
            self._explain(explained, f"explained by rounding {self._where(number)}", Blame.NOBODY)
        return Explained(self._comparison, self._notes)

    def _where(self, runs: int) -> str:
        """Return the first op whose result is on another side of a discontinuity in the last runs."""
        plain = SideRecorder()
        self._run_eager(RoundingNoise(0.0, 0, sides=plain))
        for setting in reversed(_RUNS[:runs][-2:]):
            sides = SideRecorder(plain)
            self._run_eager(RoundingNoise(*setting, sides=sides))
            if sides.crossings:
                return f"at {sides.crossings[0]}"
        return "that the computation amplifies (ill-conditioned)"

    def _explain(self, explained: list[Suspect], text: str, blamed: Blame) -> None:
        """Count the leaves of these suspects as the same."""
        if not explained:
            return
        paths = {suspect.leaf.path for suspect in explained}
        leaves = tuple(
            replace(leaf, difference=Difference.NONE, detail=text, blamed=blamed, index=None, mismatched=0)
            if leaf.path in paths and not leaf.same
            else leaf
            for leaf in self._comparison.leaves
        )
        self._comparison = replace(self._comparison, leaves=leaves)
        self._suspects = [suspect for suspect in self._suspects if suspect not in explained]
        self._notes += (text,)
