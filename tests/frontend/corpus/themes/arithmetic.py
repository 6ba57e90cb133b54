"""Operators on tensors and numbers, in place and not."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


def integers(size):
    return torch.randint(1, 9, (size, 4)), torch.randint(1, 9, (size, 4))


def booleans(size):
    return torch.rand(size, 4) > 0.5, torch.rand(size, 4) > 0.5


def squares(size):
    return torch.randn(size, size), torch.randn(size, size)


@case
def add_and_subtract(a, b):
    return a + b - 2


@case
def multiply_by_numbers_on_either_side(a, b):
    return 2 * a, a * 2.5, 3 - b, 1 / (b.abs() + 1)


@case
def divisions(a, b):
    return a / (b.abs() + 1), a // (b.abs() + 1), a % (b.abs() + 1)


@case
def powers(a, b):
    return a**2, 2**a, a.abs() ** b


@case
def unary_operators(a, b):
    return -a, +b, abs(a), ~(a > b)


@case(make=squares)
def matrix_multiply(a, b):
    return a @ b


@case
def in_place_operators_on_a_new_tensor(a, b):
    c = a + 1
    c += b
    c -= 0.5
    c *= 2
    c /= 3
    return c


@case
def in_place_operator_on_an_argument(a, b):
    a += b
    return a


@case
def in_place_methods_on_an_argument(a, b):
    a.add_(1).mul_(b)
    return a.sum()


@case
def in_place_on_an_argument_that_is_not_returned(a, b):
    a.zero_()
    return b + 1


@case
def in_place_on_a_view_of_an_argument(a, b):
    row = a[0]
    row.add_(1)
    return a + b


@case
def assignment_to_an_index(a, b):
    a[0] = 1.0
    a[:, 1] = b[:, 0]
    return a


@case
def assignment_by_a_mask(a, b):
    a[a > 0] = 0
    a[b < 0] = -1
    return a


@case
def augmented_assignment_to_an_index(a, b):
    a[1] += b[0]
    a[:, 2] *= 2
    return a


@case
def assignment_of_a_slice_with_a_step(a, b):
    a[::2, 1:3] = b[::2, :2]
    return a


@case
def comparisons(a, b):
    return a < b, a <= b, a == b, a != b, a > b, a >= b


@case
def comparisons_with_numbers(a, b):
    return (a > 0) & (b < 1), 0 < a, (0 == b)


@case(make=integers)
def bit_operators(a, b):
    return a & b, a | b, a ^ b, ~a, a << 2, b >> 1


@case(make=booleans)
def logical_operators(a, b):
    return a & b, a | b, a ^ b, ~a


@case(make=integers)
def integer_division_and_promotion(a, b):
    return a / b, a // b, a % b, a * 1.5, -a


@case(make=integers)
def in_place_bit_operators(a, b):
    a &= 6
    a |= b
    a ^= 1
    a <<= 1
    a >>= 2
    return a


@case
def arithmetic_of_python_numbers(a, b):
    n = 7
    x = n // 2 + n % 3 - n**2 / 4
    x += (n << 1) & 0b1011 | 1 ^ 3
    return a * x + b * divmod(n, 3)[1]


@case
def chain_of_assignments(a, b):
    x = y = a + b
    y = y + 1
    return x, y


@case
def assignment_of_several_names_swaps(a, b):
    a, b = b, a
    return a - b


@case
def same_argument_in_two_places(a, b):
    return a + a, a, b, a


@case
def nothing_is_returned(a, b):
    a + b


@case
def an_argument_is_returned(a, b):
    return a


@case
def an_argument_is_returned_after_a_change(a, b):
    b.copy_(a)
    return b


@case
def views_of_an_argument(a, b):
    return a.view(-1), a.t(), a[0], b[:, :2]


@case
def constants_are_returned(a, b):
    return a + b, 1, "two", 3.0, None, True, (4, 5)


@case
def complex_tensors(a, b):
    c = torch.complex(a, b)
    return c * (1 + 2j), c.real, c.imag, c.abs(), c.conj()


@case
def number_minus_in_place(a, b):
    x = 1
    x -= 3
    x *= 2
    return a.mul(x) + b


@case(make=lambda size: (torch.randn(size, 4), 3, 2.5, True))
def python_numbers_as_arguments(a, n, x, flag):
    return a * n + x if flag else a


@case(make=lambda size: (torch.randn(size, 4), torch.tensor(2.0)))
def scalar_tensors(a, b):
    return a * b, b * 2, b


@case(make=lambda size: (torch.randn(size, 4), torch.arange(4), torch.randn(size, 4, dtype=torch.float64)))
def promotion_of_dtypes(a, b, c):
    return a + b, a + c, b * 1.5, b / 2


@case
def out_arguments(a, b):
    out = torch.empty_like(a)
    torch.add(a, b, out=out)
    torch.mul(a, b, out=b)
    return out


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)))
def gradients_are_tracked(a, b):
    return (a * b).sum(), a.detach() + 1, b


@case
def matmul_in_place_operator(a, b):
    x = a
    x @= b.t()
    return x
