"""Shrink sizes: all dimensions to 1 at once, else each to the smallest with which it still fails.

Tensors are sliced around the element that fails, so that its values stay. A size may matter in itself: a
kernel that is wrong just above the vector width needs any 17 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from weakref import WeakKeyDictionary

import torch

from torchrepro.edit.arguments import Literal, dimensions_named, with_literals
from torchrepro.edit.dimensions import DimensionTable, dimension_table, smallest_that_runs, windows
from torchrepro.edit.held_tensors import Held, contiguous, held_tensors, made_like, with_tensors
from torchrepro.edit.symbolic_sizes import Axis, Dimension
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.subsets import smallest_failing
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind
from torchrepro.state.fake_run import OperatorLog, run_on_fakes
from torchrepro.torch_api.ops import op_name

_Members = tuple[Axis | Literal, ...]
"""Identifies a dimension: its name may differ in the next best."""
_searched: WeakKeyDictionary[Problem, list[torch.Size]] = WeakKeyDictionary()
"""The sizes with which a problem's last search for sizes finished."""
_TAKES_ANY_RANK = frozenset(
    {
        *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all", "var"),
        *("std", "var_mean", "std_mean", "aminmax", "median", "logsumexp", "linalg_vector_norm", "nansum"),
        *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_softmax", "_log_softmax"),
        *("sort", "topk", "kthvalue", "flip", "roll", "_fft_r2c", "_fft_c2c", "_fft_c2r"),
        *("gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce"),
        *("scatter_reduce_", "index", "index_put", "index_put_", "masked_fill", "masked_fill_"),
        *("cat", "clone", "_to_copy", "copy", "copy_", "native_layer_norm"),
    }
)
"""In addition to pointwise ops, and to views, whose fake kernels are exact. Others require a rank, though
their fake kernels may not check it."""
_CLOSE = 9
"""Up to this size, likely sizes are at most two apart."""
_MANY = 32
"""At most so many axes get a separate size: each takes a run on fakes."""


def shrink_dimensions(problem: Problem) -> None:
    """Shrink to the smallest sizes that still fail: with one less in any dimension it does not."""
    if _searched.get(problem) == _sizes(problem.best):
        # Only values or ops have changed since: check only that one less does not fail.
        _steps(problem, [each.members for each in problem.dimensions().free])
    elif not problem.accept(_all_at_once(problem)):
        _each(problem)
    _stretch_single_elements(problem)
    strange = [each for each in held_tensors(problem.best) if not each.tensor.is_contiguous()]
    problem.leave_out(strange, all_contiguous)
    problem.accept(squeezed(problem.best))
    _searched[problem] = _sizes(problem.best)


def sizes_are_searched(problem: Problem) -> None:
    """Note that the sizes of the best are the smallest likely ones, where one less is a likely size too."""
    free = [each.size for each in problem.dimensions().free if each.size > 1]
    if free and all(size <= _CLOSE or size - 1 in likely_sizes(size) for size in free):
        _searched[problem] = _sizes(problem.best)


def _sizes(repro: Repro) -> list[torch.Size]:
    return [each.tensor.shape for each in held_tensors(repro)]


def _all_at_once(problem: Problem) -> Repro | None:
    """Return the best with all sizes at 1; None if that, squeezed, has been queried already."""
    candidate = smallest_that_runs(problem.dimensions(), 1)
    flat = None if candidate is None else squeezed(candidate)
    return None if flat is not None and problem.verdict_on(flat) is not None else candidate


def _each(problem: Problem) -> None:
    """Shrink one dimension after the other, small ones first: the one that matters is often the largest.

    Then try one less in each, with the others at their new sizes.
    """
    finished: list[_Members] = []
    while True:
        table = problem.dimensions()
        done = {member for members in finished for member in members}
        left = [each for each in table.free if each.size > 1 and done.isdisjoint(each.members)]
        if not left:
            break
        dimension = min(left, key=lambda each: each.size)
        finished.append(dimension.members)
        _shrink(problem, table, dimension)
        all_at_one = not any(_still_there(problem.dimensions(), each) for each in finished)
        # Squeeze now, so that further queries have the final rank.
        if all_at_one and problem.accept(squeezed(problem.best)):
            finished = []
    _steps(problem, finished)


def _steps(problem: Problem, dimensions: Sequence[_Members]) -> None:
    """Reduce each dimension by one, repeatedly, until no reduction still fails."""
    before = None
    while problem.best is not before:
        before = problem.best
        for members in dimensions:
            table = problem.dimensions()
            for each in _still_there(table, members):
                # Drop the last element along it; or the first, where the position of the failure is unknown.
                starts = [{}] if each.at_is_known else [{each.name: start} for start in (0, 1)]
                less = {each.name: each.size - 1}
                problem.accept_first([table.resized(less, start) for start in starts])


def _still_there(table: DimensionTable, members: _Members) -> list[Dimension]:
    """Return the dimension that had these members, in a list, if its size is still above 1."""
    return [each for each in table.free if each.size > 1 and not set(each.members).isdisjoint(members)][:1]


def _shrink(problem: Problem, table: DimensionTable, dimension: Dimension) -> None:
    """Find the smallest size that fails, around the failing element; if that is a guess, from both ends."""
    name, size = dimension.name, dimension.size

    def around(wanted: int) -> Repro | None:
        return table.resized({name: wanted})

    def from_front(wanted: int) -> Repro | None:
        return table.resized({name: wanted}, {name: 0})

    one, less = around(1), from_front(size - 1)
    if problem.accept(one) or (less is not None and problem.verdict_on(less) is not None):
        return  # or a former search has found that it is minimal
    if not table.is_guess and _is_refused(problem, one) and _with_equals(problem, dimension):
        return
    _search(problem, around if dimension.at_is_known else from_front, size)
    table = table if table.repro is problem.best else problem.dimensions()
    for now in _still_there(table, dimension.members) if not dimension.at_is_known else ():

        def from_end(wanted: int, now: Dimension = now) -> Repro | None:
            return table.resized({now.name: wanted}, {now.name: now.size - wanted})

        if problem.accept(from_end(now.size - 1)) and not problem.accept(from_end(1)):
            _search(problem, from_end, now.size - 1)


def _is_refused(problem: Problem, candidate: Repro | None) -> bool:
    """Return whether it would not run, on fakes or in eager: then the table misses sizes that are tied."""
    verdict = None if candidate is None else problem.verdict_on(candidate)
    return candidate is None or (verdict is not None and verdict.kind is Kind.INVALID)


def _with_equals(problem: Problem, dimension: Dimension) -> bool:
    """Shrink all equal sizes together; return whether the best changed."""
    before = problem.best
    table = dimension_table(problem.best, problem.best_verdict, guess=True)
    for coarser in _still_there(table, dimension.members):
        _shrink(problem, table, coarser)
    return problem.best is not before


def _search(problem: Problem, resized: Callable[[int], Repro | None], high: int) -> None:
    """Find the smallest size that fails, between 1, which does not, and `high`, which does."""
    low, high = _bracket(problem, resized, high)
    smallest_failing(
        high,
        lambda sizes: problem.accept_first([resized(size) for size in sizes]),
        lambda low, high: _spread(_likely(low, high), problem.workers),
        low=low,
    )


def _bracket(problem: Problem, resized: Callable[[int], Repro | None], high: int) -> tuple[int, int]:
    """Query all likely sizes in one compilation; return the largest below the first that fails, and that one.

    Where the failure does not show in such company, the bracket stays as wide as it was.
    """
    sizes = likely_sizes(high)
    built = [(size, candidate) for size in sizes if (candidate := resized(size)) is not None]
    usual = [(size, candidate) for size, candidate in built if not why_invalid(candidate)]
    fails = problem.fail_together([candidate for _, candidate in usual])
    for number, (size, candidate) in enumerate(usual if fails else ()):
        if fails and fails[number]:
            below = usual[number - 1][0] if number else 1
            return (below, size) if problem.accept(candidate) else (1, high)
    return 1, high


def likely_sizes(high: int) -> list[int]:
    """Return the sizes next to powers of two between 1 and another size."""
    powers = [1 << bit for bit in range(1, high.bit_length())]
    return sorted({size for power in powers for size in (power - 1, power, power + 1) if 1 < size < high})


def _likely(low: int, high: int) -> list[int]:
    """Return the sizes between two that most likely make a difference; else all.

    First those just above a power of two; then `high - 1`, next to one; then all.
    """
    powers = [1 << bit for bit in range(high.bit_length())]
    above = [power + 1 for power in powers if low < power + 1 < high]
    return above or ([high - 1] if high in powers or high - 1 in powers else list(range(low + 1, high)))


def _spread(sizes: Sequence[int], width: int) -> list[int]:
    """Return `width` sizes at even distances; the first of two."""
    places = {len(sizes) * (part + 1) // (width + 1) for part in range(width)}
    return [sizes[0]] if len(sizes) == 2 and width == 1 else sorted({sizes[place] for place in places})


def _stretch_single_elements(problem: Problem) -> None:
    """Keep a size only in the tensors that need it, where the graph runs with 1 for the others."""
    table = problem.dimensions()
    if table.repro.place is Place.BEFORE_CAPTURE or table.repro.symbols or table.repro.earlier:
        return
    axes = [axis for each in table.free if each.size > 1 and len(each.axes) > 1 for axis in each.axes]
    possible = [axis for axis in axes[:_MANY] if _at_one(table, {axis}) is not None]
    problem.leave_out(possible, lambda best, gone: _at_one(table, gone))


def _at_one(table: DimensionTable, axes: Collection[Axis]) -> Repro | None:
    """Return the repro with a single element along these axes; None if it would not run."""
    ranges = {axis: (each.at, 1) for each in table.dimensions for axis in each.axes if axis in axes}
    return _if_it_runs(with_tensors(table.repro, windows(table.held, ranges)))


def all_contiguous(repro: Repro, chosen: Iterable[Held]) -> Repro:
    """Return the repro with these tensors contiguous."""
    return with_tensors(repro, {each: contiguous(each.tensor) for each in chosen})


def squeezed(repro: Repro) -> Repro | None:
    """Return the repro without dimensions of size 1; None if nothing changes or it would not run.

    Where a single dimension is left, an argument that names another one names it then.
    """
    if repro.symbols or repro.earlier or repro.place is Place.BEFORE_CAPTURE:
        return None
    others = {}
    for each in held_tensors(repro):
        if each.tensor.dim() > 1 and 1 in each.tensor.shape:
            old = each.tensor.detach()
            flat = old.squeeze() if old.numel() != 1 else old.reshape(1)
            others[each] = made_like(flat.clone(), each.tensor)
    if not others or not _takes_any_rank(repro):
        return None
    flat_one = with_tensors(repro, others)
    found = _if_it_runs(flat_one)
    if found is None and all(each.tensor.dim() < 2 for each in held_tensors(flat_one)):
        found = _if_it_runs(with_literals(flat_one, dict.fromkeys(dimensions_named(repro), 0)))
    return found


def _if_it_runs(repro: Repro) -> Repro | None:
    """Return the repro without notes about former sizes; None if it would not run."""
    candidate = with_literals(repro, {})
    return None if why_invalid(candidate) else candidate


def _takes_any_rank(repro: Repro) -> bool:
    log = OperatorLog()
    run_on_fakes(repro, log=log)
    any_rank = (
        torch.Tag.pointwise in op.tags or op.is_view or op_name(op) in _TAKES_ANY_RANK for op in log.ops
    )
    return bool(log.ops) and all(any_rank)
