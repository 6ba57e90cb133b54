"""Steps CPython's tests on each Python of the machine, and prints a table: passed, failed, left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import bytecode

from tests.frontend.bytecode.pythons import python
from tests.frontend.interpreter.cpython_suite import Counts

VERSIONS = ((3, 11), (3, 12), (3, 13))
MODULES = [
    "test_abc",
    "test_augassign",
    "test_binop",
    "test_bisect",
    "test_bool",
    "test_builtin",
    "test_call",
    "test_class",
    "test_collections",
    "test_compare",
    "test_contains",
    "test_contextlib",
    "test_copy",
    "test_dataclasses",
    "test_decorators",
    "test_defaultdict",
    "test_deque",
    "test_descr",
    "test_dict",
    "test_dictcomps",
    "test_dictviews",
    "test_dynamic",
    "test_dynamicclassattribute",
    "test_enum",
    "test_enumerate",
    "test_except_star",
    "test_exception_group",
    "test_exception_hierarchy",
    "test_exception_variations",
    "test_exceptions",
    "test_extcall",
    "test_format",
    "test_fractions",
    "test_fstring",
    "test_funcattrs",
    "test_functools",
    "test_generator_stop",
    "test_generators",
    "test_genericclass",
    "test_genexps",
    "test_getopt",
    "test_global",
    "test_grammar",
    "test_heapq",
    "test_index",
    "test_int",
    "test_isinstance",
    "test_iter",
    "test_iterlen",
    "test_itertools",
    "test_keywordonlyarg",
    "test_list",
    "test_listcomps",
    "test_metaclass",
    "test_named_expressions",
    "test_opcodes",
    "test_operator",
    "test_ordered_dict",
    "test_patma",
    "test_pep646_syntax",
    "test_positional_only_arg",
    "test_pow",
    "test_property",
    "test_raise",
    "test_range",
    "test_reprlib",
    "test_richcmp",
    "test_scope",
    "test_set",
    "test_setcomps",
    "test_slice",
    "test_sort",
    "test_statistics",
    "test_string",
    "test_string_literals",
    "test_structseq",
    "test_subclassinit",
    "test_super",
    "test_textwrap",
    "test_tuple",
    "test_type_aliases",
    "test_type_params",
    "test_types",
    "test_typing",
    "test_unary",
    "test_unpack",
    "test_unpack_ex",
    "test_userdict",
    "test_userlist",
    "test_userstring",
    "test_with",
    "test_yield_from",
]
ROOT = Path(__file__).parents[3]


def run_modules(interpreter: str, modules: list[str], seconds: int = 900) -> list[Counts]:
    """Each module in a process of its own: some tests leave their process in disorder."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        # Only `bytecode`, and not the environment it is in, which belongs to one Python.
        (Path(folder) / "site").mkdir()
        (Path(folder) / "site" / "bytecode").symlink_to(Path(bytecode.__file__).parent)
        path = os.pathsep.join((str(ROOT), str(ROOT / "src"), str(Path(folder) / "site")))
        for module in modules:
            done = subprocess.run(
                [interpreter, "-m", "tests.frontend.interpreter.cpython_suite", module],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=seconds,
            )
            last = done.stdout.strip().splitlines()[-1:]
            if done.returncode or not last:
                found.append(Counts(module, failed={module: f"exit {done.returncode}: {done.stderr[-300:]}"}))
            else:
                found.append(Counts(**json.loads(last[0])))
    return found


def main(modules: list[str]) -> None:
    print(f"{'Python':8} {'passed':>7} {'failed':>7} {'left out':>9} {'not native':>11}")
    for version in VERSIONS:
        interpreter = python(version)
        name = ".".join(map(str, version))
        if interpreter is None:
            print(f"{name:8} not on this machine")
            continue
        counts = run_modules(interpreter, modules)
        passed, native = sum(c.passed for c in counts), sum(c.not_native for c in counts)
        failed = {test: text for c in counts for test, text in c.failed.items()}
        left = Counter(reason for c in counts for reason in c.left_out.values())
        print(f"{name:8} {passed:7} {len(failed):7} {left.total():9} {native:11}", flush=True)
        for test, text in failed.items():
            print(f"    failed: {test}: {text}")
        for reason, count in left.most_common():
            print(f"    left out {count}: {reason}")
        for c in counts:
            if c.missing:
                print(f"    no {c.module}: {c.missing}")


if __name__ == "__main__":
    main(sys.argv[1:] or MODULES)
