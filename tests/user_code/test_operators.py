"""Operators of the user in a bundle: who registered them is known, and only trusted code does so again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, torchrepro
from torch.fx.experimental.proxy_tensor import make_fx

from torchrepro import Compiler, Kind, Repro, load_bundle, save_bundle
from torchrepro.bundle.describe import describe_bundle
from torchrepro.bundle.provenance import names_it_runs
from torchrepro.bundle.read import read_manifest
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.graph_text.printer import write_graph
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import CustomOpEntry
from torchrepro.user_code.operators import describe_op, require_registered
from torchrepro.user_code.registrations import functions_of

# A user's program that registers operators in each of the ways there are and saves a graph that calls them.
PROGRAM = """
import sys
from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

FACTOR = 2.0


def scaled(x, k):
    return x * k * FACTOR


@torch.library.custom_op("{ns}::scale", mutates_args=(), device_types="cpu")
def scale(x: torch.Tensor, k: float) -> torch.Tensor:
    return scaled(x, k)


@scale.register_fake
def _(x, k):
    return torch.empty_like(x)


def keep_factor(ctx, inputs, output):
    ctx.k = inputs[1]


def through(ctx, grad):
    return grad * FACTOR * ctx.k, None


scale.register_autograd(through, setup_context=keep_factor)


@torch.library.custom_op("{ns}::fill", mutates_args=("x",))
def fill(x: torch.Tensor, k: float) -> None:
    x.fill_(k)

{more}

def function(x):
    y = x.clone()
    torch.ops.{ns}.fill(y, 3.0)
    return (torch.ops.{ns}.scale(x, 1.5){call} + y,)


if __name__ == "__main__":
    import torchrepro

    x = torch.randn(3, requires_grad=True)
    graph = torch.fx.symbolic_trace(function)
    repro = torchrepro.Repro(graph, (x,), compiler=torchrepro.Compiler({compiler!r}))
    torchrepro.save_bundle(repro, Path(sys.argv[1]))
    raise SystemExit("unrelated statements of the script never run again")
"""
LIBRARY = """
library = torch.library.Library("{ns}", "FRAGMENT")
library.define("plus(Tensor x) -> Tensor")
library.impl("plus", lambda x: x + 1, "CompositeExplicitAutograd")
library.impl("plus", lambda x: torch.empty_like(x), "Meta")
"""
USER = """
import sys
from pathlib import Path
import torch, torchrepro, operators_of_mine
graph = torch.fx.symbolic_trace(operators_of_mine.function)
repro = torchrepro.Repro(graph, (torch.ones(3),), compiler=torchrepro.Compiler("aot_eager"))
torchrepro.save_bundle(repro, Path(sys.argv[1]))
raise SystemExit("unrelated statements")
"""


def program(directory: Path, name: str, *, library: bool = False, compiler: str = "aot_eager") -> Path:
    ns = f"tr_{name}"
    more = LIBRARY.format(ns=ns) if library else ""
    call = f" + torch.ops.{ns}.plus(x)" if library else ""
    path = directory / f"{name}.py"
    path.write_text(PROGRAM.format(ns=ns, more=more, call=call, compiler=compiler))
    return path


def saved_by(script: Path) -> Path:
    bundle = script.with_suffix(".bundle")
    finished = subprocess.run([sys.executable, script, bundle], capture_output=True, text=True)
    assert "unrelated statements" in finished.stderr
    return bundle


@pytest.mark.thorough
def test_operators_of_a_script_stand_alone_in_the_bundle(tmp_path: Path) -> None:
    script = program(tmp_path, "script", compiler="inductor")
    bundle = saved_by(script)
    script.unlink()
    manifest = read_manifest(bundle)
    scale, fill = sorted(manifest.custom_ops, key=lambda entry: entry.op, reverse=True)
    assert (scale.module, scale.file, scale.in_source) == ("__main__", str(script), True)
    assert scale.schema == "tr_script::scale(Tensor x, float k) -> Tensor"
    assert fill.schema == "tr_script::fill(Tensor(a0!) x, float k) -> ()"
    assert (
        f"{scale.schema} from __main__, {script}, source in the bundle"
        in (describe_bundle(manifest).facts["operators"])
    )
    with pytest.raises(BundleError) as refused:
        load_bundle(bundle)
    assert f"the script {script} registers it" in str(refused.value)
    assert f"torchrepro check {bundle} --trust source" in str(refused.value)
    found = answer(torchrepro("check", "--json", bundle, "--trust", "source"))
    assert found["verdict"] == "pass", found
    standalone = subprocess.run([sys.executable, bundle / "repro.py"], capture_output=True, text=True)
    assert standalone.returncode == 0, standalone.stderr


@pytest.mark.slow
def test_a_module_that_registers_operators_is_imported_on_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = program(tmp_path, "operators_of_mine", library=True)
    user = tmp_path / "user.py"
    user.write_text(USER)
    bundle = saved_by(user)
    manifest = read_manifest(bundle)
    assert {entry.module for entry in manifest.custom_ops} == {"operators_of_mine"}
    assert {entry.file for entry in manifest.custom_ops} == {str(module)}
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BundleError, match="--trust operators_of_mine"):
        load_bundle(bundle, trusted=("source",))
    assert judge_repro(load_bundle(bundle, trusted=names_it_runs(manifest))).kind is Kind.PASS


@pytest.fixture
def native_op() -> Iterator[Any]:
    """An operator that was registered from a file that is no Python module."""
    library = torch._C._dispatch_library("FRAGMENT", "tr_native", "", "kernels.cpp", 7)
    library.define("twice(Tensor x) -> Tensor", "", ())
    library.impl("twice", "CPU", lambda x: x * 2)
    library.impl("twice", "Meta", torch.empty_like)
    yield torch.ops.tr_native.twice
    del library


def test_a_native_operator_names_the_library_that_holds_it(
    native_op: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, library = tmp_path / "other.so", tmp_path / "library.so"
    other.write_bytes(b"\x7fELF nothing")
    library.write_bytes(b"\x7fELF twice(Tensor x) -> Tensor")
    monkeypatch.setattr(torch.ops, "loaded_libraries", {str(other), str(library)})
    graph = make_fx(lambda x: (native_op(x),))(torch.ones(2))
    bundle = save_bundle(Repro(graph, (torch.ones(2),), compiler=Compiler("eager")), tmp_path / "bundle")
    manifest = read_manifest(bundle)
    (entry,) = manifest.custom_ops
    assert (entry.op, entry.module, entry.library) == ("tr_native::twice", "", str(library))
    assert str(library) in names_it_runs(manifest)
    assert load_bundle(bundle).graph(torch.ones(2))[0].tolist() == [2, 2]


def test_what_is_not_there_says_what_registers_it_and_how_to_allow_it(tmp_path: Path) -> None:
    def failure(entry: CustomOpEntry, *trusted: str) -> str:
        with pytest.raises(BundleError) as raised:
            require_registered((entry,), trusted, dict, tmp_path)
        return str(raised.value)

    entry = CustomOpEntry(
        op="tr_absent::op", schema="tr_absent::op(Tensor x) -> Tensor", library="/no/lib.so"
    )
    command = f"torchrepro check {tmp_path} --trust"
    assert f"the library /no/lib.so registers it; if you trust it, allow it with {command} /no/lib.so" in (
        failure(entry)
    )
    assert "the library /no/lib.so, which registers tr_absent::op, cannot be loaded" in (
        failure(entry, "/no/lib.so")
    )
    imported = CustomOpEntry(op=entry.op, schema=entry.schema, module="no_such_module_of_mine")
    assert f"{command} no_such_module_of_mine" in failure(imported)
    assert "cannot be imported" in failure(imported, "no_such_module_of_mine")
    useless = CustomOpEntry(op=entry.op, schema=entry.schema, module="json")
    assert "the module json does not register the operator tr_absent::op" in failure(useless, "json")
    unknown = CustomOpEntry(op=entry.op, schema=entry.schema)
    assert "move what registers it into a module" in failure(unknown)
    builtin = CustomOpEntry(op="aten::sin", schema="aten::sin(Tensor self, int n) -> Tensor")
    assert "is aten::sin(Tensor self) -> Tensor here and was aten::sin(Tensor self, int n)" in failure(
        builtin
    )


def test_graphs_of_torch_alone_name_no_operators(tmp_path: Path) -> None:
    graph = make_fx(lambda x: (x.sin(),))(torch.ones(2))
    bundle = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "bundle")
    assert read_manifest(bundle).custom_ops == ()
    assert not (bundle / "operators.py").exists()


def test_an_operator_without_source_is_kept_with_a_note(tmp_path: Path) -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec("def triple(x: torch.Tensor) -> torch.Tensor:\n    return x * 3", namespace)
    triple = torch.library.custom_op("tr_exec::triple", namespace["triple"], mutates_args=())
    graph = torch.fx.symbolic_trace(lambda x: (triple._opoverload(x),))
    written = write_graph(graph)
    assert written.custom_ops == (torch.ops.tr_exec.triple.default,)
    bundle = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "bundle")
    manifest = read_manifest(bundle)
    assert not manifest.custom_ops[0].in_source
    assert any("the source of tr_exec::triple was not kept" in note for note in manifest.notes)
    assert load_bundle(bundle, trusted=names_it_runs(manifest)).graph(torch.ones(2))[0].tolist() == [3, 3]


def test_an_operator_whose_fake_is_an_operator_of_torchs_is_described(tmp_path: Path) -> None:
    def halved(x: torch.Tensor) -> torch.Tensor:
        return x / 2

    half = torch.library.custom_op("tr_fake::half", halved, mutates_args=())
    half.register_fake(torch.ops.aten.empty_like.default)
    assert functions_of("tr_fake::half")["fake"] is torch.ops.aten.empty_like.default
    graph = torch.fx.symbolic_trace(lambda x: (half._opoverload(x),))
    bundle = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "bundle")
    assert read_manifest(bundle).custom_ops[0].op == "tr_fake::half"


def test_an_extension_that_only_has_the_same_word_in_it_is_no_origin() -> None:
    import numpy as np  # its extensions have "add" in them

    assert np.__version__
    library = torch._C._dispatch_library("FRAGMENT", "tr_word", "", "kernels.cpp", 7)
    library.define("add(Tensor x) -> Tensor", "", ())
    assert describe_op(torch.ops.tr_word.add.default).module == ""
    del library
