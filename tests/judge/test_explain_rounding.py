"""A difference that rounding or eager itself explains is not blamed on the compiler; any other still is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from torchrepro import same_two_models
from torchrepro.judge import explain_rounding
from torchrepro.judge.noise import RoundingNoise
from torchrepro.nouns.verdict import Blame, Comparison, Difference

COUNT, PLANTED = 40, 7


@dataclass(frozen=True)
class Kink:
    """An op, where it has a kink, and how the explanation names it."""

    run: Callable[[Tensor], Any]
    at: float
    named: str


def tie(x: Tensor) -> Tensor:
    """Rows with a zero first: at a kink of zero, a tie that rounding decides."""
    return torch.stack([torch.zeros_like(x), x], 1)


def below(x: Tensor) -> Tensor:
    """Return what is just below 1 where `x` is just above a half."""
    return 2 * (1 - x)


KINKS = {
    "relu": Kink(F.relu, 0.0, "relu|threshold"),
    "leaky_relu": Kink(F.leaky_relu, 0.0, "leaky_relu"),
    "elu": Kink(lambda x: F.elu(x, alpha=0.25), 0.0, "elu"),
    "abs": Kink(torch.abs, 0.0, "abs|sgn"),
    "hardtanh": Kink(lambda x: F.hardtanh(x, 0.5, 2.0), 0.5, "hardtanh"),
    "hardshrink": Kink(F.hardshrink, 0.5, "hardshrink"),
    # From torch 2.15 on the gradient at the bound itself is 0: another side of it differs.
    "clamp": Kink(lambda x: (-x).clamp(min=0.0) + x.clamp(min=0.0), 0.0, "clamp|clamp_min|ge|gt"),
    "clamp_tensor": Kink(lambda x: x.clamp(max=torch.full_like(x, 0.5)), 0.5, "clamp|clamp_max|le"),
    "maximum": Kink(lambda x: torch.maximum(x, torch.zeros_like(x)), 0.0, "maximum|ge|gt|lt|eq"),
    "round": Kink(torch.round, 0.5, "round"),
    "floor": Kink(lambda x: torch.floor(-x), 0.0, "floor"),
    "ceil": Kink(torch.ceil, 0.0, "ceil"),
    "trunc": Kink(lambda x: torch.trunc(below(x)), 0.5, "trunc"),
    "frac": Kink(lambda x: torch.frac(below(x)), 0.5, "frac"),
    "floor_divide": Kink(lambda x: -x.detach() // 1.0, 0.0, "floor_divide"),
    "remainder": Kink(lambda x: torch.remainder(-x, 1.0), 0.0, "remainder"),
    "div_floor": Kink(lambda x: torch.div(-x, 1.0, rounding_mode="floor"), 0.0, "div"),
    "sign": Kink(torch.sign, 0.0, "sign"),
    "gt": Kink(lambda x: torch.where(x > 0, 3.0, 1.0), 0.0, "gt"),
    "le": Kink(lambda x: (x <= 0.5).float(), 0.5, "le"),
    "lt": Kink(lambda x: torch.where(torch.lt(-x, 0), 3.0, 1.0), 0.0, "lt"),
    "ge": Kink(lambda x: torch.ge(-x, 0), 0.0, "ge"),
    "mask": Kink(lambda x: torch.ones_like(x).masked_fill(x > 0, 5.0), 0.0, "gt"),
    "int_cast": Kink(lambda x: below(x).to(torch.int64), 0.5, "_to_copy"),
    "argmax": Kink(lambda x: tie(x).argmax(1), 0.0, "argmax"),
    "topk": Kink(lambda x: tie(x).topk(1, 1).indices, 0.0, "topk"),
    "sort": Kink(lambda x: tie(x).sort(dim=1, stable=True, descending=True).indices, 0.0, "sort"),
    "max_pooling": Kink(lambda x: F.max_pool1d(tie(x)[None], 2), 0.0, "max_pool2d_with_indices"),
    "max_gradient": Kink(lambda x: tie(x).max(1).values, 0.0, "max"),
    "bucketize": Kink(lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0])), 0.0, "bucketize"),
    "fake_quantize": Kink(
        lambda x: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, -8, 7),
        0.5,
        "fake_quantize_per_tensor_affine_cachemask",
    ),
}


def terms(at: float, places: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return three summands; at the places `a + (b + c)` is just above a kink, and `(a + b) + c` is not."""
    a, b = torch.randn(2, 2000, generator=torch.Generator().manual_seed(seed))
    c = at - (a + b)
    exact = a.double() + b.double() + c.double()
    rounded = (b + c).double() != b.double() + c.double()
    chosen = ((a + (b + c) > at) & ((a + b) + c == at) & (exact > at) & rounded).nonzero().flatten()
    given = torch.randn(3, COUNT, generator=torch.Generator().manual_seed(seed + 1))
    for place, index in zip(places, chosen, strict=False):
        given[:, place] = torch.stack([a[index], b[index], c[index]])
    given[:, PLANTED] = torch.tensor([-0.7, 0.0, 0.0])
    first, second, third = given
    return first.requires_grad_(), second.requires_grad_(), third.requires_grad_()


def compare(kink: Kink, places: list[int], seed: int = 0, *, planted: float = 0.0) -> Comparison:
    """Compare two orders of a sum before a kink, which take different sides of it; plant an error."""

    def eager(a: Tensor, b: Tensor, c: Tensor) -> Any:
        return kink.run(a + (b + c))

    def compiled(a: Tensor, b: Tensor, c: Tensor) -> Any:
        wrong = torch.zeros(COUNT)
        wrong[PLANTED] = planted
        return kink.run((a + b) + c + wrong)

    return same_two_models(eager, compiled, terms(kink.at, places, seed))


@pytest.mark.parametrize("name", KINKS)
def test_two_roundings_on_different_sides_of_a_discontinuity_are_explained_by_it(name: str) -> None:
    found = compare(KINKS[name], [3, 20, 33])
    assert found, str(found)
    (note,) = [note for note in found.notes if note.startswith("explained by rounding at `")]
    op, _, elements = note.removeprefix("explained by rounding at `").partition("` (")
    assert op in KINKS[name].named.split("|")
    assert 1 <= int(elements.split()[0]) <= 6, "of three places, two indices each"
    assert elements.endswith((" of its kink)", " of its step)", " on the other side)"))
    assert any(leaf.detail == note and leaf.blamed is Blame.NOBODY for leaf in found)


@pytest.mark.parametrize("name", KINKS)
def test_an_element_far_from_the_discontinuity_excuses_nothing(name: str) -> None:
    found = compare(KINKS[name], [3, 20, 33], planted=1.3)
    assert not found
    assert found.blamed is Blame.COMPILED
    assert not any(note.startswith("explained") for note in found.notes)


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(KINKS)),
    st.sets(st.integers(8, COUNT - 1), min_size=1, max_size=6),
    st.integers(0, 2**16),
    st.booleans(),
)
def test_healthy_pairs_pass_and_planted_errors_do_not(
    name: str, places: set[int], seed: int, wrong: bool
) -> None:
    assert bool(compare(KINKS[name], sorted(places), seed, planted=1.3 * wrong)) is not wrong


@settings(max_examples=25)
@given(st.integers(0, 2**16), st.sampled_from([1e-3, 0.1, 5.0]))
def test_a_wrong_value_at_the_kink_itself_is_found(seed: int, error: float) -> None:
    def wrong(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        shift = torch.zeros(COUNT)
        shift[3] = error
        return F.relu((a + b) + c) + shift

    found = same_two_models(lambda a, b, c: F.relu(a + (b + c)), wrong, terms(0.0, [3, 20], seed))
    assert not found
    assert found.differing[0].index == (3,)


def test_a_mask_that_selects_one_element_less_is_explained() -> None:
    def eager(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        x = a + (b + c)
        return x[x > 0].exp()

    def compiled(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        x = (a + b) + c
        return x[x > 0].exp()

    given = terms(0.0, [20])
    found = same_two_models(eager, compiled, given)
    assert found, str(found)
    assert any("explained by rounding at `gt` (1 element" in note for note in found.notes)
    without = same_two_models(eager, lambda *terms: compiled(*terms)[1:], given)
    assert not without
    assert without.differing[0].difference is Difference.SHAPE


def test_boundaries_computed_in_another_way_are_explained() -> None:
    """Seen with inductor on CPU: its `linspace` differs from eager's by one ulp of the first number."""
    x = torch.randn(500, generator=torch.Generator().manual_seed(0))

    def eager(x: Tensor) -> Tensor:
        return torch.bucketize((x * 1.1).round(decimals=1), torch.linspace(-3, 3, 31))

    def compiled(x: Tensor) -> Tensor:
        return torch.bucketize((x * 1.1).round(decimals=1), torch.arange(31) * torch.tensor(0.2) - 3)

    assert not torch.equal(eager(x), compiled(x))
    found = same_two_models(eager, compiled, (x,))
    assert found, str(found)
    assert any("explained by rounding at `bucketize`" in note for note in found.notes)
    assert not same_two_models(eager, lambda x: compiled(x) + 1, (x,))


def test_a_column_of_a_half_type_that_is_off_by_a_tenth_is_found() -> None:
    """A tenth is 13 ulp of bfloat16, and eager's own error 0.3 ulp: noise must not be several times that."""
    make = torch.Generator().manual_seed(0)
    x, up, down = (torch.randn(*size, generator=make).bfloat16() for size in ((16, 32), (32, 67), (67, 9)))

    def eager(x: Tensor) -> Tensor:
        return F.layer_norm(F.gelu(x @ up / 5), (67,)) @ down / 8

    def wrong(x: Tensor) -> Tensor:
        out = eager(x)
        return torch.cat([out[:, :-1], out[:, -1:] * 1.1], 1)

    assert same_two_models(eager, eager, (x,))
    assert not same_two_models(eager, wrong, (x,))


def amplified_terms() -> tuple[Tensor, Tensor, Tensor]:
    """Return terms whose sum is another in another order, and is nearly exact in one."""
    given = torch.randn(3, 1_000_000, generator=torch.Generator().manual_seed(0))
    a, b, c = given
    error = ((a + (b + c)).double() - (a.double() + b.double() + c.double())).abs()
    lucky = (error > 0) & (error < 1e-9) & ((b + c).double() != b.double() + c.double())
    a, b, c = given[:, lucky & ((a + b) + c != a + (b + c))][:, :COUNT]
    assert a.numel() == COUNT
    return a, b, c


def test_a_difference_that_the_computation_amplifies_needs_no_kink() -> None:
    def eager(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return ((a + (b + c)) * 2.0**23).sin()

    def compiled(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (((a + b) + c) * 2.0**23).sin()

    a, b, c = amplified_terms()
    found = same_two_models(eager, compiled, (a, b, c))
    assert found, str(found)
    assert "explained by rounding that the computation amplifies (ill-conditioned)" in found.notes
    assert not same_two_models(eager, lambda *terms: 20 * compiled(*terms), (a, b, c))


def test_the_noise_of_one_mean_moves_a_whole_channel() -> None:
    """The gradient of a bias before a batch norm is zero but for rounding, which adds up over the batch."""
    x = torch.randn(64, 4, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    bias = torch.zeros(4).requires_grad_()

    def eager(x: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x + bias[:, None, None], None, None, training=True))

    def compiled(x: Tensor, bias: Tensor) -> Tensor:
        shifted = x + bias[:, None, None]
        centred = shifted - shifted.mean((0, 2, 3), keepdim=True)
        return F.relu(centred * (centred.square().mean((0, 2, 3), keepdim=True) + 1e-5).rsqrt())

    found = same_two_models(eager, compiled, (x, bias))
    assert found, str(found)


LAYOUT_DEPENDENT = {"relu6": F.relu6, "hardshrink": F.hardshrink, "softshrink": F.softshrink, "elu": F.elu}


def strided_gradient(function: Callable[[Tensor], Tensor], x: Tensor, layout: str) -> Tensor:
    x = x if layout == "contiguous" else torch.stack([x, x], 1)[:, 0]
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x), x, torch.ones_like(x))
    return gradient


@pytest.mark.parametrize("name", LAYOUT_DEPENDENT)
def test_eager_that_depends_on_the_layout_is_not_blamed_on_the_compiler(name: str) -> None:
    function = LAYOUT_DEPENDENT[name]
    x = torch.linspace(-8, 8, 19)
    x[[3, 17]] = math.nan
    first, second = (strided_gradient(function, x, layout) for layout in ("contiguous", "strided"))

    def compiled(x: Tensor) -> Tensor:
        return function(torch.stack([x, x], 1)[:, 0])

    def wrong(x: Tensor) -> Tensor:
        return compiled(x) + 0.5 * x.detach().nan_to_num(0.0) * (x - x.detach())

    given = (x.requires_grad_(),)
    found = same_two_models(function, compiled, given)
    assert found, str(found)
    if torch.equal(first.nan_to_num(7.0), second.nan_to_num(7.0)):
        assert not any("inconsistent" in note for note in found.notes)
    else:
        (note,) = found.notes
        assert note.startswith("eager is inconsistent: its vector and scalar code differ at `")
        assert found.blamed is Blame.EAGER
    assert not same_two_models(function, wrong, given)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, -3.0, 88.9, 100.0, 3e38, 0.5]


@dataclass(frozen=True)
class Inconsistent:
    """An op whose vector and scalar code differ on torch 2.13 at one of the special values."""

    run: Callable[..., Tensor]
    operands: int = 1
    dtype: torch.dtype = torch.float32
    gradients: bool = False

    def values(self, count: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(count)

        def drawn() -> Tensor:
            return torch.tensor(SPECIAL)[torch.randint(len(SPECIAL), (count,), generator=generator)]

        complex_ = self.dtype.is_complex
        drawn_ = [torch.complex(drawn(), drawn()) if complex_ else drawn() for _ in range(self.operands)]
        return tuple(one.to(self.dtype).requires_grad_(self.gradients) for one in drawn_)


INCONSISTENT = {
    "fmod": Inconsistent(torch.fmod, 2),
    "remainder": Inconsistent(torch.remainder, 2),
    "remainder in bfloat16": Inconsistent(torch.remainder, 2, torch.bfloat16),
    "remainder_": Inconsistent(lambda x, y: x.clone().remainder_(y), 2),
    "sinh": Inconsistent(torch.sinh),
    "cosh": Inconsistent(torch.cosh),
    "sgn": Inconsistent(torch.sgn, 1, torch.complex64),
    "square": Inconsistent(torch.square, 1, torch.complex64),
    **{
        name: Inconsistent(function, gradients=True)
        for name, function in {
            **{name: getattr(F, name) for name in ("relu6", "hardshrink", "softshrink", "hardswish")},
            **{name: getattr(F, name) for name in ("elu", "celu", "selu", "hardtanh", "logsigmoid")},
            "elu_": lambda x: F.elu_(x.clone()),
            "logit": torch.logit,
        }.items()
    },
    "polar": Inconsistent(torch.polar, 2, gradients=True),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_what_eager_gives_alone_strided_or_in_a_longer_tensor_is_never_the_compilers_fault(name: str) -> None:
    case, blamed = INCONSISTENT[name], set()
    for count in (1, 7, 15, 16, 17, 33, 40):
        given = case.values(count)

        def strided(*given: Tensor) -> Tensor:
            return case.run(*(torch.stack([one, one], 1)[:, 0] for one in given))

        def alone(*given: Tensor) -> Tensor:
            parts = (case.run(*(one[i : i + 1] for one in given)) for i in range(given[0].numel()))
            return torch.cat(list(parts))

        def longer(*given: Tensor) -> Tensor:
            count = given[0].numel()
            return case.run(*(torch.cat([one, one.detach().new_ones(64)]) for one in given))[:count]

        for compiled in (strided, alone, longer):
            found = same_two_models(case.run, compiled, given)
            assert found, f"{compiled.__name__} {count}: {found}"
            if any("eager is inconsistent" in note for note in found.notes):
                blamed.add(found.blamed)
    given = case.values(40)
    assert not same_two_models(case.run, lambda *given: -case.run(*given) - 5, given)
    assert blamed <= {Blame.EAGER}


def test_one_leaf_that_the_layout_explains_and_one_that_rounding_explains() -> None:
    x = torch.linspace(-8, 8, 19)
    x[[3, 17]] = math.nan
    terms = amplified_terms()

    def eager(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return F.relu6(x), ((a + (b + c)) * 2.0**23).sin()

    def compiled(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return F.relu6(torch.stack([x, x], 1)[:, 0]), (((a + b) + c) * 2.0**23).sin()

    def wrong(x: Tensor, *terms: Tensor) -> tuple[Tensor, Tensor]:
        first, second = compiled(x, *terms)
        return first, 20 * second

    given = (x.requires_grad_(), *terms)
    found = same_two_models(eager, compiled, given)
    assert found, str(found)
    assert found.blamed is Blame.EAGER
    assert [note.partition(":")[0].partition(" that")[0] for note in found.notes] == [
        "eager is inconsistent",
        "explained by rounding",
    ]
    found = same_two_models(eager, wrong, given)
    assert [leaf.path for leaf in found.differing] == ["out[1]"]
    assert found.blamed is Blame.COMPILED


def test_a_clean_call_never_runs_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(RoundingNoise):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            made.append(args)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(explain_rounding, "RoundingNoise", Counted)
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert same_two_models(F.relu, lambda x: x.clamp(min=0.0), (x,))
    assert not made
    assert not same_two_models(F.relu, lambda x: x.clamp(min=0.1), (x,))
    assert made
    for options in ({"tol": 1e-3}, {"strict": True}, {"cos_similarity": True}):
        made.clear()
        assert not same_two_models(F.relu, torch.neg, (x,), **options)
        assert not made, "the caller has said what is the same"


def test_a_function_that_fails_under_noise_keeps_its_verdict_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no such run")

    monkeypatch.setattr(explain_rounding, "RoundingNoise", failing)
    found = same_two_models(F.relu, torch.neg, (torch.ones(COUNT),))
    assert not found
    assert any("rounding could not be ruled out" in note and "no such run" in note for note in found.notes)
