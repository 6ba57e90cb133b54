"""Hostile bundles under everything that reads a bundle in this process: no command, no file, no connection.

`tests/cli/test_hostile_verbs.py` has the command line.
"""

from __future__ import annotations

import ast
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.bundle.hostile import CORPUS
from tests.bundle.hostile_tools import ESCAPES, with_compiler, with_lines, with_manifest
from torchrepro.bundle.describe import describe_bundle
from torchrepro.bundle.load import load_bundle, load_verified
from torchrepro.bundle.read import read_graph_text, read_manifest, read_source_text
from torchrepro.bundle.safe_state import COMPILERS, safe_environment, safe_settings
from torchrepro.execute.compilers import known_compilers
from torchrepro.graph_text.literals import plain_text
from torchrepro.graph_text.parser import read_graph
from torchrepro.nouns.errors import BundleError, GraphTextError, TorchReproError
from torchrepro.report.collect import collect
from torchrepro.report.formats import Format, rendered
from torchrepro.report.run_files import verdict_in
from torchrepro.script.save_bundle import save_bundle

SECONDS = 5.0
_COMMANDS = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn"),
)
_CONNECTIONS = ("socket.connect", "socket.bind", "socket.sendto", "urllib.Request")
_seen: list[tuple[str, Any]] | None = None


def _audit(event: str, arguments: Any) -> None:
    writes = event == "open" and isinstance(arguments[1], str) and bool(set(arguments[1]) & set("wax+"))
    telling = (*_COMMANDS, *_CONNECTIONS, "pickle.find_class", "ctypes.dlopen")
    if _seen is not None and (writes or event in telling):
        _seen.append((event, arguments))


sys.addaudithook(_audit)


@contextmanager
def audited() -> Iterator[list[tuple[str, Any]]]:
    """Record what the body starts, connects to, loads or opens for writing."""
    global _seen
    _seen = found = []
    try:
        yield found
    finally:
        _seen = None


def _outcome(action: Any) -> Exception | None:
    try:
        action()
    except TorchReproError as refused:
        return refused
    return None


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the readers import when they are first used: that opens files of its own."""
    healthy = CORPUS["source_without_trust"](tmp_path_factory.mktemp("first") / "b", Path("nothing"))
    (healthy / "source.py").unlink()
    load_verified(healthy, trusted=(), stranger=True)
    for format_ in Format:
        rendered(collect(healthy), format_)


@pytest.fixture(autouse=True)
def _without_groups() -> Iterator[None]:
    """Leave the process groups that a bundle describes to no other test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CORPUS)
def test_reading_runs_nothing_and_terminates(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    bundle = CORPUS[name](scratch / "bundle", canary)
    before = sorted(path for path in tmp_path.rglob("*") if not path.is_symlink())
    actions = (
        lambda: describe_bundle(read_manifest(bundle)).to_dict(),
        lambda: read_graph_text(bundle),
        lambda: read_source_text(bundle),
        lambda: load_verified(bundle, trusted=(), stranger=True),
        lambda: load_bundle(bundle),
        lambda: [rendered(collect(bundle), format_) for format_ in Format],
    )
    began = time.perf_counter()
    with audited() as events:
        for action in actions:
            _outcome(action)
    assert time.perf_counter() - began < SECONDS
    assert not [event for event in events if "torchrepro-" not in str(event)]
    assert not canary.exists()
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_symlink()) == before


REFUSED_ON_LOADING = (
    *("compiler_that_unpickles", "compiler_of_a_plugin", "compiler_in_the_standard_library"),
    *("mode_that_is_code", "autocast_that_is_code", "dtype_that_is_a_module", "symbol_that_is_code"),
    *("library_of_an_operator", "module_of_an_operator", "operators_without_trust", "source_without_trust"),
    *("text_as_an_input", "links_in_the_directory", "pipe_in_the_directory", "counts_beyond_reason"),
    *("negative_strides", "sizes_beyond_the_storage", "deep_graph", "graph_that_reads_a_file"),
    *("graph_that_assembles", "graph_that_calls_the_system", "graph_that_evaluates_a_size"),
    *("graph_that_hands_on_an_accessor", "graph_that_hands_on_a_key", "module_that_is_a_command"),
    *("graph_that_imports_by_a_storage", "graph_that_imports_by_a_name_it_makes"),
    *("graph_that_sorts_by_an_accessor",),
    *("placement_of_another_module", "group_that_is_code", "mesh_with_names_that_are_code"),
    *("groups_without_end", "group_with_a_rank_twice", "subclass_in_a_tool_of_torch", "subclass_of_code"),
    *("subclass_of_text", "subclass_with_another_class", "collective_of_text", "recipe_of_integers"),
    *("setting_of_the_standard_library", "setting_in_the_source", "setting_that_is_code"),
    *("setting_with_arguments_that_are_code", "compiler_that_is_a_command", "recipe_of_floats"),
    *("recipe_of_floats_planted_elsewhere", "recipe_of_floats_without_number"),
)


@pytest.mark.parametrize("name", REFUSED_ON_LOADING)
def test_loading_refuses_it_in_one_line(name: str, tmp_path: Path) -> None:
    bundle = CORPUS[name](tmp_path / "bundle", tmp_path / "canary")
    refused = _outcome(lambda: load_verified(bundle, trusted=(), stranger=True))
    assert isinstance(refused, TorchReproError)
    assert refused.next_step


@pytest.mark.parametrize("name", [name for name in CORPUS if name.startswith(("placement", "subclass"))])
def test_no_module_is_imported_by_its_name(name: str, tmp_path: Path) -> None:
    bundle = CORPUS[name](tmp_path / "bundle", tmp_path / "canary")
    _outcome(lambda: load_verified(bundle, trusted=(), stranger=True))
    assert not {"antigravity", "torch.distributed.run"} & sys.modules.keys()


@pytest.mark.parametrize("name", ["module_that_is_a_command", "compiler_that_is_a_command"])
def test_a_command_to_copy_is_one_command(name: str, tmp_path: Path) -> None:
    bundle = CORPUS[name](tmp_path / "bundle", tmp_path / "canary")
    refused = _outcome(lambda: load_verified(bundle, trusted=(), stranger=True))
    assert isinstance(refused, TorchReproError)
    words = shlex.split(refused.next_step, comments=True)
    assert f"x; touch {tmp_path / 'canary'} #" in words
    shown = rendered(collect(bundle), Format.TEXT)
    assert "torchrepro locate a; touch" not in shown


@pytest.mark.parametrize(
    "text",
    [
        'x\n"""\nimport planted  #',
        "x\rimport planted",
        '")\nimport planted  #',
        "x\x0cimport planted\u2028import planted",
    ],
)
def test_no_text_of_a_manifest_becomes_code_of_a_script(text: str, tmp_path: Path) -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest.update(notes=[text], origin={"number": 0, "seen": 1, "source": text}, run_id=text)
        manifest["ambient"]["left_out"] = [text]
        manifest["expected"] = {"kind": "compile_error", "stage": "backend", "exception": text}
        raised = {"type": text, "message": text, "traceback": text}
        manifest["verdict"].update(kind="compile_error", summary=text, raised=raised, notes=[text])

    bundle = with_manifest(tmp_path / "bundle", change)
    repro = load_verified(bundle, trusted=(), stranger=True)
    verdict = verdict_in(read_manifest(bundle).verdict)
    assert verdict is not None
    written = save_bundle(repro, tmp_path / "written", verdict=verdict)
    tree = ast.parse((written / "repro.py").read_text())
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert imported
    assert "planted" not in imported


@pytest.mark.parametrize(
    "name",
    [
        *("march_in_the_environment", "cxx_in_the_environment", "logs_in_the_environment"),
        *("cache_manager_in_the_environment", "loader_in_the_environment", "cxx_in_the_settings"),
        *("march_in_the_settings", "march_in_the_options", "libraries_in_the_settings"),
        *("traces_in_the_settings", "repro_after_in_the_settings", "settings_of_another_module"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_state_that_names_programs_and_files_is_left_out(name: str, tmp_path: Path) -> None:
    bundle = CORPUS[name](tmp_path / "bundle", tmp_path / "canary")
    repro = load_verified(bundle, trusted=(), stranger=True)
    assert repro.ambient.environ == {}
    assert {**repro.compiler.options, "cpp.simdlen": 1} == {"cpp.simdlen": 1}
    assert not any(repro.ambient.configs.values())
    assert any("is not applied" in note for note in repro.notes)


def test_the_message_of_an_assertion_cannot_end_a_string(tmp_path: Path) -> None:
    bundle = CORPUS["message_of_an_assertion"](tmp_path / "bundle", tmp_path / "canary")
    graph = load_verified(bundle, trusted=(), stranger=True).graph
    texts = [value for node in graph.graph.nodes for value in node.args if isinstance(value, str)]
    assert texts
    assert not set("".join(texts)) & set("\"'\\\n{}$`")


@pytest.mark.parametrize("text", ["floor", "tanh", "bij,bjk->bik", "...ij, jk -> ik", "u0 >= 0 (Eq(s0, 3))"])
def test_words_with_a_meaning_are_kept(text: str) -> None:
    assert plain_text(text) == text


def test_a_users_own_strings_are_kept() -> None:
    line = 'y = torch._assert(x, "say \\"no\\"")'
    text = f"class Graph:\n    def forward(self, x):\n        {line}\n        return y\n"
    node = read_graph(text, {}).graph.find_nodes(op="call_function", target=torch._assert)[0]
    assert node.args[1] == 'say "no"'


def test_every_name_in_the_table_of_compilers_is_a_backend_of_torch() -> None:
    assert {"inductor", "eager", "aot_eager"} <= COMPILERS
    assert COMPILERS - set(known_compilers()) <= {"aot_inductor", "invoke_subgraph", "aot_ts"}


@pytest.mark.parametrize("name", ["tvm", "torchrepro", "dynamo_minifier_backend", "np.load", "a b"])
def test_other_compilers_need_trust(name: str, tmp_path: Path) -> None:
    bundle = with_compiler(tmp_path / "bundle", name)
    with pytest.raises(BundleError, match=r"not one of torch's own.*--trust"):
        load_verified(bundle, trusted=(), stranger=True)
    assert load_verified(bundle, trusted=(name,), stranger=True).compiler.name == name


@pytest.mark.parametrize("path", ["os.system", "path.os.system", "sys.modules"])
def test_trust_of_a_module_is_none_of_what_it_imports(path: str, tmp_path: Path) -> None:
    bundle = with_lines(tmp_path / "bundle", f'y = user("shutil:{path}")("true")', "return (y,)")
    with pytest.raises(GraphTextError):
        load_verified(bundle, trusted=("shutil",), stranger=True)
    with pytest.raises(BundleError, match="imported and run"):
        load_verified(with_compiler(tmp_path / "other", f"shutil:{path}"), trusted=("shutil",), stranger=True)


SETTINGS = {
    "max_autotune": True,
    "cpp.simdlen": 256,
    "cpp.inject_relu_bug_TESTING_ONLY": "accuracy",
    "max_autotune_gemm_backends": "ATEN,TRITON",
    "triton.cudagraphs": False,
    "realize_opcount_threshold": None,
}


def test_numbers_switches_and_known_words_are_kept() -> None:
    assert safe_settings(SETTINGS, own=False) == (SETTINGS, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("cpp.march", "native"), ("cpp.cxx", ["g++"]), ("cuda.arch", "80"), ("cutlass.cutlass_dir", "x")),
        *(("trace.enabled", True), ("debug", True), ("aot_inductor.custom_op_libs", ["m"]), ("a b", 1)),
        *(("max_autotune_gemm_backends", "ATEN;rm"), ("descriptive_names", "x y"), ("memory_pool", "none-")),
        *(("realize_opcount_threshold", 10**30), ("pre_grad_fusion_options", {"a": {"b": "$(x)"}})),
        *(("__class__.x", "inductor node"), ("worker_start_method", "fork"), ("fx_graph_remote_cache", True)),
    ],
)
def test_other_settings_of_a_stranger_are_refused(name: str, value: object) -> None:
    assert safe_settings({name: value}, own=False) == ({}, [name])


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        *(("TORCHINDUCTOR_FREEZING", "1", True), ("OMP_NUM_THREADS", "4", True)),
        *(("ATEN_CPU_CAPABILITY", "avx2", True), ("CUDA_VISIBLE_DEVICES", "0,1", True)),
        *(("CUBLAS_WORKSPACE_CONFIG", ":4096:8", True), ("TORCHINDUCTOR_CPP_WRAPPER", "True", True)),
        *(("TORCHINDUCTOR_CPP_MARCH", "native", False), ("TORCHINDUCTOR_FREEZING", "1;x", False)),
        *(("TORCHINDUCTOR_FREEZING", "1\n", False), ("TORCHINDUCTOR_\nX", "1", False)),
        *(("TORCH_LOGS", "1", False), ("TORCH_COMPILE_DEBUG", "1", False), ("CXX", "g++", False)),
        *(("TORCHDYNAMO_REPRO_LEVEL", "4", False), ("TRITON_KERNEL_DUMP", "1", False)),
        *(("LD_PRELOAD", "1", False), ("PYTHONSTARTUP", "1", False), ("ATEN_CPU_CAPABILITY", "x", False)),
    ],
)
def test_the_environment_is_filtered_by_name_and_value(name: str, value: str, kept: bool) -> None:
    safe, refused = safe_environment({name: value}, own=False)
    assert (safe, refused) == (({name: value}, []) if kept else ({}, [name]))


def test_what_is_shown_cannot_control_a_terminal(tmp_path: Path) -> None:
    bundle = CORPUS["escapes_in_every_text"](tmp_path / "bundle", tmp_path / "canary")
    for format_ in Format:
        text = rendered(collect(bundle), format_)
        assert "\x1b" not in text
        assert "\x9b" not in text
        assert ESCAPES not in text
        if format_ is Format.HTML:
            assert "<script>alert" not in text
