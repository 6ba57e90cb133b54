"""Cloning keeps what a run could notice, and leaves the original alone."""

from __future__ import annotations

import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing._internal.two_tensor import TwoTensor

from torchrepro.judge.clone import clone_inputs, clone_module
from torchrepro.nouns.errors import CannotSerialise

both = pytest.mark.parametrize("dtype", [None, torch.float64], ids=["as is", "float64"])


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@st.composite
def windows_on_storages(draw: st.DrawFn) -> list[torch.Tensor]:
    dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.complex64])
    bases = []
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(dtypes)
        bases.append(torch.arange(24).to(dtype))
    tensors = []
    for _ in range(draw(st.integers(1, 6))):
        base = draw(st.sampled_from(bases))
        size = draw(st.lists(st.integers(0, 3), max_size=3))
        stride = [draw(st.integers(0, 3)) for _ in size]
        tensors.append(base.as_strided(size, stride, draw(st.integers(0, 4))))
    return tensors + draw(st.lists(st.sampled_from(tensors), max_size=2))


@settings(max_examples=60, deadline=None)
@given(windows_on_storages(), st.sampled_from([None, torch.float64]))
def test_any_set_of_views_has_the_same_alias_structure_after_cloning(
    tensors: list[torch.Tensor], dtype: torch.dtype | None
) -> None:
    before = [tensor.tolist() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    clones = clone_inputs(tensors, dtype=dtype)
    for original, clone in zip(tensors, clones, strict=True):
        assert clone.size() == original.size()
        assert clone.stride() == original.stride()
        assert clone.storage_offset() == original.storage_offset()
        assert clone.tolist() == original.tolist()
        assert _storage(clone) not in {_storage(tensor) for tensor in tensors}
    for i in range(len(tensors)):
        for j in range(len(tensors)):
            assert (clones[i] is clones[j]) == (tensors[i] is tensors[j])
            assert (_storage(clones[i]) == _storage(clones[j])) == (
                _storage(tensors[i]) == _storage(tensors[j])
            )
    for clone in clones:
        clone.as_strided((clone.untyped_storage().nbytes() // clone.element_size(),), (1,), 0).zero_()
    assert [tensor.tolist() for tensor in tensors] == before
    assert [tensor._version for tensor in tensors] == versions


@both
def test_a_write_through_one_clone_is_seen_through_the_other(dtype: torch.dtype | None) -> None:
    base = torch.zeros(4, 4)
    whole, column = clone_inputs((base, base[:, 1]), dtype=dtype)
    column.fill_(7)
    assert whole[:, 1].tolist() == [7.0] * 4
    assert base.sum() == 0


@both
def test_views_stay_views_of_one_tensor_for_autograd(dtype: torch.dtype | None) -> None:
    base = torch.randn(2, 4)
    x, y, whole = clone_inputs((base[0], base[:, 2], base), dtype=dtype)
    assert [view._base is whole for view in (x, y)] == [True, True]
    assert whole.shape == (2, 4)
    x.add_(torch.ones(4, dtype=x.dtype, requires_grad=True))
    assert y.requires_grad
    assert not base.requires_grad


@both
def test_a_complex_tensor_and_its_imaginary_part_stay_one_storage(dtype: torch.dtype | None) -> None:
    number = torch.tensor([1 + 2j, 3 - 4j])
    whole, part = clone_inputs((number, number.imag), dtype=dtype)
    part.fill_(9)
    assert whole.imag.tolist() == [9.0, 9.0]


@both
def test_leaf_non_leaf_parameter_and_grad_are_kept(dtype: torch.dtype | None) -> None:
    leaf = torch.randn(3, requires_grad=True)
    inner = leaf * 2
    parameter = torch.nn.Parameter(torch.randn(3))
    parameter.grad = torch.ones(3)
    parameter.tag = "kept"  # type: ignore[attr-defined]
    a, b, p = clone_inputs((leaf, inner, parameter), dtype=dtype)
    assert a.is_leaf
    assert a.requires_grad
    assert b.requires_grad
    assert not b.is_leaf
    b.mul_(2)  # a non-leaf may be written to in place, a view of a leaf may not
    b.retain_grad()
    b.sum().backward()
    assert b.grad is not None
    assert leaf.grad is None
    assert isinstance(p, torch.nn.Parameter)
    assert p.tag == "kept"
    assert torch.equal(p.grad, torch.ones(3, dtype=dtype))
    assert p.grad is not parameter.grad


@both
def test_lazy_bits_and_special_tensors_survive(dtype: torch.dtype | None) -> None:
    number = torch.randn(3, dtype=torch.complex64)
    conjugate, negative = number.conj(), number.conj().imag
    zero = torch._efficientzerotensor((2, 3))
    sparse, csr = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()
    c, n, z, s, r, e = clone_inputs(
        (conjugate, negative, zero, sparse, csr, torch.empty(2, device="meta")), dtype=dtype
    )
    assert c.is_conj()
    assert n.is_neg()
    assert z._is_zerotensor()
    assert torch.equal(c.to(torch.complex64), conjugate)
    assert torch.equal(n.float(), negative)
    assert s.layout is torch.sparse_coo
    assert r.layout is torch.sparse_csr
    assert torch.equal(s.to_dense().float(), torch.eye(3))
    assert torch.equal(r.to_dense().float(), torch.eye(3))
    assert e.is_meta
    assert s.dtype == c.real.dtype == z.dtype == (dtype or torch.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantised_tensors_and_inference_tensors_are_cloned() -> None:
    quantised = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    with torch.inference_mode():
        inference = torch.randn(3)
    q, i, normal = clone_inputs((quantised, inference, torch.ones(2)), dtype=torch.float64)
    assert torch.equal(q.int_repr(), quantised.int_repr())
    assert i.is_inference()
    assert i.dtype is torch.float64
    assert not normal.is_inference()


@both
def test_a_wrapper_subclass_is_rebuilt_from_cloned_parts(dtype: torch.dtype | None) -> None:
    wrapped = TwoTensor(torch.ones(3), torch.zeros(3))
    clone = clone_inputs(wrapped, dtype=dtype)
    assert type(clone) is TwoTensor
    clone.a.fill_(5)
    assert wrapped.a.tolist() == [1.0] * 3
    assert clone.a.dtype == (dtype or torch.float32)


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Batch:
    data: torch.Tensor
    label: str = "x"


def test_containers_are_rebuilt_as_what_they_were() -> None:
    transformers = pytest.importorskip("transformers")
    tensor = torch.ones(2)
    values = {
        "pair": Pair(tensor, [tensor]),
        "batch": Batch(tensor),
        "ordered": OrderedDict(a=tensor),
        "output": transformers.modeling_outputs.BaseModelOutput(last_hidden_state=tensor),
        "array": np.ones(3, dtype=np.float32),
        "size": torch.Size([2]),
    }
    made = clone_inputs(values, dtype=torch.float64)
    assert isinstance(made["pair"], Pair)
    assert isinstance(made["batch"], Batch)
    assert type(made["output"]) is type(values["output"])
    shared = made["pair"].left
    assert shared.dtype is torch.float64
    assert made["pair"].right[0] is shared
    assert made["batch"].data is shared
    assert made["ordered"]["a"] is shared
    assert made["output"].last_hidden_state is shared
    assert made["output"]["last_hidden_state"] is shared
    made["array"][:] = 0
    assert values["array"].sum() == 3


def test_generators_go_on_from_the_same_state_and_independently() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    clone = clone_inputs([generator])[0]
    expected = torch.rand(4, generator=clone)
    assert torch.equal(torch.rand(4, generator=generator), expected)


def test_what_cannot_be_copied_is_shared_and_said() -> None:
    lock = threading.Lock()
    shared: list[str] = []
    made = clone_inputs({"lock": lock, "data": [torch.ones(1)]}, shared=shared)
    assert made["lock"] is lock
    assert len(shared) == 1
    assert "input['lock'] (lock) is shared with the original" in shared[0]


def test_a_container_that_holds_itself_is_no_trouble() -> None:
    value: list[object] = [torch.ones(1)]
    value.append(value)
    made = clone_inputs(value)
    assert made[1] is made
    assert made[0] is not value[0]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.1))
        self.plain = [torch.ones(2), self.embedding.weight.detach()[0]]

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(index)) * self.scale


@both
def test_a_module_gets_parameters_of_its_own_and_tied_ones_stay_tied(dtype: torch.dtype | None) -> None:
    module = Tied()
    calls: list[str] = []
    module.register_forward_hook(lambda *_: calls.append("hook"))
    state = torch.get_rng_state()
    clone = clone_module(module, dtype=dtype)
    assert torch.equal(torch.get_rng_state(), state)
    assert clone.head.weight is clone.embedding.weight
    assert clone.embedding.weight is not module.embedding.weight
    assert {t.dtype for t in [*clone.parameters(), *clone.buffers(), *clone.plain]} == {
        dtype or torch.float32
    }
    assert _storage(clone.plain[1]) == _storage(clone.embedding.weight)
    with torch.no_grad():
        clone.embedding.weight.zero_()
    assert module.embedding.weight.abs().sum() > 0
    clone(torch.tensor([1]))
    assert calls == ["hook"]


def test_an_lstm_in_float64_uses_its_own_flat_weights() -> None:
    module = torch.nn.LSTM(3, 4, num_layers=2)
    clone = clone_module(module, dtype=torch.float64)
    x = torch.randn(2, 1, 3)
    expected = module.double()(x.double())[0]
    assert torch.equal(clone(x.double())[0], expected)


def test_a_module_with_a_cached_non_leaf_can_be_copied() -> None:
    module = torch.nn.Linear(2, 2)
    module.cache = module.weight * 2  # type: ignore[assignment]
    clone = clone_module(module, dtype=torch.float64)
    assert clone.cache.dtype is torch.float64
    assert clone.cache.requires_grad


def test_a_module_that_cannot_be_copied_names_the_attribute() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(CannotSerialise, match=r"'0\.lock' \(lock\)"):
        clone_module(module)
