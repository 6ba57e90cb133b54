"""Sizes and values of one op with wrong results: all likely ones in one compilation.

Each candidate is a graph of its own in the joined one (`cut/batches.py`). What fails there is asked alone
before it is adopted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch

from torchrepro.edit.held_tensors import Held, held_tensors, with_tensors
from torchrepro.edit.plain_values import CONSTANTS, Form, counting, throughout
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.minify.order import Size, size_of
from torchrepro.minify.passes.shapes import likely_sizes, sizes_are_searched
from torchrepro.minify.passes.values import places_of, with_form
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro

_MANY = (96, 96, 160)
"""At most so many graphs in one, the smallest ones, by the number of dimensions above size 1.

In a graph with others an `amin` takes a thirtieth of the time that it takes by itself. Two dimensions by
themselves take about 15 queries; three have too many combinations.
"""


def guess_together(problem: Problem, bare: Callable[[Repro], Repro]) -> bool:
    """Adopt the smallest sizes with the plainest values; return whether candidates could be told apart."""
    dimensions = sum(each.size > 1 for each in problem.dimensions().free)
    if dimensions >= len(_MANY):
        return False
    candidates = _candidates(problem, bare, _MANY[dimensions])
    fails = problem.fail_together(candidates)
    if fails is None:
        return False
    failing = [candidate for candidate, failed in zip(candidates, fails, strict=True) if failed]
    if problem.accept_first(_likeliest(failing)) is not None:
        sizes_are_searched(problem)
    return True


def _likeliest(failing: Sequence[Repro]) -> Sequence[Repro]:
    """Return the two of those that fail together that are asked alone: the smallest, and another one.

    Plain values may fail only next to others. The other one has the most values of its own in that size.
    """
    smallest = failing[:1]
    alike = [each for each in failing[1:] if _shapes(each) == _shapes(failing[0])]
    return [*smallest, *(alike[-1:] or failing[1:2])]


def _shapes(repro: Repro) -> list[torch.Size]:
    return [each.tensor.shape for each in held_tensors(repro)]


def _candidates(problem: Problem, bare: Callable[[Repro], Repro], limit: int) -> list[Repro]:
    """Return the smallest candidates that run, the smallest first."""
    found: dict[str, tuple[Size, Repro]] = {}
    for candidate in map(bare, _each(problem)):
        size = size_of(candidate)
        if size < problem.best_size and canonical_key(candidate) not in found and not why_invalid(candidate):
            found[canonical_key(candidate)] = size, candidate
            if len(found) == limit:
                break
    return [candidate for _, candidate in sorted(found.values(), key=lambda pair: pair[0])]


def _each(problem: Problem) -> Iterator[Repro]:
    """Yield the best in likely sizes, small ones first, each with its own values and with plain ones."""
    places = places_of(problem)
    tensors = [each for each in held_tensors(problem.best) if each.tensor.numel()]
    forms = [_filling({each: form(each.tensor, places[each]) for each in tensors}) for form in CONSTANTS]
    for sized in _in_likely_sizes(problem):
        yield sized
        now = [each for each in held_tensors(sized) if each.tensor.numel()]
        start = {each: (0,) * each.tensor.dim() for each in now}
        yield with_form(sized, now, counting, start)
        for form in forms:
            yield with_tensors(sized, {each: form(each)(each.tensor, start[each]) for each in now})


def _in_likely_sizes(problem: Problem) -> Iterator[Repro]:
    """Yield the best with all combinations of likely sizes, by the number of elements along them."""
    table = problem.dimensions()
    free = [each for each in table.free if each.size > 1]
    likely = [(1, *likely_sizes(each.size), each.size) for each in free]
    for sizes in sorted(product(*likely), key=math.prod):
        sized = table.resized({each.name: size for each, size in zip(free, sizes, strict=True)})
        if sized is not None:
            yield sized


def _filling(formed: dict[Held, torch.Tensor]) -> Callable[[Held], Form]:
    """Return the form that fills a tensor of another size with the one number that it has in `formed`."""
    numbers = {each: tensor.detach().reshape(-1)[0].item() for each, tensor in formed.items()}
    return lambda each: throughout(lambda tensor, place: numbers[each])
