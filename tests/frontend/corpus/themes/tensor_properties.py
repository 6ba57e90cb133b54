"""Attributes of tensors: what they are, not what they contain."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


@case
def shape_and_dimensions(a, b):
    return a.shape, a.ndim, a.dim(), b.numel(), b.nelement(), a.size(0), b.size(-1), a.size()


@case
def dtype_and_device(a, b):
    return (
        torch.zeros(2, dtype=a.dtype, device=b.device),
        a.dtype,
        b.device,
        a.layout,
        a.device.type,
        a.is_cuda,
    )


@case
def kind_of_numbers(a, b):
    if a.is_floating_point() and not b.is_complex():
        return a + b, torch.is_floating_point(a), a.dtype.is_floating_point, b.is_signed()
    return a - b


@case
def branch_on_the_dtype(a, b):
    if a.dtype == torch.float32:
        return a.double() + b
    elif a.dtype in (torch.float16, torch.bfloat16):
        return b
    return a


@case
def branch_on_the_device(a, b):
    if a.device.type == "cuda":
        return a
    return b + (1 if a.device == torch.device("cpu") else 2)


@case
def branch_on_the_shape(a, b):
    if a.shape[0] > 4:
        return a + b
    if a.shape == b.shape:
        return a * b
    return a


@case
def sizes_in_arithmetic(a, b):
    n, m = a.shape
    return a.view(n * m), b.sum() / (n * m) ** 0.5, torch.arange(n) % m, m // 2


@case
def element_size_and_strides(a, b):
    return a.element_size(), b.stride(), a.stride(0), b.storage_offset(), a.itemsize, a.nbytes


@case
def contiguity(a, b):
    c = a.t()
    return c.is_contiguous(), c.contiguous(), b.is_contiguous(memory_format=torch.contiguous_format)


@case
def transposed_properties(a, b):
    return a.T, b.mT, a.H, b[None].mH


@case(make=lambda size: (torch.randn(size, 4, dtype=torch.complex64), torch.randn(size, 4)))
def real_and_imaginary(a, b):
    return a.real + b, a.imag, a.H, a.is_complex(), a.angle(), torch.view_as_real(a)


@case(make=lambda size: (torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)))
def autograd_properties(a, b):
    c = a * b
    return c.requires_grad, a.is_leaf, c.is_leaf, a.grad is None, b.grad_fn is None, c


@case(breaks=None)
def requires_grad_is_set_inside(a, b):
    c = a.clone()
    c.requires_grad_(True)
    return (c * b).requires_grad, c.detach().requires_grad


@case
def layout_predicates(a, b):
    return a.is_sparse, a.is_quantized, a.is_meta, a.is_mkldnn, torch.is_tensor(a), torch.is_tensor(3)


@case
def isinstance_of_tensors(a, b):
    return (
        isinstance(a, torch.Tensor),
        isinstance(b, (int, torch.Tensor)),
        type(a) is torch.Tensor,
        isinstance(a, list),
    )


@case(breaks=None)
def identity_of_tensors(a, b):
    c = a
    return c is a, a is b, a is not b, id(a) == id(c), c


@case
def hasattr_of_tensors(a, b):
    return hasattr(a, "shape"), hasattr(a, "no_such_thing"), hasattr(b, "sum"), a + b


@case(breaks=1)
def an_attribute_set_on_a_tensor(a, b):
    c = a + b
    c.scale = 3
    return c * c.scale


@case
def element_count_of_an_empty_tensor(a, b):
    empty = a[:0]
    return empty.numel() == 0, empty.shape, a + b if empty.numel() == 0 else a


@case
def memory_formats(a, b):
    image = a[None, None].to(memory_format=torch.channels_last)
    return image.is_contiguous(memory_format=torch.channels_last), image, b


@case
def size_with_a_negative_index(a, b):
    return a.view(*a.shape[:-1], 2, a.shape[-1] // 2), b.shape[-2:], b.shape[::-1]


@case
def format_of_a_shape(a, b):
    text = f"{a.shape} {tuple(b.shape)} {a.dtype}"
    return text, a + len(text)


@case(make=lambda size: (torch.randn(size, 4).t(), torch.randn(4, size)))
def strided_arguments(a, b):
    return a + b, a.is_contiguous(), a.reshape(-1), a


@case(make=lambda size: (torch.nn.Parameter(torch.randn(size, 4)), torch.randn(size, 4)))
def a_parameter_as_argument(a, b):
    return a * b, isinstance(a, torch.nn.Parameter), type(a).__name__


@case(breaks=None)
def data_attribute_is_written(a, b):
    c = a.clone()
    c.data = b + 1
    return c
