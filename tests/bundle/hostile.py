"""A corpus of hostile bundles: each tries to run a command, to leave its directory, or to stop the reader.

`CORPUS` maps a name to a function that makes the bundle at a path; `canary` is a file that no bundle may
create. Whatever succeeds in creating it has run a command of the stranger.
"""

from __future__ import annotations

import json
import os
import pickle
import stat
import zipfile
from pathlib import Path
from typing import Any

import tests.bundle.hostile_values  # noqa: F401 (adds its part to the corpus)
from tests.bundle.hostile_tools import (
    CORPUS,
    ESCAPES,
    Attack,
    Bomb,
    attack,
    healthy,
    planted_script,
    with_compiler,
    with_environ,
    with_lines,
    with_manifest,
    with_options,
    with_settings,
    with_zip,
)

# The six ways of issue 13.


@attack
def march_in_the_environment(bundle: Path, canary: Path) -> Path:
    return with_environ(bundle, TORCHINDUCTOR_CPP_MARCH=f"native -wrapper touch,{canary}")


@attack
def compiler_that_unpickles(bundle: Path, canary: Path) -> Path:
    return with_compiler(bundle, "torch._dynamo.utils:np.lib.format.read_array")


@attack
def message_of_an_assertion(bundle: Path, canary: Path) -> Path:
    message = f'"); std::system("touch {canary}"); TORCH_CHECK(true, "'
    return with_lines(
        bundle,
        "c = torch.ops.aten.ge.Scalar(x, -100.0)",
        "a = torch.ops.aten.all.default(c)",
        f"m = torch.ops.aten._assert_async.msg(a, {message!r})",
        "y = torch.ops.aten.relu.default(x)",
        "return (y,)",
    )


@attack
def cxx_in_the_environment(bundle: Path, canary: Path) -> Path:
    tool = bundle.with_name("tool")
    tool.write_text(f'#!/bin/sh\ntouch {canary}\nexec g++ "$@"\n')
    tool.chmod(0o755)
    return with_environ(bundle, CXX=str(tool), CC=str(tool))


@attack
def best_in_a_run_directory(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    run = bundle.with_name(f"{bundle.name}.minified")
    run.mkdir()
    best = healthy(run / "best")
    (best / "source.py").write_text(planted_script(canary))
    (run / "run.json").write_text(json.dumps({"bundle": "x"}))
    (run / "result.json").write_text("{}")
    return bundle


@attack
def cache_in_a_located_directory(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    cache = bundle / "located" / "cache"
    cache.mkdir(parents=True)
    (cache / "evil.so").write_bytes(b"\x7fELF not quite")
    (bundle / "located" / "run.json").write_text("{}")
    (bundle / "located" / "original.json").write_text("{}")
    return bundle


# More of the same kinds.


@attack
def cxx_in_the_settings(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "inductor", {"cpp.cxx": [f"touch {canary};"]})


@attack
def march_in_the_settings(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "inductor", {"cpp.march": f"native -wrapper touch,{canary}"})


@attack
def march_in_the_options(bundle: Path, canary: Path) -> Path:
    return with_options(bundle, {"cpp.march": f"native -wrapper touch,{canary}", "cpp.simdlen": 1})


@attack
def libraries_in_the_settings(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "inductor", {"aot_inductor.custom_op_libs": ["evil"], "cuda.arch": "x;y"})


@attack
def traces_in_the_settings(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "inductor", {"trace.enabled": True, "trace.debug_dir": str(canary)})


@attack
def repro_after_in_the_settings(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "dynamo", {"repro_after": "aot", "debug_dir_root": str(canary)})


@attack
def settings_of_another_module(bundle: Path, canary: Path) -> Path:
    return with_settings(bundle, "os", {"environ": {"PATH": str(canary)}})


@attack
def logs_in_the_environment(bundle: Path, canary: Path) -> Path:
    return with_environ(
        bundle, TORCH_LOGS_OUT=canary.name, TORCH_COMPILE_DEBUG="1", TORCHDYNAMO_REPRO_AFTER="aot"
    )


@attack
def cache_manager_in_the_environment(bundle: Path, canary: Path) -> Path:
    return with_environ(bundle, TRITON_CACHE_MANAGER="antigravity:fly", TRITON_KERNEL_OVERRIDE="1")


@attack
def loader_in_the_environment(bundle: Path, canary: Path) -> Path:
    return with_environ(
        bundle, LD_PRELOAD="/tmp/evil.so", PYTHONSTARTUP=str(canary), PYTHONPATH=".", PATH=".", HOME="."
    )


@attack
def compiler_of_a_plugin(bundle: Path, canary: Path) -> Path:
    return with_compiler(bundle, "dynamo_minifier_backend")


@attack
def compiler_in_the_standard_library(bundle: Path, canary: Path) -> Path:
    return with_compiler(bundle, "os:system")


@attack
def mode_that_is_code(bundle: Path, canary: Path) -> Path:
    mode = f'default"); import os; os.system("touch {canary}'
    return with_manifest(bundle, lambda manifest: manifest["compiler"].update(mode=mode))


@attack
def autocast_that_is_code(bundle: Path, canary: Path) -> Path:
    cast = {"device": f'cpu"); import os; os.system("touch {canary}', "dtype": "bfloat16"}
    return with_manifest(bundle, lambda manifest: manifest["ambient"].update(autocast=[cast]))


@attack
def dtype_that_is_a_module(bundle: Path, canary: Path) -> Path:
    return with_manifest(bundle, lambda manifest: manifest["ambient"].update(default_dtype="os"))


@attack
def symbol_that_is_code(bundle: Path, canary: Path) -> Path:
    name = f's0;std::system("touch {canary}")'
    return with_manifest(bundle, lambda manifest: manifest.update(symbols=[{"name": name, "hint": 4}]))


@attack
def device_that_is_code(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest["values"]["input.0"]["storage"]["device"] = "cpu;x"

    return with_manifest(bundle, change)


@attack
def subclass_of_another_module(bundle: Path, canary: Path) -> Path:
    entry = {
        "kind": "subclass",
        "number": 0,
        "type": "torch.os.PathLike",
        "inner": {},
        "size": [],
        "stride": [],
    }
    entry["context"] = {"kind": "none"}
    return with_manifest(bundle, lambda manifest: manifest["values"].update({"input.0": entry}))


@attack
def library_of_an_operator(bundle: Path, canary: Path) -> Path:
    entry = {"op": "evil::run", "schema": "evil::run(Tensor x) -> Tensor", "library": str(canary)}
    with_lines(bundle, "y = torch.ops.evil.run.default(x)", "return (y,)")
    return with_manifest(bundle, lambda manifest: manifest.update(custom_ops=[entry]))


@attack
def module_of_an_operator(bundle: Path, canary: Path) -> Path:
    entry = {"op": "evil::run", "schema": "evil::run(Tensor x) -> Tensor", "module": "antigravity"}
    with_lines(bundle, "y = torch.ops.evil.run.default(x)", "return (y,)")
    return with_manifest(bundle, lambda manifest: manifest.update(custom_ops=[entry]))


@attack
def operators_without_trust(bundle: Path, canary: Path) -> Path:
    entry = {"op": "evil::run", "schema": "evil::run(Tensor x) -> Tensor", "in_source": True}
    with_lines(bundle, "y = torch.ops.evil.run.default(x)", "return (y,)")
    (bundle / "operators.py").write_text(planted_script(canary))
    return with_manifest(bundle, lambda manifest: manifest.update(custom_ops=[entry], kernels=["k"]))


@attack
def source_without_trust(bundle: Path, canary: Path) -> Path:
    (healthy(bundle) / "source.py").write_text(planted_script(canary))
    return bundle


@attack
def pickles_next_to_the_manifest(bundle: Path, canary: Path) -> Path:
    bomb = pickle.dumps(Bomb(canary))
    for name in ("values.pt", "values.pkl"):
        (healthy(bundle) / name).write_bytes(bomb)
    (bundle / "repro.py").write_text(planted_script(canary))
    return bundle


@attack
def pickle_in_place_of_tensors(bundle: Path, canary: Path) -> Path:
    (healthy(bundle) / "tensors.safetensors").write_bytes(pickle.dumps(Bomb(canary)))
    return bundle


CALLS = {
    "reads_a_file": 'y = torch.ops.aten.from_file.default("/etc/passwd", None, 10)',
    "writes_a_file": 'y = torch.ops.aten.save.default(x, "{canary}")',
    "loads_a_library": 'y = torch.ops.load_library("{canary}")',
    "loads_a_tensor": 'y = torch.ops.debugprims.load_tensor.default("{canary}", [1], [1])',
    "calls_the_system": 'y = user("os:system")("touch {canary}")',
    "calls_through_torch": 'y = torch.os.system("touch {canary}")',
    "calls_through_numpy": 'y = torch._dynamo.utils.np.load("{canary}")',
    "assembles": 'y = torch.ops.higher_order.inline_asm_elementwise(x, asm_str="x", constraints="=r,r")',
    "evaluates_a_size": "y = torch.add(x, sym(__import__('os').system('touch {canary}')))",
    "prints_a_format": 'p = torch.ops.higher_order.print("{{0.__class__}}\\x1b[2J", x)\n        y = x.relu()',
    "divides_by_a_negative": "y = torch.add(x, sym(Mod(s0, -18), s0=4))",
    "takes_for_ever": "y = torch.add(x, sym(9 ** 9 ** 9 ** 9))",
    "multiplies_for_ever": "y = torch.add(x, sym((s0 + 1) ** 64 * (s0 + 2) ** 64 * (s0 + 3) ** 64, s0=4))",
    "hands_on_an_accessor": "y = torch.ops.higher_order.wrap({accessor}, x, '__class__')",
    "hands_on_a_key": "y = max(x, x, key={accessor})",
    "imports_by_a_storage": 's = x.untyped_storage()\n        y = s.type("antigravity.fly")',
    "imports_by_a_name_it_makes": (
        'n = operator.add("antigravity", ".fly")\n        s = x.untyped_storage()\n        y = s.type(n)'
    ),
    "sorts_by_an_accessor": "l = builtins.list((x, x))\n        y = l.sort(key={accessor})",
    "names_an_enormous_number": "y = torch.add(x, 9{nines})",
    "nests_deeply": "y = torch.add(x, {deep})",
}


def _calling(line: str) -> Attack:
    def make(bundle: Path, canary: Path) -> Path:
        deep, accessor = "(" * 150 + "1" + ",)" * 150, "torch._dynamo.utils.numpy_attr_wrapper"
        text = line.format(canary=canary, nines="9" * 5000, deep=deep, accessor=accessor)
        return with_lines(bundle, text, "return (y,)")

    return make


CORPUS |= {f"graph_that_{name}": _calling(line) for name, line in CALLS.items()}


# Files.


@attack
def name_that_leaves_the_zip(bundle: Path, canary: Path) -> Path:
    return with_zip(bundle, (f"../{canary.name}", b"owned"))


@attack
def absolute_name_in_the_zip(bundle: Path, canary: Path) -> Path:
    return with_zip(bundle, (str(canary), b"owned"))


@attack
def link_in_the_zip(bundle: Path, canary: Path) -> Path:
    info = zipfile.ZipInfo("values.pt")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return with_zip(bundle, (info, str(canary).encode()))


@attack
def bomb_in_the_zip(bundle: Path, canary: Path) -> Path:
    info = zipfile.ZipInfo("graph.py")
    info.compress_type = zipfile.ZIP_DEFLATED
    return with_zip(bundle, (info, b"#" * (80 << 20)))


@attack
def bomb_in_the_tensors(bundle: Path, canary: Path) -> Path:
    info = zipfile.ZipInfo("tensors.safetensors")
    info.compress_type = zipfile.ZIP_DEFLATED
    table = json.dumps({"members": {info.filename: "0"}, "signature": ""}).encode()
    return with_zip(bundle, (info, bytes(257 << 20)), ("provenance.json", table))


@attack
def links_in_the_directory(bundle: Path, canary: Path) -> Path:
    (healthy(bundle) / "graph.py").unlink()
    (bundle / "graph.py").symlink_to("/etc/passwd")
    return bundle


@attack
def pipe_in_the_directory(bundle: Path, canary: Path) -> Path:
    for name in ("graph.py", "provenance.json"):
        (healthy(bundle) / name).unlink(missing_ok=True)
        os.mkfifo(bundle / name)
    return bundle


@attack
def pipes_in_run_directories(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    for run in (bundle / "located", bundle.with_name(f"{bundle.name}.minified")):
        run.mkdir()
        for name in ("result.json", "run.json"):
            os.mkfifo(run / name)
    return bundle


@attack
def lock_that_is_a_link(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    for run in (bundle / "located", bundle.with_name(f"{bundle.name}.minified")):
        run.mkdir()
        (run / "lock").symlink_to(canary)
    return bundle


@attack
def run_directory_that_is_a_link(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    for run in (bundle / "located", bundle.with_name(f"{bundle.name}.minified")):
        run.symlink_to(canary.parent)
    return bundle


@attack
def link_where_the_report_goes(bundle: Path, canary: Path) -> Path:
    for name in (f".{bundle.name}.report.html.partial", f"{bundle.name}.report.html"):
        healthy(bundle).with_name(name).symlink_to(canary)
    return bundle


@attack
def file_without_an_end(bundle: Path, canary: Path) -> Path:
    with open(healthy(bundle) / "more", "wb") as file:
        file.truncate(1 << 42)
    return bundle


@attack
def results_that_are_verified(bundle: Path, canary: Path) -> Path:
    """Somebody else's answers, which blame an operator and offer a command to paste."""
    located = {"bundle": "x", "kind": "mismatch", "stage": "backend", "confidence": "verified"}
    located |= {"blamed": f"operator x; touch {canary}", "sandbox": "none"}
    located["workaround"] = {"code": f"$(touch {canary})", "verified": True}
    (healthy(bundle) / "located").mkdir()
    (bundle / "located" / "result.json").write_text(json.dumps(located))
    (bundle / "located" / "run.json").write_text(json.dumps({"bundle": "x", "mark": "0" * 64}))
    return bundle


@attack
def results_that_name_other_files(bundle: Path, canary: Path) -> Path:
    healthy(bundle)
    run = bundle.with_name(f"{bundle.name}.minified")
    run.mkdir()
    healthy(run / "minimal")
    result = {
        "original": str(bundle),
        "directory": "/",
        "bundle": "/",
        "script": "/etc/passwd",
        "minimal": True,
    }
    (run / "result.json").write_text(json.dumps(result))
    return bundle


@attack
def table_that_names_other_files(bundle: Path, canary: Path) -> Path:
    table = {"members": {"../../etc/passwd": "0", "graph.py": "0"}, "signature": "0"}
    (healthy(bundle) / "provenance.json").write_text(json.dumps(table))
    return bundle


# What is shown.


@attack
def escapes_in_every_text(bundle: Path, canary: Path) -> Path:
    def change(manifest: dict[str, Any]) -> None:
        manifest.update(notes=[ESCAPES], created=ESCAPES, run_id=ESCAPES, needs_trust=[ESCAPES])
        manifest["verdict"].update(summary=ESCAPES, stderr_tail=ESCAPES)
        manifest["environment"].update(cpu=ESCAPES, torch=ESCAPES, platform=ESCAPES, gpus=[ESCAPES])
        manifest["origin"] = {"number": 0, "seen": 1, "source": ESCAPES}
        manifest["values"]["input.0"]["dtype"] = ESCAPES

    with_manifest(bundle, change)
    lines = f"# {ESCAPES}\nclass Graph:\n    def forward(self, x):\n        return x\n"
    for name in ("graph.py", "source.py", "operators.py"):
        (bundle / name).write_text(lines)
    return bundle


@attack
def escapes_in_the_name_of_the_compiler(bundle: Path, canary: Path) -> Path:
    return with_compiler(bundle, ESCAPES)


@attack
def escapes_in_the_path(bundle: Path, canary: Path) -> Path:
    return healthy(bundle.with_name("a\x1b[2J\nb"))


@attack
def text_as_an_input(bundle: Path, canary: Path) -> Path:
    entry = {"kind": "str", "value": f'"); std::system("touch {canary}"); ("'}
    return with_manifest(bundle, lambda manifest: manifest["values"].update({"input.0": entry}))
