"""Whole calls: the program sees the compiled call alone; what differs from plain Python is kept."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from faulty_backends import wrong
from torch import nn

from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.catch import whole_calls
from torchrepro.catch.backend import backend
from torchrepro.catch.session import Session
from torchrepro.catch.torch_hooks import watch
from torchrepro.nouns.errors import AccuracyError
from torchrepro.nouns.repro import Place
from torchrepro.nouns.verdict import Kind

COUNT = 0
LOG: list[int] = []
SCALE = torch.ones(4)


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    global COUNT
    torch._dynamo.reset()
    COUNT = 0
    LOG.clear()
    SCALE.fill_(1)
    torch.manual_seed(0)
    random.seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with watch(whole=True, out=tmp_path / "out") as opened:
        yield opened


def kinds(session: Session) -> list[Kind]:
    manifests = [read_manifest(path) for path in session.kept]
    assert all(manifest.expected for manifest in manifests)
    return [manifest.expected.kind for manifest in manifests if manifest.expected]


def deaf(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A compiler whose code never raises."""
    return lambda *args: (torch.zeros(2),)


class Training(nn.Module):
    """State of every sort: counters, lists, buffers, running statistics, what the last call left."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.steps = 0
        self.history: list[int] = []
        self.last: torch.Tensor | None = None
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.history.append(self.steps)
        h = torch.relu(self.norm(self.linear(x)))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0))
        self.last = h.detach()
        return h + x


def trained() -> list[Any]:
    torch.manual_seed(0)
    model = Training()
    compiled = torch.compile(model, backend="aot_eager")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for _ in range(2):
        optimiser.zero_grad()
        loss = compiled(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimiser.step()
        seen += [loss.detach(), model.steps, list(model.history), model.last, torch.rand(1)]
        seen += [value.clone() for value in model.state_dict().values()]
        seen += [parameter.grad for parameter in model.parameters()]
        seen += [value._version for value in (model.mean, model.linear.weight)]
    return seen


def with_everything() -> list[Any]:
    count = 0

    def function(x: torch.Tensor, out: list[torch.Tensor], table: dict[str, torch.Tensor]) -> Any:
        nonlocal count
        global COUNT
        count += 1
        COUNT += 1
        LOG.append(count)
        x.mul_(2)
        out.append(x.sum())
        table["y"] = x + SCALE
        SCALE.add_(1)
        return x.sin(), out

    function.calls = {"n": 0}  # type: ignore[attr-defined]
    compiled = torch.compile(function, backend="eager")
    x, out, table = torch.ones(4), [], {}  # type: ignore[var-annotated]
    seen: list[Any] = []
    for _ in range(2):
        result = compiled(x, out, table)
        assert result[1] is out
        seen += [result[0], list(out), dict(table), count, COUNT, list(LOG), SCALE.clone(), x._version]
    return seen


def drawing() -> list[Any]:
    @torch.compile(backend="aot_eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x * random.random(), 0.5) + torch.rand(3)

    return [function(torch.ones(3)), random.random(), torch.rand(1)]


def in_place_with_history() -> list[Any]:
    leaf = torch.ones(3, requires_grad=True)
    value = leaf * 2
    result = torch.compile(lambda t: t.mul_(3), backend="aot_eager")(value)
    (result.sum() + value.sum()).backward()
    return [leaf.grad, value._version]


def raising() -> list[Any]:
    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        LOG.append(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        function(torch.ones(2))
    return list(LOG)


def in_methods() -> list[Any]:
    class Tool:
        def __init__(self) -> None:
            self.uses = 0
            self.weight = torch.ones(3)

        @torch.compile(backend="eager")
        def use(self, x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
            self.uses += 1
            self.weight = self.weight + 1
            return x * self.weight * scale

    model = Training().eval()
    model.compile(backend="eager")
    tool = Tool()
    return [tool.use(torch.ones(3), scale=3.0), tool.uses, tool.weight, model(torch.ones(2, 4)), model.steps]


def stepping() -> list[Any]:
    weight = torch.ones(3, requires_grad=True)
    optimiser = torch.optim.Adam([weight])
    weight.grad = torch.ones(3)

    @torch.compile(backend="eager")
    def step() -> None:
        optimiser.step()

    step()
    return [weight.detach().clone(), weight.grad, len(optimiser.state), optimiser.state[weight]["step"]]


HEALTHY = [trained, with_everything, drawing, in_place_with_history, raising, in_methods, stepping]


@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_a_healthy_program_cannot_tell(
    program: Callable[[], list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = program()
    global COUNT
    torch._dynamo.reset()
    torch.manual_seed(0)
    random.seed(0)
    COUNT = 0
    LOG.clear()
    SCALE.fill_(1)
    with watch(whole=True, out=tmp_path / "out") as session:
        watched = program()
    assert session.kept == []
    torch.testing.assert_close(watched, alone, rtol=0, atol=0)
    assert "torchrepro" not in capsys.readouterr().err


def test_a_lost_side_effect_is_kept_as_a_call(session: Session) -> None:
    """pytorch #197896."""
    state = {"n": 0}

    class Helper:
        def touch(self, x: torch.Tensor) -> torch.Tensor:
            state["n"] += 1
            return x + 1

    def function(x: torch.Tensor) -> torch.Tensor:
        return Helper().touch(x)

    compiled = torch.compile(function, backend="eager")
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert state["n"] == 0, "the program sees what the compiled call did"
    assert kinds(session) == [Kind.MISMATCH]
    manifest = read_manifest(session.kept[0])
    assert manifest.place is Place.BEFORE_CAPTURE
    assert manifest.compiler.name == "eager"


def test_a_wrong_result_reaches_the_program_and_the_bundle_holds_the_inputs_from_before(
    session: Session,
) -> None:
    x = torch.zeros(3)
    result = torch.compile(lambda t: t.add_(1) * 2, backend=wrong)(x)
    assert result.tolist() == [2.5, 2.5, 2.5]
    assert kinds(session) == [Kind.MISMATCH]
    (path,) = session.kept
    repro = load_bundle(path, trusted=names_it_runs(read_manifest(path)))
    assert repro.inputs[0].tolist() == [0, 0, 0]
    assert repro.backward is False


def test_a_missing_error_is_kept(session: Session) -> None:
    def pick(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index]

    result = torch.compile(pick, backend=deaf)(torch.ones(2), torch.tensor([5, 5]))
    assert result.tolist() == [0, 0]
    assert kinds(session) == [Kind.MISSING_ERROR]


def test_an_error_of_capture_is_kept_once(session: Session) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x + 1

    compiled = torch.compile(broken, backend="eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(torch._dynamo.exc.Unsupported):
            compiled(torch.ones(2))
    assert kinds(session) == [Kind.COMPILE_ERROR]
    assert read_manifest(session.kept[0]).place is Place.BEFORE_CAPTURE
    assert read_manifest(session.kept[0]).compiler.fullgraph


def test_a_failure_that_a_graph_shows_is_not_kept_again(session: Session) -> None:
    def failing(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("cannot")

    compiled = torch.compile(lambda x: x + 1, backend=failing)
    for _ in range(2):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
            compiled(torch.ones(2))
    assert [read_manifest(path).place for path in session.kept] == [Place.AFTER_CAPTURE]


def test_at_level_4_a_graph_that_differs_is_kept_instead_of_the_call(tmp_path: Path) -> None:
    with watch(whole=True, level=4, out=tmp_path / "out") as session:
        compiled = torch.compile(lambda x: x * 2, backend=wrong)
        for _ in range(2):
            compiled(torch.ones(2))
    assert [read_manifest(path).place for path in session.kept] == [Place.AFTER_CAPTURE]


def test_a_watched_backend_is_known_by_the_compiler_that_it_watches(session: Session) -> None:
    state = {"n": 0}

    class Helper:
        def touch(self, x: torch.Tensor) -> torch.Tensor:
            state["n"] += 1
            return x + 1

    torch.compile(lambda x: Helper().touch(x), backend=backend("aot_eager"))(torch.ones(2))
    assert kinds(session) == [Kind.MISMATCH]
    assert read_manifest(session.kept[0]).compiler.name == "aot_eager"


def test_the_calls_before_are_part_of_the_bundle(session: Session) -> None:
    compiled_before: list[bool] = []

    def wrong_later(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled_before.append(True)
        return graph.forward if len(compiled_before) == 1 else wrong(graph, inputs)

    compiled = torch.compile(lambda x: x + 1, backend=wrong_later)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    assert kinds(session) == [Kind.MISMATCH]
    (path,) = session.kept
    repro = load_bundle(path, trusted=names_it_runs(read_manifest(path)))
    assert [value.shape for (value,) in repro.earlier] == [(3,)]
    assert repro.inputs[0].shape == (4,)


def test_what_users_and_torch_read_from_a_compiled_function_is_there(session: Session) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return x + 1 if torch.compiler.is_compiling() else x + 1.0

    compiled = torch.compile(function, backend="eager")
    assert (compiled.__name__, compiled.__doc__) == ("function", "Doc.")
    assert compiled.__wrapped__ is function
    assert compiled._torchdynamo_orig_callable is function
    assert compiled.get_compiler_config() is None
    assert torch.compile(compiled, backend="eager")._torchdynamo_orig_callable is function
    assert type(torch.compile(nn.Linear(2, 2))).__name__ == "OptimizedModule"


def test_nested_compiled_functions_are_inlined_and_compared_once(session: Session) -> None:
    graphs: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    inner = torch.compile(lambda x: x.cos(), backend=counting)
    linear = torch.compile(nn.Linear(3, 3), backend=counting)
    outer = torch.compile(lambda x: linear(inner(x)) * 2, backend=counting, fullgraph=True)
    outer(torch.ones(3))
    assert len(graphs) == 1
    assert session.kept == []


def test_a_call_inside_a_graph_break_belongs_to_the_outer_call(session: Session) -> None:
    inner = torch.compile(torch.cos, backend=wrong)

    def outer(x: torch.Tensor) -> torch.Tensor:
        LOG.append(1)
        torch._dynamo.graph_break()
        return between(x + 1)

    @torch.compiler.disable
    def between(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    torch.compile(outer, backend="eager")(torch.ones(2))
    assert LOG == [1]


def test_a_failure_without_a_bundle_is_told_all_the_same(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    made: dict[str, Any] = {}
    exec("def function(x): return x * 2", made)  # has no source to keep
    compiled = torch.compile(made["function"], backend=wrong)
    for _ in range(2):
        assert compiled(torch.ones(1)).item() == 2.5
    told = capsys.readouterr().err
    assert session.kept == []
    assert told.count("torchrepro: mismatch") == 1
    assert told.count("torchrepro: could not write a bundle of a whole call") == 1


def test_transforms_export_and_stances_are_left_alone(session: Session) -> None:
    compiled = torch.compile(lambda x: x.sin() * 2, backend=wrong)
    torch.vmap(compiled)(torch.ones(2, 3))
    with torch.compiler.set_stance("force_eager"):
        assert compiled(torch.zeros(1)).item() == 0
    assert session.kept == []


def test_an_iterator_is_not_used_up(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    batches = iter([torch.ones(2), torch.zeros(2)])
    compiled = torch.compile(lambda: next(batches) + 1, backend="eager")
    assert compiled().tolist() == [2, 2]
    assert compiled().tolist() == [1, 1]
    assert session.kept == []
    assert capsys.readouterr().err.count("torchrepro:") == 1


def test_a_lazy_module_is_compared_from_its_second_call_on(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Sequential(nn.LazyLinear(2), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        compiled(torch.ones(1, 3))
    assert type(model[0]) is nn.Linear
    assert session.kept == []
    assert "torchrepro" not in capsys.readouterr().err


def test_warnings_of_plain_python_are_not_the_programs(session: Session) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            warnings.warn("plain", stacklevel=1)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.compile(function, backend="eager")(torch.ones(1))
    assert session.kept == []


def test_our_own_failure_is_one_line(
    session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(whole_calls, "judge_call", fails)
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    assert [compiled(torch.ones(1)).item() for _ in range(2)] == [2, 2]
    assert (
        capsys.readouterr().err.count("torchrepro: could not compare a whole call (RuntimeError: ours)") == 1
    )


def test_an_interrupt_during_the_comparison_leaves_the_state_as_the_call_did(session: Session) -> None:
    log: list[int] = []

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        log.append(1)
        if not torch.compiler.is_compiling():
            raise KeyboardInterrupt
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        function(torch.ones(1))
    assert log == [1]


def test_raise_is_for_who_asks(tmp_path: Path) -> None:
    with watch(whole=True, out=tmp_path / "out", on_mismatch="raise") as session:
        compiled = torch.compile(lambda x: x * 2, backend=wrong)
        with pytest.raises(AccuracyError):
            compiled(torch.ones(2))
    assert len(session.kept) == 1


def test_only_so_many_calls_are_compared(tmp_path: Path) -> None:
    with watch(whole=True, out=tmp_path / "out", every=2, on_mismatch="raise"):
        compiled = torch.compile(lambda x: x * 2, backend=wrong)
        for _ in range(2):
            with pytest.raises(AccuracyError):
                compiled(torch.ones(2))
            compiled(torch.ones(2))


def test_nothing_is_compared_after_the_watch(tmp_path: Path) -> None:
    with watch(whole=True, out=tmp_path / "out") as session:
        compiled = torch.compile(lambda x: x * 2, backend=wrong)
    compiled(torch.ones(2))
    assert session.kept == []
