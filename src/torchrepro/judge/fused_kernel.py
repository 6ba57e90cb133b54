"""The Triton kernel of `glance.py`. Triton reads its source from this file, which only imports with it."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def measure_errors(ref, res, truth, table, factor, count, STRETCH: tl.constexpr, TILE: tl.constexpr):
    """Write a row of `glance.errors_of` for the stretch of elements that belongs to this program."""
    program = tl.program_id(0).to(tl.int64)
    relative = tl.load(factor)
    lanes = tl.arange(0, TILE)
    truth2 = tl.zeros([TILE], dtype=tl.float64)
    eager2 = tl.zeros([TILE], dtype=tl.float64)
    compiled2 = tl.zeros([TILE], dtype=tl.float64)
    excess_eager = tl.zeros([TILE], dtype=tl.float64)
    excess_compiled = tl.zeros([TILE], dtype=tl.float64)
    max_abs = tl.zeros([TILE], dtype=tl.float64)
    for step in range(0, STRETCH, TILE):
        place = program * STRETCH + step + lanes
        inside = place < count
        old = tl.load(ref + place, mask=inside, other=0.0).to(tl.float64)
        new = tl.load(res + place, mask=inside, other=0.0).to(tl.float64)
        exact = tl.load(truth + place, mask=inside, other=0.0).to(tl.float64)
        eager = old - exact
        compiled = new - exact
        allowed = tl.abs(exact) * relative
        truth2 += exact * exact
        eager2 += eager * eager
        compiled2 += compiled * compiled
        excess_eager = tl.maximum(excess_eager, tl.abs(eager) - allowed)
        excess_compiled = tl.maximum(excess_compiled, tl.abs(compiled) - allowed)
        max_abs = tl.maximum(max_abs, tl.abs(new - old))
    row = table + program * 6
    tl.store(row, tl.sum(truth2, axis=0))
    tl.store(row + 1, tl.sum(eager2, axis=0))
    tl.store(row + 2, tl.sum(compiled2, axis=0))
    tl.store(row + 3, tl.max(excess_eager, axis=0))
    tl.store(row + 4, tl.max(excess_compiled, axis=0))
    tl.store(row + 5, tl.max(max_abs, axis=0))
