"""Python's numbers, `math`, `range` and `slice`."""

from __future__ import annotations

import math
import sys

import torch

from tests.frontend.corpus.registry import case


@case
def math_functions(a, b):
    return (
        a * math.sqrt(2) + math.pi,
        math.floor(2.7),
        math.ceil(2.1),
        math.log(8, 2),
        math.exp(1),
        math.prod([2, 3]),
    )


@case
def more_math(a, b):
    return (
        math.gcd(12, 18),
        math.isclose(0.1 + 0.2, 0.3),
        math.inf,
        math.isnan(math.nan),
        math.factorial(4),
        math.comb(5, 2),
        math.log2(8),
        math.hypot(3, 4),
        math.trunc(-2.5),
        math.copysign(1, -0.0),
        a,
    )


@case
def rounding_and_absolute(a, b):
    return (
        round(2.567, 2),
        round(2.5),
        abs(-3),
        divmod(17, 5),
        pow(2, 5),
        pow(2, 5, 7),
        -7 // 2,
        -7 % 3,
        7.5 // 2,
        a,
    )


@case
def conversions(a, b):
    return (
        int(3.9),
        float(2),
        complex(1, 2),
        bool(0),
        int(True),
        int("0x1f", 0),
        int(-0.5),
        float("inf") > 1e308,
        a,
    )


@case
def integer_methods(a, b):
    return (
        (10).bit_length(),
        (5).bit_count(),
        (255).to_bytes(2, "big"),
        int.from_bytes(b"\x01\x00", "big"),
        (3).numerator,
        a,
    )


@case
def float_methods(a, b):
    return (
        (2.0).is_integer(),
        (0.5).as_integer_ratio(),
        (1.5).hex(),
        float.fromhex("0x1.8p+0"),
        (2.5).__class__.__name__,
        a,
    )


@case
def complex_numbers(a, b):
    z = 3 + 4j
    return abs(z), z.real, z.imag, z.conjugate(), z * 1j, z == complex(3, 4), z**2, a


@case
def bit_operations(a, b):
    flags = 0b1010
    return flags & 2, flags | 1, flags ^ 0xF, ~flags, flags << 2, flags >> 1, bool(flags & 8), a * (flags & 3)


@case
def comparisons_and_chains(a, b):
    n = a.shape[1]
    return 1 < n <= 4, 0 <= n < 2, 1 == 1.0, n == 4 != 5, not n > 9, a


@case
def big_integers(a, b):
    return 2**100, -(10**20) // 7, hash(2**61 - 1), sys.maxsize + 1, a


@case
def limits(a, b):
    return a.double().clamp(max=sys.float_info.max), float("-inf"), sys.maxsize, math.tau, math.e, b


@case
def ranges(a, b):
    r = range(2, 10, 3)
    return list(r), len(r), r[1], r[-1], 5 in r, 6 in r, r.index(8), r.count(2), r.start, r.stop, r.step, a


@case
def ranges_sliced_and_compared(a, b):
    r = range(10)
    return (
        r[2:5],
        r[::-1],
        range(0) == range(2, 2),
        range(3) == range(0, 3, 1),
        list(reversed(r[:3])),
        bool(range(0)),
        r,
        a,
    )


@case
def loops_over_ranges(a, b):
    for i in range(3):
        for j in range(i, 0, -1):
            a = a + b * (i - j)
    return a, i, j


@case
def slice_objects(a, b):
    s = slice(1, 3)
    return (
        a[s],
        [0, 1, 2, 3][s],
        s.start,
        s.stop,
        s.step,
        s.indices(10),
        a[(slice(None), s)],
        a[..., slice(0, 2)],
        s,
    )


@case
def true_and_false_are_numbers(a, b):
    return True + True, sum([True, False, True]), a * True, isinstance(True, int), True == 1


@case
def float_special_values(a, b):
    nan, inf = float("nan"), float("inf")
    return nan == nan, inf - 1 == inf, a.masked_fill(a > 0, -inf), math.isinf(inf), max(1.0, inf)


@case
def numbers_of_the_size_of_a_tensor(a, b):
    scale = a.shape[-1] ** -0.5
    heads = a.shape[-1] // 2
    return a * scale, a.view(-1, heads, 2), math.ceil(a.shape[0] / 2), b


@case
def power_of_two_rounding(a, b):
    n = a.shape[0]
    padded = 1 << (n - 1).bit_length()
    return torch.nn.functional.pad(a, (0, 0, 0, padded - n)), padded


@case(make=lambda size: (torch.randn(size, 4), 0.25, 7))
def float_and_int_arguments(a, x, n):
    return a * x, a + n // 2, x * n, n % 4


@case(make=lambda size: (torch.randn(size, 4), range(3), slice(0, 2)))
def range_and_slice_arguments(a, r, s):
    for i in r:
        a = a + i
    return a[s], r, s, len(r)
