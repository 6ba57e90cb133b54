"""One small program for each construct that torch.compile supports, with inductor's own bug in `relu`.

    python constructs.py NAME       with KIND=compile_error (default) or KIND=accuracy

`python -m benchmarks.constructs` says for which of them the failure is kept, and whether it can be checked.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch.nn as nn
import torch.nn.functional as F

KIND = os.environ.get("KIND", "compile_error") or None
inductor_config.cpp.inject_relu_bug_TESTING_ONLY = KIND
torch.manual_seed(0)

CONSTRUCTS: dict[str, Callable[[], object]] = {}
C: Any = torch.compile


def construct(function: Callable[[], object]) -> Callable[[], object]:
    CONSTRUCTS[function.__name__] = function
    return function


@construct
def base():
    C(lambda x: torch.relu(x.sin()))(torch.randn(4))


class BwRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.relu(g) * x


@construct
def backward_ahead():
    x = torch.randn(4, requires_grad=True)
    C(lambda x: BwRelu.apply(x).sin().sum())(x).backward()


@construct
def backward_lazy():
    import torch._functorch.config as fc

    fc.force_non_lazy_backward_lowering = False
    x = torch.randn(4, requires_grad=True)

    def f(x):
        return BwRelu.apply(x).sin()

    C(f, dynamic=True)(x).sum().backward()


@construct
def dynamic():
    C(lambda x: torch.relu(x.sin()), dynamic=True)(torch.randn(4, 3))


@construct
def dynamic_grad():
    C(lambda x: torch.relu(x.sin()).sum(), dynamic=True)(torch.randn(4, 3, requires_grad=True)).backward()


@construct
def unbacked():
    x = torch.randn(4, 3)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    C(lambda x: torch.relu(x.sin()))(x)


@construct
def mark_dynamic():
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=100)
    C(lambda x: torch.relu(x.sin()))(x)


@construct
def item_unbacked():
    torch._dynamo.config.capture_scalar_outputs = True

    def f(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k < 100)
        return torch.relu(torch.zeros(k) + x[0])

    C(f)(torch.randn(4), torch.tensor(5))


@construct
def nonzero_unbacked():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    C(lambda x: torch.relu(x[x.nonzero().squeeze(1)]))(torch.randn(4))


@construct
def nested_region():
    @torch.compiler.nested_compile_region
    def g(x):
        return torch.relu(x.sin())

    C(lambda x: g(g(x)))(torch.randn(4))


@construct
def checkpoint():
    from torch.utils.checkpoint import checkpoint as cp

    lin = nn.Linear(4, 4)

    def f(x):
        return cp(lambda y: torch.relu(lin(y)).sin(), x, use_reentrant=False).sum()

    C(f)(torch.randn(2, 4, requires_grad=True)).backward()


@construct
def compiled_autograd():
    torch._dynamo.config.compiled_autograd = True
    x = torch.randn(4, requires_grad=True)

    def f(x):
        layer = BwRelu.apply(x).sum()
        layer.backward()
        return layer

    C(f)(x)


@construct
def compiled_autograd2():
    torch._dynamo.config.compiled_autograd = True
    x = torch.randn(4, requires_grad=True)
    C(lambda x: BwRelu.apply(x).sum())(x).backward()


@construct
def func_grad():
    C(lambda x: torch.func.grad(lambda y: torch.relu(y.sin()).sum())(x))(torch.randn(4))


@construct
def func_vmap():
    C(torch.func.vmap(lambda y: torch.relu(y.sin())))(torch.randn(4, 3))


@construct
def func_jacrev():
    C(torch.func.jacrev(lambda y: torch.relu(y.sin())))(torch.randn(4))


@construct
def func_outside():
    torch.func.vmap(C(lambda y: torch.relu(y.sin())))(torch.randn(4, 3))


def pg():
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    return dist


@construct
def dtensor():
    pg()
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    m = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.randn(4, 4), m, [Shard(0)])
    C(lambda x: torch.relu(x.sin()))(x)


@construct
def dtensor_param():
    pg()
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor, init_device_mesh

    m = init_device_mesh("cpu", (1,))
    layer = distribute_module(nn.Linear(4, 4), m)
    C(lambda x: torch.relu(layer(x)).to_local().sum())(
        distribute_tensor(torch.randn(2, 4), m, [Replicate()])
    ).backward()


@construct
def collective():
    pg()
    import torch.distributed as dist
    import torch.distributed._functional_collectives as fc

    C(lambda x: torch.relu(fc.all_reduce(x, "sum", dist.group.WORLD)))(torch.randn(4))


@construct
def group_arg():
    d = pg()
    import torch.distributed._functional_collectives as fc

    g = d.new_group([0])
    C(lambda x, g: torch.relu(fc.all_reduce(x, "sum", g)))(torch.randn(4), g)


class Net(nn.Module):
    """A module of the user's. Dynamo skips frames of torch.nn, so it captures no `Sequential` after a break."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@contextmanager
def two_ranks():
    """Run the body on two gloo ranks: in this process, and in a fork of it."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as directory:
        other = os.fork()
        dist.init_process_group("gloo", f"file://{directory}/store", rank=0 if other else 1, world_size=2)
        try:
            yield
        except Exception:
            if other:
                raise
            traceback.print_exc()
        finally:
            if not other:
                os._exit(0)
            os.waitpid(other, 0)
            dist.destroy_process_group()


@construct
def ddp():
    from torch.nn.parallel import DistributedDataParallel as D

    with two_ranks():
        C(D(Net()))(torch.randn(2, 4)).sum().backward()


@construct
def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with two_ranks():
        m = Net()
        fully_shard(m, mesh=init_device_mesh("cpu", (2,)))
        C(m)(torch.randn(2, 4)).sum().backward()


@construct
def nested_jagged():
    x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)
    C(lambda x: torch.relu(x.sin()))(x)


@construct
def nested_jagged_grad():
    x = torch.nested.nested_tensor(
        [torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged, requires_grad=True
    )
    C(lambda x: torch.relu(x.sin()).values().sum())(x).backward()


@construct
def nested_strided():
    x = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    C(lambda x: torch.relu(torch.nested.to_padded_tensor(x, 0.0)))(x)


@construct
def masked():
    import warnings

    warnings.simplefilter("ignore")
    from torch.masked import masked_tensor

    x = masked_tensor(torch.randn(4), torch.tensor([True, False, True, True]))
    C(lambda x: torch.relu(x.sin().to_tensor(0.0)))(x)


@construct
def two_tensor():
    from torch.testing._internal.two_tensor import TwoTensor

    C(lambda x: torch.relu(x.sin()))(TwoTensor(torch.randn(4), torch.randn(4)))


class Q8(torch.Tensor):
    @staticmethod
    def __new__(cls, q, s):
        return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=torch.float32)

    def __init__(self, q, s):
        self.q = q
        self.s = s

    def __repr__(self):
        return "Q8"  # torch's structured trace, which pytest turns on, prints it as a fake tensor

    def __tensor_flatten__(self):
        return ["q", "s"], None

    @staticmethod
    def __tensor_unflatten__(inner, ctx, size, stride):
        return Q8(inner["q"], inner["s"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        import torch.utils._pytree as p

        def d(a):
            return (a.q.float() * a.s) if isinstance(a, Q8) else a

        if func is torch.ops.aten.detach.default:
            return Q8(args[0].q, args[0].s)  # what a Parameter asks of its tensor
        return func(*p.tree_map(d, args), **p.tree_map(d, kwargs or {}))

    __torch_function__ = torch._C._disabled_torch_function_impl


@construct
def subclass_user():
    w = Q8(torch.randint(-9, 9, (4, 4), dtype=torch.int8), torch.tensor(0.1))
    C(lambda x, w: torch.relu(F.linear(x, w)))(torch.randn(2, 4), w)


@construct
def subclass_user_param():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(
        Q8(torch.randint(-9, 9, (4, 4), dtype=torch.int8), torch.tensor(0.1)), requires_grad=False
    )
    C(lambda x: torch.relu(layer(x)))(torch.randn(2, 4))


@construct
def torch_function_subclass():
    class S(torch.Tensor):
        pass

    C(lambda x: torch.relu(x.sin()))(torch.randn(4).as_subclass(S))


@construct
def generator():
    g = torch.Generator().manual_seed(3)
    C(lambda x, g: torch.relu(x + torch.rand(4, generator=g)))(torch.randn(4), g)


@construct
def symint_input():
    f = C(lambda x, n: torch.relu(x * n), dynamic=True)
    f(torch.randn(4), 7)


@construct
def symfloat_input():
    f = C(lambda x, n: torch.relu(x * n), dynamic=True)
    f(torch.randn(4), 2.5)


@construct
def meta():
    C(lambda x: torch.relu(x.sin()))(torch.randn(4, device="meta"))


@construct
def zero_element():
    C(lambda x, y: (torch.relu(x.sin()), torch.relu(y)))(torch.randn(0, 3), torch.randn(3))


@construct
def huge_stride():
    x = torch.empty(1 << 28).as_strided((4, 4), (1 << 25, 1 << 20))
    x.fill_(1.0)
    C(lambda x: torch.relu(x.sin()))(x)


@construct
def over_4gib():
    x = torch.empty(5 * (1 << 30), dtype=torch.uint8)
    y = x[(9 << 29) : (9 << 29) + 64]
    y.fill_(3)
    z = x[:64]
    z.fill_(1)
    C(lambda a, b: torch.relu(a.float() + b.float()))(y, z)


@construct
def expanded():
    C(lambda x: torch.relu(x.sin()).sum())(torch.randn(1, 4).expand(1000, 4))


@construct
def overlapping():
    C(lambda x: torch.relu(x.sin()))(torch.randn(10).as_strided((4, 4), (1, 2)))


@construct
def channels_last_3d():
    C(lambda x: torch.relu(x.sin()))(torch.randn(2, 3, 4, 4, 4).to(memory_format=torch.channels_last_3d))


@construct
def named():
    import warnings

    warnings.simplefilter("ignore")
    C(lambda x: torch.relu(x))(torch.randn(2, 3, names=("N", "C")))


@construct
def mkldnn():
    C(lambda x: torch.relu(x.to_dense()))(torch.randn(4, 4).to_mkldnn())


@construct
def nonleaf_view():
    b = torch.randn(4, 4, requires_grad=True)
    x = (b * 2)[1:3].t()
    C(lambda x: torch.relu(x.sin()).sum())(x).backward()


@construct
def param_hooks():
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda g: g * 2)
    layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    C(lambda x: torch.relu(layer(x)).sum())(torch.randn(2, 4)).backward()


@construct
def module_hooks():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda m, a, o: torch.relu(o))
    layer.register_full_backward_hook(lambda m, gi, go: None)
    C(layer)(torch.randn(2, 4)).sum().backward()


@construct
def tied():
    e = nn.Embedding(5, 4)
    layer = nn.Linear(4, 5, bias=False)
    layer.weight = e.weight

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = e
            s.layer = layer

        def forward(s, i):
            return torch.relu(s.layer(s.e(i))).sum()

    C(M())(torch.tensor([1, 2])).backward()


@construct
def lazy():
    m = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    C(m)(torch.randn(2, 3))


@construct
def parametrized():
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    C(lambda x: torch.relu(layer(x)).sum())(torch.randn(2, 4)).backward()


@construct
def spectral():
    layer = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    C(lambda x: torch.relu(layer(x)).sum())(torch.randn(2, 4)).backward()


@construct
def autocast():
    layer = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        C(lambda x: torch.relu(layer(x)).sum())(torch.randn(2, 4)).backward()


@construct
def inference():
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        C(lambda x: torch.relu(layer(x)))(torch.randn(2, 4))


@construct
def dropout():
    C(lambda x: torch.relu(F.dropout(x, 0.5)).sum())(torch.randn(8, requires_grad=True)).backward()


@construct
def complex_conj():
    x = torch.randn(4, dtype=torch.complex64).conj()
    C(lambda x: torch.relu(x.real))(x)


@construct
def sparse_coo():
    x = torch.eye(4).to_sparse()
    C(lambda x, y: torch.relu(torch.sparse.mm(x, y)))(x, torch.randn(4, 4))


@construct
def sparse_csr():
    x = torch.eye(4).to_sparse_csr()
    C(lambda x, y: torch.relu(x @ y))(x, torch.randn(4, 4))


@construct
def quantized():
    x = torch.quantize_per_tensor(torch.randn(4), 0.1, 0, torch.qint8)
    C(lambda x: torch.relu(x.dequantize()))(x)


@construct
def fp8():
    x = torch.randn(4).to(torch.float8_e4m3fn)
    C(lambda x: torch.relu(x.float()))(x)


@construct
def uint16():
    x = torch.ones(4, dtype=torch.uint16)
    C(lambda x: torch.relu(x.float()))(x)


@construct
def cond():
    C(lambda x: torch.cond(x.sum() < 0, lambda y: torch.relu(y.sin()), lambda y: y.cos(), (x,)))(
        torch.randn(4)
    )


@construct
def while_loop():
    from torch._higher_order_ops.while_loop import while_loop as wl

    C(lambda x: wl(lambda i, y: i < 3, lambda i, y: (i + 1, torch.relu(y.sin())), (torch.tensor(0), x)))(
        torch.randn(4)
    )


@construct
def scan():
    from torch._higher_order_ops.scan import scan as sc

    C(lambda x: sc(lambda c, y: (torch.relu(c + y), c.clone()), torch.zeros(3), x))(torch.randn(4, 3))


@construct
def flex():
    from torch.nn.attention.flex_attention import flex_attention as fa

    q = torch.randn(1, 2, 128, 16)
    C(lambda q: torch.relu(fa(q, q, q)))(q)


@construct
def custom_op():
    @torch.library.custom_op("adv::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @twice.register_fake
    def _(x):
        return torch.empty_like(x)

    C(lambda x: torch.relu(twice(x)))(torch.randn(4))


@construct
def numpy_input():
    import numpy as np

    C(lambda x: np.maximum(x, 0) + torch.relu(torch.as_tensor(x)).numpy())(np.ones(4, dtype=np.float32))


@construct
def dataclass_input():
    import dataclasses

    @dataclasses.dataclass
    class D:
        x: torch.Tensor
        k: int

    C(lambda d: torch.relu(d.x * d.k))(D(torch.randn(4), 3))


@construct
def alias_inputs():
    b = torch.randn(8)
    C(lambda x, y: torch.relu(x.add_(1) + y))(b[:4], b[2:6])


@construct
def mutation():
    C(lambda x: x.copy_(torch.relu(x)))(torch.randn(4))


@construct
def buffer_mutation():
    m = nn.Sequential(nn.BatchNorm1d(4), nn.ReLU())
    C(m)(torch.randn(3, 4))


@construct
def graph_break():
    def f(x):
        y = x.sin()
        print("break")
        return torch.relu(y)

    C(f)(torch.randn(4))


@construct
def closure_tensor():
    w = torch.randn(1000, 100)
    C(lambda x: torch.relu(x @ w))(torch.randn(2, 1000))


@construct
def freezing():
    inductor_config.freezing = True
    layer = nn.Linear(4, 4).eval()
    with torch.no_grad():
        C(lambda x: torch.relu(layer(x)))(torch.randn(2, 4))


@construct
def script_object():
    class O:
        def __init__(s):
            s.k = 3

    o = O()
    C(lambda x, o: torch.relu(x * o.k))(torch.randn(4), o)


try:
    from torch._opaque_base import OpaqueBase
except ImportError:  # before torch 2.12 any class could be registered
    OpaqueBase = object


class Factor(OpaqueBase):
    def __init__(self, k):
        self.k = k


@construct
def opaque_type():
    from torch._library.opaque_object import register_opaque_type

    register_opaque_type(Factor, typ="reference")

    @torch.library.custom_op("adv::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: Factor) -> torch.Tensor:
        return x * factor.k

    @scaled.register_fake
    def _(x, factor):
        return torch.empty_like(x)

    C(lambda x, factor: torch.relu(scaled(x, factor)))(torch.randn(4), Factor(3))


@construct
def inplace_view_input():
    x = torch.randn(4, 4)
    v = x.t()
    C(lambda v: torch.relu(v).add_(v))(v)


@construct
def int_bool_mix():
    C(lambda x, m, s: torch.relu(x.masked_fill(m, 0.0)) * len(s))(
        torch.randn(4), torch.tensor([True] * 4), "abc"
    )


@construct
def requires_grad_int_output():
    C(lambda x: (torch.relu(x), x.argmax(), None, 3))(torch.randn(4, requires_grad=True))


@construct
def saved_tensor_hooks():
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        C(lambda x: torch.relu(x.sin()).sum())(torch.randn(4, requires_grad=True)).backward()


@construct
def dispatch_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    class M(TorchDispatchMode):
        def __torch_dispatch__(s, f, types, args=(), kw=None):
            return f(*args, **(kw or {}))

    with M():
        C(lambda x: torch.relu(x.sin()))(torch.randn(4))


@construct
def function_mode():
    from torch.overrides import TorchFunctionMode

    class M(TorchFunctionMode):
        def __torch_function__(s, f, types, args=(), kw=None):
            return f(*args, **(kw or {}))

    with M():
        C(lambda x: torch.relu(x.sin()))(torch.randn(4))


@construct
def default_device():
    torch.set_default_device("cpu")
    C(lambda x: torch.relu(x + torch.ones(4)))(torch.randn(4))


@construct
def cudagraph_mode():
    C(lambda x: torch.relu(x.sin()), mode="reduce-overhead")(torch.randn(4))


@construct
def max_autotune():
    C(lambda x: torch.relu(x @ x), mode="max-autotune-no-cudagraphs")(torch.randn(32, 32))


@construct
def cpp_wrapper():
    inductor_config.cpp_wrapper = True
    C(lambda x: torch.relu(x.sin()))(torch.randn(4))


@construct
def thread_compile():
    import threading

    err = []

    def go():
        inductor_config.cpp.inject_relu_bug_TESTING_ONLY = KIND  # each thread has settings of its own
        try:
            C(lambda x: torch.relu(x.sin()))(torch.randn(4))
        except Exception as e:
            err.append(e)

    th = threading.Thread(target=go)
    th.start()
    th.join()
    for each in err:
        raise each


@construct
def export_aoti():
    ep = torch.export.export(nn.ReLU(), (torch.randn(4),))
    torch._inductor.aoti_compile_and_package(ep)


@construct
def tensor_attr_grad():
    x = torch.randn(4, requires_grad=True)
    x.sum().backward()
    C(lambda x: torch.relu(x.grad * 2))(x)


@construct
def unusual_names():
    ns = {}
    exec("def f(self_, class_):\n    return {'ключ': (class_+self_).relu(), \"q'uote\\n\": 1}", ns)
    C(ns["f"])(torch.randn(4), torch.randn(4))


@construct
def weights_half_param():
    m = nn.Linear(4, 4).bfloat16()
    C(lambda x: torch.relu(m(x)))(torch.randn(2, 4).bfloat16())


@construct
def long_run_third_call():
    f = C(lambda x: torch.relu(x.sin()) if x.shape[0] > 5 else x.cos())
    f(torch.randn(3))
    f(torch.randn(4))
    f(torch.randn(9))


if __name__ == "__main__":
    CONSTRUCTS[sys.argv[1]]()
