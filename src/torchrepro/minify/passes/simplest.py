"""The boldest guess: sizes, values, dtypes and settings all at their plainest, before any search.

Most failures of one op need neither their sizes nor their values nor any setting. Then one query does the
work of all the passes that follow.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchrepro.edit.dimensions import dimension_table, smallest_that_runs
from torchrepro.edit.held_tensors import held_tensors
from torchrepro.edit.plain_values import plainest
from torchrepro.edit.settings import (
    ambient_settings,
    compiler_settings,
    config_settings,
    gradient_settings,
    without,
)
from torchrepro.edit.validity import why_invalid
from torchrepro.minify.passes.arguments import with_plainest_arguments
from torchrepro.minify.passes.shapes import all_contiguous, squeezed
from torchrepro.minify.passes.together import guess_together
from torchrepro.minify.passes.values import unusual_dtypes, with_form, with_usual_dtypes
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro


def guess_simplest(problem: Problem) -> None:
    """Try everything plain, else with configs, else one element with its values, else all, else two.

    The first ones differ in whether configs, values, dtypes and other settings matter. The last is for
    failures that need more than one element and their values: a sum, a normalisation. If values of one op
    are wrong, many sizes and values take the place of the last four, in one compilation. Otherwise the first
    one has plain arguments too: if only those are needed, the pass that searches them asks the same again.
    """
    table = problem.dimensions()
    one = smallest_that_runs(table, 1)
    plain = _all_plain(problem, one or problem.best)
    bold = None
    if not problem.values_are_wrong and problem.verdict_on(plain[0]) is None and not problem.best_size.code:
        bold = with_plainest_arguments(plain[0])
    if problem.accept_first([bold, *plain]) is not None:
        return
    if problem.best_size.ops == 1 and guess_together(problem, partial(_bare, problem, configs=True)):
        return
    bare = _with_plain_values(_bare(problem, problem.best))
    two = smallest_that_runs(table, 2) if one is not None else None
    problem.accept_first([None if one is None else _bare(problem, one), one, bare, two])


def plainest_of(problem: Problem, candidate: Repro) -> list[Repro]:
    """Return a candidate with everything plain, and with configs: no value of its own is left in it."""
    table = dimension_table(candidate, replace(problem.best_verdict, comparison=None))
    return _all_plain(problem, smallest_that_runs(table, 1) or candidate)


def _all_plain(problem: Problem, repro: Repro) -> list[Repro]:
    kept = [False, True] if repro.ambient.configs else [False]
    return [_plain(_bare(problem, repro, configs=configs)) for configs in kept]


def _plain(repro: Repro) -> Repro:
    """Return the repro with plain values, dtypes and layouts; skip a step that would not run."""
    for step in (_with_plain_values, _with_usual_dtypes, _laid_out_plainly):
        changed = step(repro)
        if not why_invalid(changed):
            repro = changed
    return repro


def _with_plain_values(repro: Repro) -> Repro:
    tensors = [each for each in held_tensors(repro) if each.tensor.numel()]
    return with_form(repro, tensors, plainest, {each: (0,) * each.tensor.dim() for each in tensors})


def _with_usual_dtypes(repro: Repro) -> Repro:
    items = unusual_dtypes(repro)
    return with_usual_dtypes(repro, items) if items else repro


def _laid_out_plainly(repro: Repro) -> Repro:
    strange = [each for each in held_tensors(repro) if not each.tensor.is_contiguous()]
    repro = all_contiguous(repro, strange)
    return squeezed(repro) or repro


def _bare(problem: Problem, repro: Repro, *, configs: bool = False) -> Repro:
    """Return the repro without settings, but for autocast and the default dtype, which change the results."""
    settings = [s for s in ambient_settings(repro) if not s.name.startswith(("autocast", "default_dtype"))]
    if configs:
        needed = {setting.name for setting in config_settings(repro)}
        settings = [setting for setting in settings if setting.name not in needed]
    if repro.place is not Place.BEFORE_CAPTURE and "grad" not in problem.failure.places:
        settings += gradient_settings(repro)
    return without(repro, settings + compiler_settings(repro))
