"""More constructs, as in `constructs.py`: transforms, optimisers, outputs of many kinds, state, processes.

    python -m benchmarks.constructs --programs tests/cases/more_constructs.py
"""

import collections
import dataclasses
import functools
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch._inductor.config as inductor_config
import torch.nn as nn
import torch.nn.functional as F
import torch.utils._pytree as pytree

inductor_config.cpp.inject_relu_bug_TESTING_ONLY = os.environ.get("KIND", "compile_error") or None
torch.manual_seed(0)

CONSTRUCTS: dict[str, Callable[[], object]] = {}
C: Any = torch.compile


def construct(function: Callable[[], object]) -> Callable[[], object]:
    CONSTRUCTS[function.__name__] = function
    return function


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


@construct
def optimizer_step():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.randn(2, 4)).sum().backward()

    def step():
        optimizer.step()
        return torch.relu(net.first.weight)

    C(step)()


@construct
def train_step():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    compiled = C(step)
    compiled(torch.randn(2, 4))
    compiled(torch.randn(2, 4))


@construct
def func_jvp():
    C(lambda x, t: torch.func.jvp(lambda y: torch.relu(y.sin()), (x,), (t,)))(torch.randn(4), torch.ones(4))


@construct
def func_hessian():
    C(torch.func.hessian(lambda y: (torch.relu(y) ** 3).sum()))(torch.randn(4))


@construct
def ensemble():
    nets = [Net() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(nets)

    def call(parameters, buffers, x):
        return torch.func.functional_call(nets[0], (parameters, buffers), (x,))

    C(torch.vmap(call, in_dims=(0, 0, None)))(parameters, buffers, torch.randn(2, 4))


@construct
def per_sample_grad():
    net = Net()
    parameters = {name: value.detach() for name, value in net.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(net, parameters, (x,)).sum()

    C(torch.vmap(torch.func.grad(loss), in_dims=(None, 0)))(parameters, torch.randn(3, 4))


@construct
def forward_ad():
    import torch.autograd.forward_ad as fwd

    def f(x, t):
        with fwd.dual_level():
            return fwd.unpack_dual(torch.relu(fwd.make_dual(x, t).sin()))

    C(f)(torch.randn(4), torch.ones(4))


class Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        index = x.argsort()
        ctx.mark_non_differentiable(index)
        return torch.relu(x), x.sin(), index

    @staticmethod
    def backward(ctx, first, second, _):
        (x,) = ctx.saved_tensors
        return first * (x > 0) + second * x.cos()


@construct
def function_of_many_outputs():
    first, second, _ = C(lambda x: Split.apply(x))(torch.randn(4, requires_grad=True))
    (first + second).sum().backward()


@construct
def double_backward():
    x = torch.randn(4, requires_grad=True)

    def f(x):
        (gradient,) = torch.autograd.grad((torch.relu(x) ** 3).sum(), x, create_graph=True)
        return gradient

    C(f)(x).sum().backward()


@construct
def tensor_hook():
    def f(x):
        y = x.sin()
        y.register_hook(lambda g: torch.relu(g))
        return y.sum()

    C(f)(torch.randn(4, requires_grad=True)).backward()


@construct
def associative_scan():
    from torch._higher_order_ops.associative_scan import associative_scan as scan

    C(lambda x: scan(lambda a, b: torch.relu(a + b), x, 0, combine_mode="generic"))(torch.randn(4, 3))


@construct
def flex_score_mod():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    bias = torch.randn(2)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
    q = torch.randn(1, 2, 128, 16)

    def f(q):
        return flex_attention(
            q, q, q, score_mod=lambda s, b, h, i, j: torch.relu(s) + bias[h], block_mask=mask
        ).relu()

    C(f)(q)


@construct
def selective_checkpoint():
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    net = Net()

    def policy(context, op, *args, **kwargs):
        saved = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    C(lambda x: checkpoint(net, x, use_reentrant=False, context_fn=contexts).sum())(
        torch.randn(2, 4, requires_grad=True)
    ).backward()


@construct
def quantised_dynamic():
    import warnings

    warnings.simplefilter("ignore")
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    C(lambda x: torch.relu(net(x)))(torch.randn(2, 4))


@construct
def fake_quantise():
    scale, zero = torch.tensor(0.1), torch.tensor(0, dtype=torch.int32)
    C(lambda x: torch.relu(torch.fake_quantize_per_tensor_affine(x, scale, zero, -128, 127)).sum())(
        torch.randn(4, requires_grad=True)
    ).backward()


@construct
def int8_matmul():
    a = torch.randint(-9, 9, (32, 32), dtype=torch.int8)
    C(lambda a: torch.relu(torch._int_mm(a, a).float()))(a)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...]
    note: str = ""


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@construct
def dataclass_output():
    C(lambda x: Output(torch.relu(x), (x.sin(), x.cos()), note="n"))(torch.randn(4))


@construct
def nested_containers():
    def f(batch):
        pair, table, rest = batch["pair"], batch["table"], batch["rest"]
        return {"a": Pair(torch.relu(pair.first), pair.second), "b": [table["x"] + r for r in rest], "c": {}}

    pair = Pair(torch.randn(4), torch.randn(4))
    table = collections.OrderedDict(x=torch.randn(4))
    C(f)({"pair": pair, "table": table, "rest": [torch.randn(4), torch.randn(4)]})


@construct
def pytree_input():
    class Box:
        def __init__(self, value):
            self.value = value

    pytree.register_pytree_node(Box, lambda box: ([box.value], None), lambda parts, _: Box(*parts))
    C(lambda box: Box(torch.relu(box.value)))(Box(torch.randn(4)))


@construct
def in_place_nonleaf():
    leaf = torch.randn(4, 4, requires_grad=True)
    x = leaf * 2

    def f(x):
        x[0].mul_(3)
        return torch.relu(x).sum()

    C(f)(x).backward()


@construct
def output_is_view_of_input():
    x = torch.randn(4, 4, requires_grad=True)
    view, out = C(lambda x: (x.t()[1:], torch.relu(x)))(x)
    (view.sum() + out.sum()).backward()


@construct
def set_data():
    def f(x, y):
        with torch.no_grad():
            x.set_(torch.relu(y))
        return x + 1

    C(f)(torch.randn(4), torch.randn(4))


@construct
def object_state():
    class Counter:
        def __init__(self):
            self.calls, self.seen, self.last = 0, [], None

        def __call__(self, x):
            self.calls += 1
            self.last = torch.relu(x)
            self.seen.append(self.last * self.calls)
            return self.last

    counter = Counter()
    compiled = C(counter)
    compiled(torch.randn(4))
    compiled(torch.randn(4))


@construct
def data_dependent_split():
    torch._dynamo.config.capture_scalar_outputs = True

    def f(x, sizes):
        return [torch.relu(part) * 2 for part in x.split(sizes.tolist())]

    C(f)(torch.randn(6), torch.tensor([1, 2, 3]))


@construct
def unique():
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    C(lambda x: torch.relu(torch.unique(x.round()).sin()))(torch.randn(8))


@construct
def float_item():
    torch._dynamo.config.capture_scalar_outputs = True
    C(lambda x: torch.relu(x * x.sum().item()))(torch.randn(4))


@construct
def complex_fft():
    C(lambda x: torch.relu(torch.fft.irfft(torch.fft.rfft(x) * 1j)))(torch.randn(8))


@construct
def complex_grad():
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)
    C(lambda x: torch.relu((x * x.conj()).real).sum())(x).backward()


@construct
def nested_attention():
    parts = [torch.randn(2, 2, 8), torch.randn(3, 2, 8)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)

    def f(x):
        q = x.transpose(1, 2)
        return torch.relu(F.scaled_dot_product_attention(q, q, q)).values().sum()

    C(f)(x).backward()


@construct
def nested_made_inside():
    def f(values, offsets):
        x = torch.nested.nested_tensor_from_jagged(values, offsets)
        return torch.relu(x * 2).values().sum()

    C(f)(torch.randn(5, 3, requires_grad=True), torch.tensor([0, 2, 5])).backward()


@construct
def foreach():
    C(lambda xs: [torch.relu(x) for x in torch._foreach_mul(xs, 2.0)])([torch.randn(4), torch.randn(3)])


@construct
def module_compile():
    net = Net()
    net.compile()
    net(torch.randn(2, 4)).sum().backward()


@construct
def compiled_layers():
    net = nn.Sequential(Net(), nn.Dropout(0.5), Net())
    for layer in net:
        layer.compile(dynamic=True)
    net(torch.randn(3, 4)).sum().backward()


@construct
def bound_method():
    class Model(Net):
        def encode(self, x, *, scale=1.0):
            return self(x) * scale

    C(Model().encode)(torch.randn(2, 4), scale=2.0)


@construct
def partial_function():
    C(functools.partial(lambda x, y, k: torch.relu(x * k + y), k=3))(torch.randn(4), y=torch.randn(4))


@construct
def nested_compile():
    inner = C(lambda x: torch.relu(x.sin()))
    C(lambda x: inner(x) + inner(x.cos()))(torch.randn(4))


@torch.compiler.allow_in_graph
def opaque(x):
    return x.sin() * 2


@construct
def allow_in_graph():
    C(lambda x: torch.relu(opaque(x)))(torch.randn(4))


@construct
def allow_local_in_graph():
    @torch.compiler.allow_in_graph
    def local(x):
        return x.sin() * 2

    C(lambda x: torch.relu(local(x)))(torch.randn(4))


@construct
def disabled_inside():
    @torch.compiler.disable
    def python(x):
        return x + len(str(x.shape))

    C(lambda x: torch.relu(python(x.sin())) * 2)(torch.randn(4))


@construct
def exported_module():
    program = torch.export.export(Net(), (torch.randn(2, 4),))
    C(program.module())(torch.randn(2, 4))


@construct
def aoti_run():
    program = torch.export.export(Net(), (torch.randn(2, 4),))
    with tempfile.TemporaryDirectory() as directory:
        path = torch._inductor.aoti_compile_and_package(program, package_path=f"{directory}/net.pt2")
        torch._inductor.aoti_load_package(path)(torch.randn(2, 4))


@construct
def mutable_custom_op():
    @torch.library.custom_op("more::scale_", mutates_args={"x"})
    def scale_(x: torch.Tensor, k: float) -> None:
        x.mul_(k)

    def f(x):
        y = torch.relu(x)
        scale_(y, 2.0)
        return y + x

    C(f)(torch.randn(4))


@construct
def custom_op_with_backward():
    @torch.library.custom_op("more::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cube.register_fake(torch.empty_like)
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    C(lambda x: torch.relu(cube(x)).sum())(torch.randn(4, requires_grad=True)).backward()


@construct
def recurrent():
    lstm = nn.LSTM(4, 4, batch_first=True)
    C(lambda x: torch.relu(lstm(x)[0]).sum())(torch.randn(2, 3, 4)).backward()


@construct
def grad_scaler():
    net, scaler = Net(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = C(net)
    with torch.autocast("cpu", torch.float16):
        loss = compiled(torch.randn(2, 4)).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)


@construct
def child_process():
    pid = os.fork()
    if pid == 0:
        try:
            C(lambda x: torch.relu(x.sin()))(torch.randn(4))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@construct
def swallowed():
    try:
        C(lambda x: torch.relu(x.sin()))(torch.randn(4))
    except Exception as error:
        print(type(error).__name__)


@construct
def suppress_errors():
    torch._dynamo.config.suppress_errors = True
    C(lambda x: torch.relu(x.sin()))(torch.randn(4))


@construct
def later_call():
    compiled = C(lambda x, flag: torch.relu(x) if flag else x.sin())
    for call in range(5):
        compiled(torch.randn(4), call == 4)


@construct
def contexts_inside():
    def f(x):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            y = x @ x
        with torch.enable_grad():
            return torch.relu(y.float() + x).sum()

    C(f)(torch.randn(4, 4, requires_grad=True)).backward()


if __name__ == "__main__":
    CONSTRUCTS[sys.argv[1]]()
