"""What becomes a node of a recorded graph, and what does not."""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontend_recording import calls, capture, new_recorder, replay
from graph_equality import first_difference
from torch import nn

from torchrepro import Repro, load_bundle, save_bundle
from torchrepro.frontend.graph_breaks import Where
from torchrepro.frontend.source import Local
from torchrepro.frontend.trace.recorder import Recorder
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.graph_text.source_lines import module_of, source_of


def test_operators_functions_methods_and_attributes_have_one_form_each():
    def program(x):
        return (1 - x) + x * 2, x.add(1, alpha=2), F.relu(x), x.T, torch.sin(x), -x, x[0]

    captured = capture(program, torch.randn(2, 3))

    assert calls(captured) == ["sub", "mul", "add", "add", "relu", "getattr", "sin", "neg", "getitem"]
    nodes = [node for node in captured.graph_module.graph.nodes if node.op.startswith("call")]
    assert nodes[0].target is operator.sub
    assert nodes[3].op == "call_method"


def test_the_graph_computes_what_the_function_computes():
    def program(x, y):
        low, high = torch.chunk(x, 2, dim=1)
        best = (x @ y.T).max(dim=1)
        return low * high, best.values, best.indices, 2 / x, 2**x, x // 2, 7 % (x + 5)

    x, y = torch.randn(4, 4), torch.randn(3, 4)

    for found, expected in zip(replay(capture(program, x, y)), program(x, y), strict=True):
        assert torch.equal(found, expected)


def test_sizes_and_dtypes_are_constants_and_leave_no_node():
    seen = []

    def program(x):
        seen.append(
            (x.shape, x.size(0), x.dim(), len(x), x.dtype, x.is_floating_point(), x.numel(), x.device)
        )
        return x.reshape(x.shape[0] * x.shape[1])

    captured = capture(program, torch.randn(2, 3))

    assert seen == [
        (torch.Size([2, 3]), 2, 2, 2, torch.float32, True, 6, torch.device("cpu")),
    ]
    assert type(seen[0][0][0]) is int
    assert calls(captured) == ["reshape"]


def test_factories_are_recorded_with_their_data():
    def program(x):
        return torch.zeros(3), torch.tensor([[1, 2]]), torch.arange(4), x.new_ones(2), torch.full_like(x, 2.0)

    x = torch.randn(2)
    captured = capture(program, x)

    for found, expected in zip(replay(captured), program(x), strict=True):
        assert torch.equal(found, expected)
        assert found.dtype is expected.dtype


def test_arguments_that_fx_cannot_write_are_written_otherwise():
    def program(x):
        return x.to(float), x.type(torch.DoubleTensor), x * np.float32(2.5), x[np.int64(1)], x.view(x.shape)

    x = torch.randn(2)
    captured = capture(program, x)

    for found, expected in zip(replay(captured), program(x), strict=True):
        assert found.dtype is expected.dtype
        assert torch.equal(found, expected)
    written = write_graph(captured.graph_module)
    assert first_difference(captured.graph_module, read_graph(written.text, written.constants)) is None


def test_what_nobody_uses_is_not_in_the_graph():
    def program(x, unused):
        x.exp()
        torch.zeros(3)
        return x + 1

    captured = capture(program, torch.randn(2), torch.randn(5))

    assert calls(captured) == ["add"]
    assert [source for source, _ in captured.inputs] == [Local("x0")]
    assert captured.op_count == 1


def test_effects_stay_though_nobody_uses_their_results():
    def program(x, y):
        x.add_(1)
        y[0] = 5
        torch.rand(3)
        F.dropout(x, 0.5, training=False)
        return ()

    captured = capture(program, torch.zeros(2), torch.zeros(2))

    assert calls(captured) == ["add_", "setitem", "rand"]
    assert captured.mutated_inputs == (Local("x0"), Local("x1"))


def test_writing_a_view_of_an_input_mutates_the_input():
    captured = capture(lambda x, y: x.view(-1)[1:].mul_(y.sum()), torch.ones(2, 2), torch.ones(1))

    assert captured.mutated_inputs == (Local("x0"),)


def test_writing_what_the_graph_made_mutates_no_input():
    def program(x):
        made = x.clone()
        made += 1
        return made

    assert capture(program, torch.ones(2)).mutated_inputs == ()


def test_the_running_statistics_of_a_batch_norm_are_written_in_training_alone():
    def program(x, mean, variance):
        return F.batch_norm(x, mean, variance, training=True)

    statistics = torch.zeros(3), torch.ones(3)

    assert capture(program, torch.randn(2, 3), *statistics).mutated_inputs == (Local("x1"), Local("x2"))
    assert capture(lambda *args: F.batch_norm(*args), torch.randn(2, 3), *statistics).mutated_inputs == ()


def test_a_reversed_operator_of_two_tensors_stays_a_method():
    x, y = torch.full((2,), 3.0), torch.full((2,), 0.7)

    assert torch.equal(replay(capture(lambda x, y: x.__rdiv__(y), x, y))[0], x.__rdiv__(y))


def test_an_in_place_operation_gives_the_same_object():
    def program(x):
        made = x * 2
        assert made.add_(1) is made
        again = made
        again += 1
        assert again is made
        return made

    assert torch.equal(replay(capture(program, torch.ones(2)))[0], torch.full((2,), 4.0))


def test_one_tensor_is_one_input():
    recorder = new_recorder()
    real = torch.randn(2)
    with recorder.active():
        first = recorder.input(real, Local("a"), "a")
        assert recorder.input(real, Local("b"), "b") is first
        origin = recorder.origin_of(first)
        assert origin is not None
        assert origin.source == Local("a")
        assert recorder.owns(first)
        assert recorder.origin_of(first + 1) is None
        captured = recorder.finish([first + 1])
    assert len(captured.inputs) == 1


def test_an_input_adopted_late_still_stands_with_the_others():
    recorder = new_recorder()
    first, second = torch.ones(2), torch.ones(2)
    with recorder.active():
        x = recorder.input(first, Local("x"), "x") + 1
        y = recorder.input(second, Local("self"), "self.layers[0].weight")
        captured = recorder.finish([x * y])
    names = [node.name for node in captured.graph_module.graph.nodes if node.op == "placeholder"]
    assert names == ["x", "self_layers_0_weight"]
    assert torch.equal(replay(captured)[0], torch.full((2,), 2.0))


def test_inputs_that_share_memory_share_it_in_the_graph():
    base = torch.zeros(4)

    def program(whole, part):
        part.add_(1)
        return whole * 1

    captured = capture(program, base, base[2:])

    assert captured.mutated_inputs == (Local("x0"), Local("x1"))
    assert torch.equal(replay(captured)[0], torch.tensor([0.0, 0.0, 1.0, 1.0]))


def test_parameters_stay_parameters():
    recorder = new_recorder()
    real = nn.Parameter(torch.ones(2))
    with recorder.active():
        weight = recorder.input(real, Local("w"), "w")
        assert isinstance(weight, nn.Parameter)
        assert weight.requires_grad
        assert weight.is_leaf
        assert recorder.real_type_of(weight) is nn.Parameter
        assert recorder.real_type_of(weight * 2) is torch.Tensor
        assert not isinstance(weight * 2, nn.Parameter)


def test_attributes_that_only_fakes_have_do_not_exist():
    recorder = new_recorder()
    real = torch.ones(2)
    with recorder.active():
        x = recorder.input(real, Local("x"), "x")
        assert recorder.real_type_of(x) is torch.Tensor
        assert recorder.attribute(x, "shape") == (2,)
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'fake_mode'"):
            recorder.attribute(x, "fake_mode")


def test_constants_made_in_the_trace_may_be_read():
    def program(x):
        scale = torch.tensor(3)
        return x * scale.item() if scale > 2 else x

    assert torch.equal(replay(capture(program, torch.ones(2)))[0], torch.full((2,), 3.0))


def test_nodes_know_where_they_come_from():
    recorder = Recorder(
        lambda: (Where("outer.py", 3, "main"), Where("model.py", 7, "forward")),
        lambda: {"a": ("L['self']", nn.Module), "b": ("L['self'].encoder.fc", nn.Linear)},
    )
    real = torch.ones(2)
    with recorder.active():
        captured = recorder.finish([recorder.input(real, Local("x"), "x") + 1])
    node = captured.graph_module.graph.find_nodes(op="call_function", target=operator.add)[0]
    assert source_of(node) == "model.py:7 in forward: <no source>"
    assert module_of(node) == "encoder.fc"
    assert tuple(node.meta["example_value"].shape) == (2,)


def test_a_graph_survives_being_text():
    def program(x, w):
        with torch.no_grad():
            y = F.linear(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = F.max_pool2d((x @ w)[None], 2)
        x[:, 1:] = 0
        x **= 2
        return y, z, x.to(torch.float64), x.split(1)[0], x[..., None, ::2], 2**x, torch.unique_consecutive

    captured = capture(lambda x, w: program(x, w)[:-1], torch.randn(4, 4), torch.randn(4, 4))
    written = write_graph(captured.graph_module)

    assert written.needs_trust == ()
    assert first_difference(captured.graph_module, read_graph(written.text, written.constants)) is None


def test_a_graph_survives_a_bundle(tmp_path):
    captured = capture(
        lambda x, w: F.linear(x, w).relu_(), torch.randn(2, 2), nn.Parameter(torch.randn(2, 2))
    )
    inputs = tuple(real for _, real in captured.inputs)
    save_bundle(Repro(captured.graph_module, inputs), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle")

    assert torch.equal(loaded.graph(*loaded.inputs)[0], replay(captured)[0])


@torch.library.custom_op("torchrepro_recorder::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_operators_of_the_user_are_recorded():
    captured = capture(lambda x: twice(x) + torch.ops.aten.relu(x), torch.ones(2))

    assert torch.equal(replay(captured)[0], torch.full((2,), 3.0))


def test_modules_of_torch_can_run_natively():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.GELU()).eval()
    recorder = new_recorder()
    x = torch.randn(2, 2, 8)
    with recorder.active():
        state = {
            name: recorder.input(value, Local(name), name)
            for name, value in [*model.named_parameters(), *model.named_buffers()]
        }
        fake = recorder.input(x, Local("x"), "x")
        captured = recorder.finish([torch.func.functional_call(model, state, (fake,))])
    assert torch.equal(replay(captured)[0], model(x))
