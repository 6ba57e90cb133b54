"""The boldest guess: sizes, values, dtypes and settings all at their plainest, before any search.

Most failures of one op need neither their sizes nor their values nor any setting. Then one query does the
work of all the passes that follow.
"""

from __future__ import annotations

from torchrepro.edit.dimensions import smallest_that_runs
from torchrepro.edit.held_tensors import held_tensors
from torchrepro.edit.plain_values import plainest
from torchrepro.edit.settings import ambient_settings, compiler_settings, gradient_settings, without
from torchrepro.edit.validity import why_invalid
from torchrepro.minify.passes.shapes import all_contiguous, squeezed
from torchrepro.minify.passes.values import unusual_dtypes, with_form, with_usual_dtypes
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro


def guess_simplest(problem: Problem) -> None:
    """Try everything plain, else with the settings, else one element with its values, else all, else two.

    The first three differ in whether settings, values and dtypes matter. The last is for failures that need
    more than one element and their values: a sum, a normalisation.
    """
    best = problem.best
    table = problem.dimensions()
    one, two = smallest_that_runs(table, 1), smallest_that_runs(table, 2)
    plain, bare = _plain(_bare(problem, one or best)), _with_plain_values(_bare(problem, best))
    as_set = _plain(one or best) if best.ambient.configs else None
    problem.accept_first([plain, as_set, one, bare, two if one is not None else None])


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


def _bare(problem: Problem, repro: Repro) -> Repro:
    """Return the repro without settings, but for autocast and the default dtype, which change the results."""
    settings = [s for s in ambient_settings(repro) if not s.name.startswith(("autocast", "default_dtype"))]
    if repro.place is not Place.BEFORE_CAPTURE and "grad" not in problem.failure.places:
        settings += gradient_settings(repro)
    return without(repro, settings + compiler_settings(repro))
