"""What `same` says besides yes and no, and that its streaming statistics are those of a naive computation."""

from __future__ import annotations

import collections
import copy
import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.judge.compare import same
from torchrepro.judge.metrics import Stream, Walk, sample_positions
from torchrepro.judge.rule import Envelope, Rule, precision_of
from torchrepro.nouns.verdict import Blame, Comparison, Difference

T = torch.tensor
FLOATING = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, 1e-30]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Three tensors of one shape with strides of their own, some elements special."""
    dtype = draw(st.sampled_from(FLOATING))
    shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    wide = torch.complex128 if dtype.is_complex else torch.float64
    truth = torch.randn(shape, dtype=wide, generator=generator) * draw(st.sampled_from([1.0, 1e-3, 1e4]))
    ref = _arranged(draw, truth.to(dtype))
    noise = 1 + draw(st.sampled_from([0.0, 1e-6, 0.1])) * torch.randn(shape, dtype=wide, generator=generator)
    res = _arranged(draw, (truth * noise).to(dtype))
    exact = _arranged(draw, truth)
    for tensor in (ref, res, exact):
        for _ in range(draw(st.integers(0, 2))):
            index = tuple(draw(st.integers(0, size - 1)) for size in shape)
            tensor[index] = draw(st.sampled_from(SPECIAL))
    return ref, res, exact if draw(st.booleans()) else None


def _arranged(draw: st.DrawFn, tensor: torch.Tensor) -> torch.Tensor:
    """The same values in memory of another order, with gaps."""
    order = draw(st.permutations(range(tensor.dim())))
    gaps = [draw(st.integers(1, 2)) for _ in order]
    room = torch.zeros(
        [tensor.shape[dim] * gap for dim, gap in zip(order, gaps, strict=True)], dtype=tensor.dtype
    )
    view = room[tuple(slice(None, None, gap) for gap in gaps)]
    view = view.permute([order.index(dim) for dim in range(tensor.dim())])
    view.copy_(tensor)
    return view


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return (torch.view_as_real(wide.contiguous()) if tensor.is_complex() else wide).reshape(-1)


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from([4, 16, 1 << 18]), st.booleans())
def test_streamed_statistics_are_those_of_a_naive_computation(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], block: int, everything: bool
) -> None:
    ref, res, truth = tensors
    precision = precision_of(ref.dtype)
    stream = Stream(ref, res, truth, precision, block=block, small=0)
    found = stream.survey(Envelope(1e-3, 0.01), everything=everything)

    old, new = _numbers(ref), _numbers(res)
    exact = old if truth is None else _numbers(truth)
    both = old.isfinite() & new.isfinite()
    exact = torch.where(exact.isfinite(), exact, torch.where(both, old, math.nan))
    error, eager = (
        (new - exact)[new.isfinite() & exact.isfinite()],
        (old - exact)[old.isfinite() & exact.isfinite()],
    )
    assert found.rmse_compiled == pytest.approx(_rms(error), rel=1e-9, abs=1e-300)
    assert found.rmse_eager == pytest.approx(_rms(eager), rel=1e-9, abs=1e-300)
    change = (new - old)[both].abs()
    assert found.max_abs == pytest.approx(float(change.max()) if len(change) else 0.0, rel=1e-6)
    if found.cosine is None:
        return
    size = old[both].abs().clamp(min=precision.normal)
    relative = change / size
    assert found.max_rel == pytest.approx(float(relative.max()) if len(relative) else 0.0, rel=1e-9)
    ulp = change / (torch.exp2(torch.floor(torch.log2(size))) * precision.eps)
    assert found.max_ulp == pytest.approx(float(ulp.max()) if len(ulp) else 0.0, rel=1e-9)
    excess = (new - exact).abs() - 0.01 * exact.abs()
    excess = excess[new.isfinite() & exact.isfinite()]
    if len(excess) == len(new):
        assert found.excess_compiled == pytest.approx(float(excess.max()), rel=1e-9, abs=1e-300)
    norms = _rms(old[both]) * _rms(new[both])
    if norms:
        assert found.cosine == pytest.approx(float((old[both] * new[both]).mean()) / norms, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(layouts(), st.integers(1, 40))
def test_a_walk_visits_every_element_once_and_knows_its_index(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], limit: int
) -> None:
    ref, res, _ = tensors
    walk = Walk.over([ref, res], limit)
    visited = []
    for part in walk.parts:
        block = walk.arranged(ref)[part]
        assert block.numel() <= limit
        indices = [walk.index_of(part, offset) for offset in range(block.numel())]
        values = block.reshape(-1)
        assert all(_identical(ref[index], value) for index, value in zip(indices, values, strict=True))
        visited += indices
    assert len(set(visited)) == len(visited) == ref.numel()


def _identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))


@given(st.integers(1, 10**12), st.integers(1, 300))
def test_sampled_positions_are_distinct_and_within(count: int, wanted: int) -> None:
    positions = sample_positions(count, wanted).tolist()
    assert len(set(positions)) == len(positions) == min(count, wanted)
    assert min(positions) >= 0
    assert max(positions) < count


@settings(max_examples=100, deadline=None)
@given(layouts())
def test_anything_is_the_same_as_itself_and_is_left_untouched(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
) -> None:
    ref, _, truth = tensors
    before, exact_before = copy.deepcopy(ref), copy.deepcopy(truth)
    assert same(ref, ref.clone(), truth)
    assert same(ref, before, strict=True)
    assert truth is None or same(truth, exact_before, strict=True)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([torch.float32, torch.bfloat16]), st.integers(1, 3000), st.data())
def test_one_gross_error_is_found_wherever_it_is(dtype: torch.dtype, count: int, data: st.DataObject) -> None:
    truth = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    where = data.draw(st.integers(0, count - 1))
    ref = truth.to(dtype)
    res = ref.clone()
    res[where] += 3.0
    for exact in (truth, None):
        comparison = same(ref, res, exact)
        assert not comparison
        assert comparison.worst is not None
        assert comparison.worst.index == (where,)
        assert comparison.worst.mismatched == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_a_few_healthy_elements_are_never_flagged(seed: int, count: int) -> None:
    """Two orders of adding: with few results, eager's error says little about the noise."""
    values = torch.randn(count, 1024, generator=torch.Generator().manual_seed(seed))
    other = values.view(count, 32, 32).sum(1).sum(-1)
    assert same(values.sum(-1), other, values.double().sum(-1))


def test_the_path_and_the_index_lead_to_the_worst_element() -> None:
    Out = collections.namedtuple("Out", "logits cache")
    ref = {"out": Out([T([1.0, 2.0])], {"k": torch.zeros(2, 3)}), 3: T([1])}
    res = {"out": Out([T([1.0, 2.0])], {"k": torch.zeros(2, 3)}), 3: T([1])}
    res["out"].cache["k"][1, 2] = 5.0
    comparison = same(ref, res, path="result")
    (leaf,) = comparison.differing
    assert leaf.path == 'result["out"].cache["k"]'
    assert leaf.index == (1, 2)
    assert (leaf.ref_value, leaf.res_value) == ("0", "5")
    assert [leaf.path for leaf in comparison] == [
        'result["out"].logits[0]',
        'result["out"].cache["k"]',
        "result[3]",
    ]


def test_a_model_output_is_read_by_attribute() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    ref = outputs.BaseModelOutput(last_hidden_state=torch.zeros(2))
    res = outputs.BaseModelOutput(last_hidden_state=torch.ones(2))
    comparison = same(ref, res)
    assert comparison.differing[0].path == ".last_hidden_state"
    assert comparison.differing[0].mismatched == 2


def test_the_numbers_of_a_difference_are_told() -> None:
    truth = T([1.0, 2.0, 4.0]).double()
    comparison = same(T([1.0, 2.0, 4.0]), T([1.0, 2.0, 5.0]), truth)
    leaf = comparison.worst
    assert leaf is not None
    assert leaf.difference is Difference.VALUE
    assert leaf.blamed is Blame.COMPILED
    assert (leaf.elements, leaf.mismatched, leaf.index) == (3, 1, (2,))
    assert leaf.max_abs == 1.0
    assert leaf.max_rel == 0.25
    assert leaf.max_ulp == 2.0**21
    assert leaf.rmse_ref == 0.0
    assert leaf.rmse_res == pytest.approx(math.sqrt(1 / 3))
    assert leaf.cosine == pytest.approx(25 / math.sqrt(21 * 30))
    assert "compiled 5, eager 4, float64 4" in str(comparison)


def test_a_large_leaf_that_differs_gets_complete_statistics() -> None:
    ref = torch.randn(1_500_000, generator=torch.Generator().manual_seed(0))
    res = ref.clone()
    res[1_234_567] = 100.0
    leaf = same(ref.view(1500, 1000), res.view(1500, 1000), ref.double().view(1500, 1000)).worst
    assert leaf is not None
    assert leaf.index == (1234, 567)
    assert leaf.mismatched == 1
    assert leaf.cosine is not None
    assert leaf.max_rel == pytest.approx(float((100 - ref[1_234_567]).abs() / ref[1_234_567].abs()))


def numbers_of(ref: Any, res: Any, truth: Any = None, **options: Any) -> tuple[float | None, ...]:
    (leaf,) = same(ref, res, truth, **options).leaves
    return leaf.max_abs, leaf.max_rel, leaf.max_ulp, leaf.cosine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_that_was_not_measured_is_none(dtype: torch.dtype) -> None:
    ref = torch.linspace(1, 2, 1_500_000).to(dtype)
    res = ref.clone()
    res[7] *= 1 + torch.finfo(dtype).eps
    accepted = numbers_of(ref, res, ref.double())
    assert accepted == (float(res[7] - ref[7]), None, None, None)
    assert accepted[0] != 0.0
    ref[-1] = res[-1] = (
        math.nan
    )  # of the lean pass one block is measured in full, another holds the difference
    assert numbers_of(ref, res, ref.double())[1:] == (None, None, None)


def test_numbers_are_told_only_where_there_are_any() -> None:
    assert numbers_of(T([1, 2]), T([1, 5])) == (3.0, None, None, None)
    assert numbers_of(T([1, 2]), T([1, 2])) == (0.0, 0.0, 0.0, None)
    assert numbers_of(T([1, 2]), T([1, 5]), ignore_non_fp=True) == (None, None, None, None)
    assert numbers_of(T([1.0]), T([math.inf]), strict=True) == (math.inf, None, None, None)
    assert numbers_of(torch.zeros(2), torch.zeros(3)) == (None, None, None, None)
    # Integers of rounded floats count as the same, and still differ.
    assert numbers_of(T([1, 2, 3]), T([2, 2, 3]), T([1, 2, 4])) == (1.0, None, None, None)
    comparison = same(torch.zeros(2), torch.zeros(3))
    assert comparison.worst_error is None
    assert comparison.to_dict()["differing"][0]["max_rel"] is None
    assert Comparison.from_dict(comparison.to_dict()) == comparison


def test_a_rule_can_be_given_as_one_object() -> None:
    assert same(T([1.0]), T([1.05]), rule=Rule(tol=0.1))
    assert not same(T([1.0]), T([1.0000001]), rule=Rule(strict=True))


def test_what_cannot_be_compared_is_said() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta = torch.empty(2, device="meta")
    with FakeTensorMode():
        fake = torch.empty(2)
    for empty in (meta, fake):
        comparison = same(empty, empty)
        assert comparison
        assert "no data" in comparison.notes[0]
    assert same(fake, T([1.0, 2.0])).differing[0].difference is Difference.TYPE


def test_a_wrapper_subclass_is_compared_by_its_inner_tensors() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    left = TwoTensor(torch.ones(2), torch.ones(2))
    right = TwoTensor(torch.ones(2), torch.zeros(2))
    assert same(left, TwoTensor(torch.ones(2), torch.ones(2)))
    assert same(left, right).differing[0].path == ".b"
    assert same(left, torch.ones(2)).differing[0].difference is Difference.TYPE


def test_zero_tensors_of_forward_mode_are_zeros() -> None:
    zeros = torch._efficientzerotensor(3)
    assert same(zeros, torch.zeros(3), torch.zeros(3).double())
    assert not same(zeros, torch.ones(3))


def test_gradients_are_not_recorded_and_inference_tensors_are_accepted() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.inference_mode():
        inside = torch.ones(3)
    assert same(weight * 1, inside, inside.double())
    assert weight.grad is None


def test_random_state_is_not_disturbed() -> None:
    before = torch.get_rng_state()
    same(torch.ones(1 << 15), torch.ones(1 << 15), torch.ones(1 << 15).double())
    assert torch.equal(before, torch.get_rng_state())


def test_a_comparison_becomes_plain_data() -> None:
    told = same([T([1.0]), T([2])], [T([math.nan]), T([2])]).to_dict()
    assert told["same"] is False
    assert told["differing"][0]["path"] == "[0]"
    assert told["differing"][0]["difference"] == "non_finite"


_MEMORY = """
import resource, torch
from torchrepro.judge.compare import same
torch.set_num_threads(1)
def tensors(rows):
    base = torch.zeros(3, rows, 1024)
    return base[0].t(), base[1].t()[:, : rows], torch.zeros(1024, rows, dtype=torch.float64)
same(*tensors(8)); same(*[t.clone() for t in tensors(2048)])
given = tensors(24576)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for tensor in given: tensor.add_(0.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert same(*given)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_less_than_64_mib_are_needed_whatever_the_size_and_the_strides() -> None:
    done = subprocess.run([sys.executable, "-c", _MEMORY], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 64


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_healthy_compiled_model_is_the_same_and_a_scaled_one_is_not(dtype: torch.dtype) -> None:
    def model(values: torch.Tensor, weight: torch.Tensor) -> dict[str, Any]:
        hidden = torch.nn.functional.gelu(values @ weight)
        normal = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])
        return {
            "normal": normal,
            "soft": normal.softmax(-1),
            "loss": normal.square().mean(),
            "zero": normal.sum(),
        }

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(32, 32, generator=generator).to(dtype) for _ in range(2)]
    ref, truth = model(*inputs), model(*(value.double() for value in inputs))
    res = torch.compile(model)(*inputs)
    assert same(ref, res, truth)
    res["soft"] = res["soft"] * 1.05
    assert [leaf.path for leaf in same(ref, res, truth).differing] == ['["soft"]']
