"""Settings that are code of the user (passes, lowerings, options, backends) are kept and replayed."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
import torch._inductor.config as inductor_config
from user_files import write_module

from torchrepro import Compiler, Kind, Repro, load_bundle, save_bundle
from torchrepro.bundle.describe import describe_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest, read_source_text
from torchrepro.edit.settings import ambient_settings, compiler_settings, without
from torchrepro.engine.baseline import establish
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.execute.backends import compiler_of
from torchrepro.execute.compilers import backend_function
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.errors import BundleError, DoesNotFail
from torchrepro.nouns.repro import Ambient, Registered
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.state.ambient import applied_settings, capture_ambient
from torchrepro.torch_api.operator_tables import registered_in
from torchrepro.user_code.settings import code_settings, describe_setting, load_settings

USER_FILE = """
import functools
import threading

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten = torch.ops.aten
LIMIT = 0.5


def clamped(graph, limit):
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is aten.tanh.default:
            with graph.inserting_before(node):
                new = graph.call_function(aten.clamp_max.default, (node.args[0], limit))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def wrong_tanh(graph):
    clamped(graph, LIMIT)


def harmless(graph):
    pass


def with_limit(limit):
    def made_pass(graph):
        clamped(graph, limit)

    return made_pass


class WrongTanh(CustomGraphPass):
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, graph):
        clamped(graph, self.limit)

    def uuid(self):
        return get_hash_for_files((__file__,))


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, graph):
        clamped(graph, LIMIT)


def make_locked():
    return Locked()


def by_lambda():
    return lambda graph: clamped(graph, 0.125)


def lowered_tanh(x):
    from torch._inductor.lowering import lowerings

    return lowerings[aten.clamp_max.default](x, LIMIT)


def decomposed_tanh(x):
    return torch.clamp_max(x, LIMIT)


def backend(gm, inputs, *, factor=1.0, options=None):
    def call(*args):
        return tuple(value * factor * (options or {}).get("scale", 1.0) for value in gm(*args))

    return call


def made_backend(factor):
    def inner(gm, inputs):
        return backend(gm, inputs, factor=factor)

    return inner


tripled = functools.partial(backend, factor=3.0)
"""

POST_PASS = ("inductor", "post_grad_custom_post_pass")


@pytest.fixture
def user(tmp_path: Path) -> ModuleType:
    return write_module(tmp_path, USER_FILE)


def tanh_repro(ambient: Ambient | None = None, compiler: Compiler | None = None) -> Repro:
    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.tanh(x),)

    graph = torch.fx.symbolic_trace(function)
    inputs = (torch.linspace(-3, 3, 7),)
    return Repro(graph, inputs, compiler=compiler or Compiler(), ambient=ambient or Ambient())


def with_pass(value: Any, name: str = POST_PASS[1]) -> Repro:
    """A repro as the watch takes it in a program in which the user has set this."""
    with inductor_config.patch({name: value}):
        return tanh_repro(capture_ambient())


def kept(repro: Repro, path: Path, *, own: bool = True) -> Repro:
    bundle = save_bundle(repro, path)
    return load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)) if own else ())


def after_pass(value: Callable[[torch.fx.Graph], Any]) -> str:
    """What a pass makes of the graph of one tanh."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.tanh.default, (x,)))
    value(graph)
    return str(graph)


FORMS: dict[str, Callable[[ModuleType], Any]] = {
    "function": lambda user: user.wrong_tanh,
    "closure": lambda user: user.with_limit(0.25),
    "lambda": lambda user: user.by_lambda(),
    "partial": lambda user: functools.partial(user.clamped, limit=0.75),
    "object": lambda user: user.WrongTanh(0.25),
    "bound method": lambda user: user.WrongTanh(0.25).__call__,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_pass_comes_back_from_a_bundle_as_code_that_does_the_same(
    form: str, user: ModuleType, tmp_path: Path
) -> None:
    own = FORMS[form](user)
    back = code_settings(kept(with_pass(own), tmp_path / "bundle"))
    assert list(back) == [POST_PASS]
    assert back[POST_PASS] is not own
    assert after_pass(back[POST_PASS]) == after_pass(own) != after_pass(user.harmless)


def test_a_list_of_passes_keeps_its_order_and_its_members(user: ModuleType, tmp_path: Path) -> None:
    back = code_settings(kept(with_pass([user.harmless, user.wrong_tanh]), tmp_path / "bundle"))
    assert [each.__name__ for each in back[POST_PASS]] == ["harmless", "wrong_tanh"]


def test_a_stranger_must_trust_the_source_of_a_pass(user: ModuleType, tmp_path: Path) -> None:
    bundle = save_bundle(with_pass(user.wrong_tanh), tmp_path / "bundle")
    with pytest.raises(BundleError, match="--trust source"):
        load_bundle(bundle)
    shown = describe_bundle(read_manifest(bundle)).facts["code settings"]
    assert shown.startswith("inductor.post_grad_custom_post_pass=wrong_tanh")
    assert f"{user.__name__}:wrong_tanh" in shown
    assert "def clamped" in read_source_text(bundle)


def test_a_pass_that_is_no_source_is_imported_and_needs_trust_in_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = write_module(tmp_path, USER_FILE + "\nlocked = make_locked()\n")
    repro = with_pass(user.locked)
    if "locked" in (source := read_source_text(save_bundle(repro, tmp_path / "first"))):
        pytest.skip(f"it can be written: {source}")
    bundle = tmp_path / "first"
    assert read_manifest(bundle).user_settings[0].reference == f"{user.__name__}:locked"
    with pytest.raises(BundleError, match=f"--trust {user.__name__}"):
        load_bundle(bundle)
    own = load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    assert code_settings(own)[POST_PASS] is user.locked
    monkeypatch.delattr(user, "locked")
    gone = load_bundle(bundle, trusted=names_it_runs(read_manifest(bundle)))
    assert gone.ambient.left_out == (".".join(POST_PASS),)
    assert any("not applied" in note and "post_grad_custom_post_pass" in note for note in gone.notes)


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "x\nimport os"},
        {"table": "os"},
        {"source": "f(); g"},
        {"reference": "os:system('true')"},
        {"arguments": {"broadcast": "print()"}},
    ],
)
def test_an_entry_that_is_no_setting_is_refused(
    forged: dict[str, Any], user: ModuleType, tmp_path: Path
) -> None:
    entry = describe_setting(POST_PASS, user.wrong_tanh)
    with pytest.raises(BundleError, match="that no compiler has"):
        load_settings([msgspec.structs.replace(entry, **forged)], user, ("source", "os"), tmp_path)


class _Healthy:
    """An oracle by which nothing fails, and which counts the runs."""

    workers = 1

    def __init__(self) -> None:
        self.runs = 0

    def judge(self, repros: Any, **_: Any) -> Any:
        for index, _repro in enumerate(repros):
            self.runs += 1
            yield index, Verdict(Kind.PASS)


def test_a_setting_that_cannot_be_kept_is_named_when_the_failure_does_not_show(
    user: ModuleType, tmp_path: Path
) -> None:
    back = kept(with_pass(user.Locked()), tmp_path / "bundle")
    assert back.ambient.left_out == ("inductor.post_grad_custom_post_pass",)
    oracle: Any = _Healthy()
    with pytest.raises(DoesNotFail, match=r"could not keep.*inductor\.post_grad_custom_post_pass"):
        establish(replace(back, expected=Signature(Kind.MISMATCH)), oracle)
    assert oracle.runs <= 3, "the answer is known at once"


def test_settings_that_are_code_are_left_out_one_by_one(user: ModuleType) -> None:
    with inductor_config.patch({"joint_custom_post_pass": user.harmless}):
        repro = with_pass(user.wrong_tanh)
    repro = replace(repro, compiler=Compiler(options={"pre_grad_custom_pass": user.harmless}))
    settings = {each.name: each for each in (*ambient_settings(repro), *compiler_settings(repro))}
    assert settings["inductor.post_grad_custom_post_pass"].own == "wrong_tanh"
    assert settings["pre_grad_custom_pass"].own == "harmless"
    less = without(repro, [settings["inductor.joint_custom_post_pass"], settings["pre_grad_custom_pass"]])
    assert list(code_settings(less)) == [POST_PASS]
    assert canonical_key(less) != canonical_key(repro)
    assert canonical_key(repro) == canonical_key(replace(repro))


def test_a_process_without_code_of_the_user_has_no_such_settings() -> None:
    importlib.import_module("torch._inductor.lowering")
    assert code_settings(tanh_repro(capture_ambient())) == {}


def test_lowerings_and_decompositions_of_the_user_are_kept_and_restored(
    user: ModuleType, tmp_path: Path
) -> None:
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import lowerings, register_lowering

    tanh, gelu = torch.ops.aten.tanh.default, torch.ops.aten.gelu.default
    before = lowerings[tanh], decompositions[gelu]
    try:
        register_lowering(tanh, broadcast=True, type_promotion_kind=None)(user.lowered_tanh)
        decompositions[gelu] = user.decomposed_tanh
        repro = tanh_repro(capture_ambient())
    finally:
        lowerings[tanh], decompositions[gelu] = before
    back = kept(repro, tmp_path / "bundle").ambient
    assert {table: list(entries) for table, entries in back.registered.items()} == {
        "lowerings": ["aten.tanh.default"],
        "decompositions": ["aten.gelu.default"],
    }
    lowering = back.registered["lowerings"]["aten.tanh.default"]
    assert lowering.arguments == {"broadcast": True, "type_promotion_kind": None}
    with applied_settings(back):
        applied = registered_in("lowerings")["aten.tanh.default"]
        assert isinstance(applied, Registered)
        assert applied == lowering
        assert decompositions[gelu].__name__ == "decomposed_tanh"
    assert (lowerings[tanh], decompositions[gelu]) == before


def test_options_of_compile_that_are_code_are_kept(user: ModuleType, tmp_path: Path) -> None:
    options = {"post_grad_custom_post_pass": user.wrong_tanh, "max_autotune": True}
    compiled: Any = torch.compile(lambda x: x, options=options)
    compiler, notes = compiler_of(compiled.get_compiler_config.__closure__[0].cell_contents.callback)
    assert not notes
    back = kept(tanh_repro(compiler=compiler), tmp_path / "bundle").compiler
    assert back.options["max_autotune"] is True
    assert back.options["post_grad_custom_post_pass"].__name__ == "wrong_tanh"
    assert "post_grad_custom_post_pass=wrong_tanh" in str(back)


BACKENDS: dict[str, tuple[Callable[[ModuleType], Any], float]] = {
    "of a local module": (lambda user: user.backend, 1.0),
    "made by a function": (lambda user: user.made_backend(2.0), 2.0),
    "partial": (lambda user: user.tripled, 3.0),
    "by name": (lambda user: f"{user.__name__}:tripled", 3.0),
}


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_of_the_user_is_kept_as_source(name: str, user: ModuleType, tmp_path: Path) -> None:
    choose, factor = BACKENDS[name]
    compiler, _ = compiler_of(choose(user))
    back = kept(tanh_repro(compiler=compiler), tmp_path / "bundle")
    x = torch.ones(3)
    (out,) = backend_function(back.compiler)(back.graph, [x])(x)
    torch.testing.assert_close(out, torch.tanh(x) * factor)


def test_a_registered_backend_of_the_user_is_kept_as_source(user: ModuleType, tmp_path: Path) -> None:
    from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS

    name = f"registered_{user.__name__}"
    torch._dynamo.register_backend(user.made_backend(4.0), name=name)
    try:
        compiled: Any = torch.compile(lambda x: x, backend=name, options={"scale": 2.0})
        context = compiled.get_compiler_config.__closure__[0].cell_contents
        compiler, _ = compiler_of(context.callback)
    finally:
        _BACKENDS.pop(name), _COMPILER_FNS.pop(name, None)
    assert compiler.options == {"scale": 2.0}
    back = kept(tanh_repro(compiler=replace(compiler, options={})), tmp_path / "bundle")
    (out,) = backend_function(back.compiler)(back.graph, [])(torch.ones(3))
    torch.testing.assert_close(out, torch.tanh(torch.ones(3)) * 4.0)


def test_options_for_a_backend_of_the_user_reach_it(user: ModuleType) -> None:
    compiler = Compiler("mine:backend", options={"scale": 5.0}, function=user.backend)
    (out,) = backend_function(compiler)(tanh_repro().graph, [])(torch.ones(3))
    torch.testing.assert_close(out, torch.tanh(torch.ones(3)) * 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["function", "object"])
def test_a_bundle_with_a_wrong_pass_fails_and_without_it_passes(
    form: str, user: ModuleType, tmp_path: Path
) -> None:
    back = kept(with_pass(FORMS[form](user)), tmp_path / "bundle")
    assert judge_repro(back).kind is Kind.MISMATCH
    plain = without(back, ambient_settings(back))
    assert judge_repro(plain).kind is Kind.PASS
