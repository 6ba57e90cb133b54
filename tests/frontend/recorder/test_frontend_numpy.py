"""NumPy in a trace: what torch's emulation computes, where it is a break, and which memory is shared."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch

import torchrepro
from torchrepro.torch_api import numpy_emulation

SPECIAL = np.array([0.0, -0.0, 1, -1, 0.5, -2.5, 1.5, 3.7, np.inf, -np.inf, np.nan, 1e-310, 1e30])
INTEGERS = np.array([0, 1, -1, 2, -3, 100, 16777217, 2**53 + 1])
UNARY = """
    sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arccosh arctanh exp exp2 expm1 log log2 log10
    log1p sqrt square absolute fabs negative positive floor ceil trunc rint round logical_not isnan isinf
    isfinite signbit deg2rad rad2deg sum prod mean std var max min argmax argmin all any cumsum cumprod ptp
"""
BINARY = """
    arctan2 add subtract multiply divide power maximum minimum hypot logaddexp equal not_equal less less_equal
    greater greater_equal logical_and logical_or logical_xor copysign floor_divide isclose bitwise_and
"""
ROUNDING = {"float32": 1e-6, "float64": 1e-12}
KINDS = [SPECIAL, SPECIAL.astype(np.float32), INTEGERS, INTEGERS[:6].astype(np.int32), INTEGERS > 0]


def assert_alike(expected, found):
    assert type(found) is type(expected)
    if isinstance(expected, tuple | list):
        for pair in zip(expected, found, strict=True):
            assert_alike(*pair)
    else:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=ROUNDING.get(expected.dtype.name, 0))


@pytest.mark.parametrize("values", KINDS, ids=lambda values: values.dtype.name)
@pytest.mark.parametrize("name", UNARY.split())
@np.errstate(all="ignore")
def test_a_function_of_one_array_computes_what_numpy_does(name, values):
    function = operator.attrgetter(name)(np)

    def program(x):
        return function(x), function(x[:4]), function(x.reshape(1, -1))

    try:
        expected = program(values.copy())
    except (TypeError, ValueError):  # the function takes no arrays of that dtype
        return
    assert_alike(expected, torchrepro.trace(program, backend="eager")(values.copy()))


@pytest.mark.parametrize("values", KINDS, ids=lambda values: values.dtype.name)
@pytest.mark.parametrize("name", BINARY.split())
@np.errstate(all="ignore")
def test_a_function_of_two_arrays_computes_what_numpy_does(name, values):
    function = operator.attrgetter(name)(np)

    def program(x, y):
        return function(x, y), function(x, x), function(x, 2)

    both = values[:, None].copy(), values[None].copy()
    try:
        expected = program(*both)
    except (TypeError, ValueError):
        return
    assert_alike(expected, torchrepro.trace(program, backend="eager")(*both))


def test_every_function_that_is_listed_exists():
    names = set(numpy_emulation._FUNCTIONS.split())
    assert {"sin", "sum", "linalg.norm"} <= names
    for name in names:
        assert callable(numpy_emulation.emulation_of(name))
        assert numpy_emulation.emulated_name(operator.attrgetter(name)(np)) is not None


@pytest.mark.parametrize("name", ["sign", "sort", "fmod", "random.rand"])
def test_a_function_that_torch_computes_differently_is_not_emulated(name):
    assert numpy_emulation.emulated_name(operator.attrgetter(name)(np)) is None


def test_common_calls_are_one_graph():
    def program(x):
        a = np.sin(x.numpy()) + np.cos(x.numpy())
        return torch.from_numpy(a / np.linalg.norm(a, axis=-1, keepdims=True)), a.mean(), a.T.reshape(-1)

    explained = torchrepro.explain_capture(program, torch.rand(3, 4))
    assert explained.whole
    found, mean, flat = explained.result
    assert (type(mean), type(flat), found.dtype) == (np.float32, np.ndarray, torch.float32)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inputs_that_share_memory_in_different_storages_see_each_others_writes(backend):
    def program(x, y):
        x.add_(1)
        return y * 1

    memory = np.zeros(3, np.float32)
    call = torchrepro.trace(program, backend=backend)
    for count in (1, 2):
        assert call(torch.from_numpy(memory), torch.from_numpy(memory)).tolist() == [count] * 3


def test_an_array_is_captured_again_for_another_layout_and_not_for_other_values():
    seen = []

    def backend(graph, inputs):
        seen.append(graph)
        return graph.forward

    call = torchrepro.trace(lambda a: a + 1, backend=backend)
    array = np.arange(6.0).reshape(2, 3)
    for each in (array, array * 2, array.T, array.astype(np.float32), array[:1], array):
        np.testing.assert_array_equal(call(each), each + 1)
    assert len(seen) == 4
    array.flags.writeable = False
    np.testing.assert_array_equal(call(array), array + 1)
    assert len(seen) == 4


def test_errors_that_numpy_is_to_raise_are_raised():
    call = torchrepro.trace(lambda a: 1 / a, backend="eager")
    assert call(np.ones(2)).tolist() == [1, 1]
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        call(np.zeros(2))


def test_verification_takes_arrays():
    def program(a, x):
        a += 1
        return np.sqrt(a), x.numpy() * 2

    call = torchrepro.trace(program, backend="eager", verify=True)
    array = np.ones(3)
    found, _ = call(array, torch.ones(2))
    assert (array.tolist(), found.dtype) == ([2, 2, 2], np.float64)
