"""Arrays of NumPy: made of tensors, given as arguments, computed with, written to, and made into tensors."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from tests.frontend.corpus.registry import case

SCALE = np.float32(0.5)
TABLE = np.arange(8, dtype=np.float64)
LAST = {}


def numbers(size):
    """Small integers: sums of them are exact in any order."""
    return torch.randint(-8, 8, (size, 4)).float(), torch.randint(1, 8, (size, 4)).float()


def arrays(size):
    return tuple(x.numpy() for x in numbers(size))


def integers(size):
    return np.arange(4 * size).reshape(size, 4) - 5, np.arange(size) % 2


@case(make=numbers)
def there_and_back(a, b):
    return torch.from_numpy(np.maximum(a.numpy(), b.numpy()) + 1) * 2


@case(make=numbers)
def operators_of_arrays(a, b):
    x, y = a.numpy(), b.numpy()
    return x + y, 2 - x, x * 0.5, x / y, -x, abs(x), x @ y.T, x**2, x // 2, 3.0 + (x > y)


@case(make=numbers)
def comparisons_of_arrays(a, b):
    x, y = a.numpy(), b.numpy()
    return x < y, x == 1, x != y, ~(x >= 0), (x > 0) & (y > 2), (x > 0) | (y > 2), (x > 0) ^ (y > 2)


@case(make=numbers)
def reductions_are_numbers(a, b):
    x = a.numpy()
    rows = np.min(x, axis=-1, keepdims=True)
    return x.sum(), np.sum(x, axis=0), x.mean(axis=1), x.max(), rows, (x > 0).any()


@case(make=numbers)
def numbers_compute_like_arrays(a, b):
    total = a.numpy().sum()
    before = total
    total += 1
    return before, total, total * 2, total + a.numpy(), total > 0, np.asarray(total), total.dtype, total.shape


@case(make=numbers)
def shapes_and_dtypes(a, b):
    x = a.numpy()
    return x.shape, x.dtype, x.ndim, x.size, x.itemsize, x.nbytes, x.T.shape, x.T.strides, len(x)


@case(make=numbers)
def types_of_arrays(a, b):
    x = a.numpy()
    first = x[0, 0]
    known = isinstance(x, np.ndarray), type(x) is np.ndarray, isinstance(first, np.floating), type(first)
    return known, hasattr(x, "nothing"), isinstance(x, torch.Tensor), x.__class__, callable(x), x.sum() * 0


@case(make=numbers)
def views_share_memory(a, b):
    x = a.numpy()
    return x, x[1:], x.T, x.reshape(-1), x[:, None], x[..., 0], np.squeeze(x[:1]), x.ravel()


@case(make=numbers)
def copies_share_none(a, b):
    x = a.numpy()
    return x.copy(), x.flatten(), x.astype(np.float32), np.array(x), x.T.copy(), x.T.astype(np.int64), x.T + 1


@case(make=numbers)
def a_tensor_is_written_under_an_array(a, b):
    x = a.numpy()
    number, view, copy = x[0, 0], x[0], x.copy()
    a.add_(1)
    return number, view, copy, x, np.asarray(number)


@case(make=arrays)
def arguments_and_results(a, b):
    return a, a + b, [b], {"a": a[0]}


@case(make=arrays)
def an_argument_is_written(a, b):
    a += b
    a[0] = 7
    a[1:] *= 2
    b[:, 1] = a[:, 0]
    return a, a.sum()


@case(make=arrays)
def a_copy_is_written(a, b):
    c = a.copy()
    c[c.shape[0] - 1] = 0
    c[:, ::2] = b[:, :2]
    d = np.zeros_like(c)
    d[1:, 1] = 5
    np.add(c, b, out=d)
    c.fill(3)
    return c, d, a


@case(make=arrays)
def a_mask_is_written(a, b):
    c = a.copy()
    c[c > 0] = -1
    c[[0, 1]] = 5
    return c, np.where(c < 0, 0, c)


@case(make=arrays)
def the_same_array_twice(a, b):
    same = np.asarray(a)
    other = a[:]
    return same is a, other is a, np.asarray(a, dtype=np.float64), np.ascontiguousarray(a) is a, other


@case(make=integers)
def integers_are_indices(a, b):
    return a[b], a[b, 1], a[:, b], np.take(a, b, axis=0), a % 3, a // 2, a * a, a.sum(), np.cumsum(a, axis=0)


@case(make=integers)
def dtypes_of_results(a, b):
    small = a.astype(np.int32)
    sums = small.sum(), (a > 3).sum(), small.mean()
    return small + 1, small + a, small * 2.0, sums, np.sqrt(small), small & 1


@case(make=numbers)
def joined_and_split(a, b):
    x, y = a.numpy(), b.numpy()
    first, second = np.split(x, 2, axis=1)
    return np.stack([x, y]), np.concatenate((x, y), axis=1), np.vstack([x, y]), first, second, np.tile(x, 2)


@case(make=numbers)
def chosen_by_a_condition(a, b):
    x, y = a.numpy(), b.numpy()
    return np.where(x > 0, x, y), np.clip(x, -1, 1), x.clip(0), np.where(x > 0, 1.0, x), np.argmax(x, axis=1)


@case(make=numbers)
def made_of_constants(a, b):
    x = np.arange(4) + a.numpy()[0]
    return x, np.zeros((2, 3)), np.ones(3, dtype=np.float32), np.array([1.5, 2]), np.eye(2), np.full(2, -0.0)


@case
def numbers_of_constants(a, b):
    n = int(np.prod(a.shape))
    return a.reshape(n), np.prod(a.shape), np.sqrt(2.0), np.float32(1.5) + 1, np.float64(2) * 3, np.log2(8)


@case(make=numbers)
def lists_become_arrays(a, b):
    x, y = a.numpy(), b.numpy()
    return (
        np.array([x, y]),
        np.asarray((x[0, 0], y[0, 0])),
        np.array([[1, 2], [3, 4]]),
        np.array([x[0], x[1]]),
    )


@case(make=numbers)
def parts_that_are_read_only(a, b):
    x = a.numpy()
    return x.imag, x.real is x, np.broadcast_to(x[0], (2, 4)), np.fft.fftshift(x), np.meshgrid(x[0], x[0])


@case(make=numbers)
def dtypes_by_name(a, b):
    kind = np.dtype("float")
    like = np.ones_like(a), np.full_like(b, 2.5, dtype=kind), np.zeros_like(a.numpy(), dtype=bool)
    known = np.issubdtype(a.numpy().dtype, np.floating), str(a.numpy().dtype), kind.name
    return like, known, a.numpy().astype("float64"), a.numpy().astype(float).dtype == kind


@case(make=numbers)
def iteration_and_unpacking(a, b):
    x = a.numpy()
    first, *rest = x
    total = sum(row * index for index, row in enumerate(x))
    pairs = [p + q for p, q in zip(x, x[:2], strict=False)]
    return first, rest, total, [row[0] for row in x], list(x[0]), pairs


@case(make=numbers)
def iteration_sees_writes(a, b):
    x = a.numpy().copy()
    found = []
    for place, row in enumerate(x[0]):
        x[0, -1] = 100 + place
        found.append(row)
    return found


@case(make=numbers)
def tensors_of_arrays(a, b):
    x = a.numpy() + 1
    shared, copied = torch.from_numpy(x), torch.tensor(x)
    shared += 1
    total = torch.as_tensor(x.sum())
    total += 1
    return x, shared, copied, torch.as_tensor(x), torch.as_tensor(x, dtype=torch.float64), total, x.sum()


@case(make=numbers)
def arrays_of_tensors(a, b):
    same = np.asarray(a), a.detach().numpy(), a.cpu().numpy(), a.numpy(force=True)
    return *same, np.array(b), torch.from_numpy(a.numpy()) is a


@case
def trained_tensors_need_detach(a, b):
    w = a.clone().requires_grad_(False)
    return torch.from_numpy((w * 2).detach().numpy()) * b


@case(make=arrays, state=("LAST",))
def kept_elsewhere(a, b):
    LAST["sum"] = a + b
    LAST["view"] = a[0]
    return [lambda: a]


@case(make=numbers)
def globals_of_numpy(a, b):
    return a.numpy() * SCALE, TABLE[:4] + a.numpy(), TABLE.sum(), SCALE, np.pi * a.numpy().max()


@case(make=numbers)
def products_of_matrices(a, b):
    x, y = a.numpy(), b.numpy()
    return np.matmul(x, y.T), x[0].dot(y[0]), np.einsum("ij,kj->ik", x, y), np.outer(x[0], y[0]), np.trace(x)


@case(make=numbers)
def in_called_functions(a, b):
    def normalize(x, axis=None, *, keep=True):
        return x - x.mean(axis=axis, keepdims=keep)

    return normalize(a.numpy(), 1), normalize(b.numpy()), (lambda x: x[::2])(a.numpy())


@case(make=lambda size: (np.zeros((0, 4), np.float32), np.array(3.0), np.ones((size, 4), bool)))
def empty_and_single(a, b, c):
    return a + 1, a.sum(axis=0), b + 1, b * 2, b.reshape(1), c.sum(axis=0), c & True, b[()], b.copy()


@case(make=lambda size: (np.float32(size), np.int64(3), np.ones((2, 3), np.float64).T))
def numbers_as_arguments(a, b, c):
    return a, a + 1, b * 2, c * a, c + b, c.T.reshape(-1), a > 0


# What no graph can do, or torch does differently: a break, and what Python gives.


@case(make=numbers, breaks=None)
def an_array_of_a_tensor_is_written(a, b):
    x = a.numpy()
    x += 1
    y = torch.from_numpy(b.numpy())
    return a, x, y


@case(make=numbers, breaks=None)
def values_become_numbers(a, b):
    x = a.numpy()
    scale = float(x.sum()) if x[0, 0] > 0 else x.max().item()
    return a * scale, x.tolist(), int(x[0, 0]), bool((x > 100).any()), f"{x[0]}", list(map(float, x[0]))


@case(make=numbers, breaks=None)
def arrays_with_tensors(a, b):
    return np.add(a, 1), a * b.numpy()[0, 0], np.sum(a.numpy() * 2), b + torch.tensor(a.numpy().tolist())


@case(make=numbers, breaks=None)
def other_functions(a, b):
    x = a.numpy()
    return np.sort(x), np.argsort(x, axis=0), np.sign(x), x % 3, np.add.reduce(x), np.unique(x), np.nonzero(x)


@case(make=numbers, breaks=None)
def other_layouts(a, b):
    x = a.numpy()
    other = x.astype(np.float16), x.astype(object), x.view(np.int32)
    return x[::-1], np.flip(x), np.broadcast_to(x, (2, *x.shape)), other


@case(make=numbers, breaks=None)
def changed_in_place(a, b):
    x = a.numpy().copy()
    x.shape = (-1,)
    x.sort()
    x[1:] = x[:-1]
    x.flags.writeable = False
    return x


@case(make=numbers, breaks=None)
def random_numbers_of_numpy(a, b):
    np.random.seed(3)
    return np.random.rand(2), np.random.permutation(a.numpy()), np.random.default_rng(1).normal()


@case(make=integers, breaks=None)
def divisions_of_integers(a, b):
    rows = a[:, :1]
    return (
        rows % (b + 1),
        rows // (b + 2),
        2 ** (b + 1),
        7 // (b + 1),
        a / 2,
        np.int8(100) + a.astype(np.int8),
    )


@case(make=arrays, breaks=None)
def numbers_are_no_sequences(a, b):
    try:
        found = [row for row in np.argmax(a)]
    except TypeError as error:
        found = str(error)
    return found, a.dtype == b, torch.as_tensor(a[:, None]), np.asarray(a.sum())[()]


@case(make=integers, breaks=None)
def indices_that_occur_twice(a, b):
    a[b] = np.arange(4 * len(b)).reshape(-1, 4)
    a[[0, 0], 1] += 1
    return a


@case(make=lambda size: (np.arange(4 * size, dtype=np.uint8) + 100,), breaks=None)
def numbers_that_do_not_fit(a):
    return a < 300, a == -1, a + np.int64(300), (a * 0.5).astype(np.uint8), a * 2, a.astype(np.int8)


@case(make=numbers, breaks=None)
def lower_precision(a, b):
    with torch.autocast("cpu"):
        return a.numpy() @ b.numpy().T, np.exp(a.numpy() * 0)


@case(make=arrays, breaks=None)
def errors_of_numpy(a, b):
    found = []
    for what in (lambda: a @ a[0, :3], lambda: a.reshape(3, 5, 7), lambda: a.nothing, lambda: hash(a)):
        try:
            found.append(what())
        except (TypeError, ValueError, AttributeError) as error:
            found.append(type(error))
    with np.errstate(divide="raise"):
        try:
            found.append(a / (b - b))
        except FloatingPointError:
            found.append("divided by zero")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found, a / (b - b)


def odd_arrays(size):
    return np.broadcast_to(np.ones(4), (size, 4)), np.ones((size, 4), ">f4"), np.matrix([[1, 2]])


@case(make=odd_arrays, breaks=None)
def other_arrays_as_arguments(a, b, c):
    return a + 1, b * 2, c * c.T, a, np.array(["text"]), np.ma.masked_array([1, 2], [0, 1]).sum()


@case(make=lambda size: (lambda x: (x, torch.from_numpy(x), x[1:]))(np.ones((size, 4))), breaks=None)
def arguments_in_one_memory(a, b, c):
    a += 1
    b.mul_(2)
    c[0] = 0
    return a + c.sum(), b * 1, c
