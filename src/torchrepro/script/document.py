"""The text of a script from its parts: docstring, imports, settings, contexts, definitions, statements."""

from __future__ import annotations

import platform
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from torchrepro.bundle.archive import Content
from torchrepro.graph_text.literals import quote
from torchrepro.nouns.repro import (
    SOURCE_TRUST,
    Ambient,
    Compiler,
    ProcessGroups,
    Repro,
    UserSetting,
    portable_environment,
)
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.assertions import shortened
from torchrepro.script.expressions import Text, Unwritable, Writer
from torchrepro.script.layout import WIDTH, indented, laid_out
from torchrepro.torch_api.names import INDUCTOR_CONFIG, REGISTER_GROUP
from torchrepro.torch_api.operator_tables import TABLES, registration_line
from torchrepro.user_code.settings import BACKEND, OPTIONS

_STANDARD = ("copy", "ctypes", "io", "json", "math", "operator", "os", "sys")


@dataclass(frozen=True, slots=True)
class Script:
    """A way to write a repro. `side_files` stand next to the script, by name."""

    text: str
    remark: str = ""
    """Why it is the bundle's own script; empty for one that a person would write."""
    side_files: Mapping[str, Content] = field(default_factory=dict)


def document(
    docstring: Sequence[str],
    *,
    compiler: Compiler,
    environ: Mapping[str, str],
    modules: set[str],
    settings: Sequence[str],
    definitions: Sequence[Sequence[str]],
    statements: Sequence[str],
) -> str:
    """Return the text of a script from its parts, with the blank lines that formatters want.

    Modules of configs that settings name are imported, `import torch` does not load them all; so is the
    module that a backend of the user comes from.
    """
    lines = ['"""' + docstring[0], *docstring[1:], '"""', ""]
    environ = portable_environment(environ)
    if environ:
        # Compilers read them when torch is imported.
        set_ = [f"os.environ[{quote(name)}] = {quote(value)}" for name, value in environ.items()]
        lines += ["import os", "", *set_, ""]
    configs = {found[0] for line in settings if (found := re.match(r"torch\._\w+\.config\b", line))}
    module, colon, _ = compiler.name.partition(":")
    own = {module} if colon and module != SOURCE_TRUST else set()
    lines += _imports({*modules, *configs, *own, "torch"} - ({"os"} if environ else set()))
    if settings:
        lines += ["", *(line for setting in settings for line in laid_out(setting))]
    for definition in definitions:
        lines += ["", "", *definition]
    lines += ["", ""] if definitions else [""]
    lines += [line for statement in statements for line in laid_out(statement)]
    return "\n".join(lines) + "\n"


def _imports(modules: set[str]) -> list[str]:
    standard = sorted(f"import {name}" for name in modules if name in _STANDARD)
    from_ = sorted(name for name in modules if " " in name)
    others = ["from pathlib import Path"] if "Path" in modules else []
    others += [name for name in from_ if name.split()[1] in sys.stdlib_module_names]
    standard += sorted(others)
    named = modules - {*_STANDARD, "Path", "F", *from_}
    functional = ["import torch.nn.functional as F"] if "F" in modules else []
    plain = sorted([*(f"import {name}" for name in named), *functional])
    return [*standard, *([""] if standard else []), *plain, *(name for name in from_ if name not in others)]


def docstring(sentence: str, facts: Sequence[str]) -> list[str]:
    """Return the lines of the docstring: what goes wrong, in one sentence, and the facts known about it."""
    first = shortened(_quotable(sentence), 3 * (WIDTH - 10))
    first = first if first.endswith("...") else first.rstrip(".") + "."
    return [*textwrap.wrap(first, WIDTH - 3)[:3], "", *map(_quotable, facts)]


def with_facts(script: Script, facts: Sequence[str]) -> Script:
    """Return a script with more facts in its docstring; that of a bundle stays as it is."""
    if script.remark or not facts:
        return script
    before, end, after = script.text.partition('\n"""\n')
    return replace(script, text="\n".join([before, *map(_quotable, facts)]) + end + after)


def seen_with(repro: Repro) -> str:
    """Return a sentence with the version of torch and the device on which the failure is seen now."""
    where = ", ".join(_accelerators(repro)) or torch.backends.cpu.get_cpu_capability()
    return f"Seen with torch {torch.__version__} on {platform.machine()} ({where})."


def _accelerators(repro: Repro) -> list[str]:
    tensors = (value for value in repro.inputs if isinstance(value, torch.Tensor))
    return sorted({tensor.device.type for tensor in (*tensors, *repro.graph.parameters())} - {"cpu"})


def waiting_lines(repro: Repro, verdict: Verdict) -> list[str]:
    """Return the lines that wait for the device: without them a fault of a kernel goes unnoticed."""
    compiling = verdict.kind is Kind.COMPILE_ERROR
    return [] if compiling else [f"torch.{kind}.synchronize()" for kind in _accelerators(repro)]


def _quotable(text: str) -> str:
    """Return the text without backslashes and quotes that a docstring cannot hold."""
    return text.replace("\\", "/").replace('"""', "'''").rstrip('"').rstrip()


# What surrounds a call, as the lines that a user would write for it; defaults are left out.


def setting_lines(ambient: Ambient) -> list[str]:
    """Return the lines that change settings of the whole process."""
    lines = []
    if ambient.default_dtype != "float32":
        lines.append(f"torch.set_default_dtype(torch.{ambient.default_dtype})")
    if ambient.matmul_precision != "highest":
        lines.append(f"torch.set_float32_matmul_precision({quote(ambient.matmul_precision)})")
    if ambient.deterministic != "off":
        warn = ", warn_only=True" if ambient.deterministic == "warn" else ""
        lines.append(f"torch.use_deterministic_algorithms(True{warn})")
    if ambient.threads is not None:
        lines.append(f"torch.set_num_threads({ambient.threads})")
    for module, values in ambient.configs.items():
        lines += [f"torch._{module}.config.{name} = {_data(value)}" for name, value in values.items()]
    return lines


def user_setting_lines(entries: Sequence[UserSetting], modules: set[str]) -> list[str]:
    """Return the lines that apply settings which are code, below its definition; add what they import.

    Inductor's caches do not know what the user has registered for an operator, so they are off then.
    """
    lines = []
    for entry in entries:
        if entry.table in TABLES:
            modules |= {TABLES[entry.table], INDUCTOR_CONFIG}
            lines.append(registration_line(entry.table, entry.name, _expression(entry), entry.arguments))
        elif entry.table not in (OPTIONS, BACKEND):
            modules.add(f"torch._{entry.table}.config")
            lines.append(f"torch._{entry.table}.config.{entry.name} = {_expression(entry)}")
        if not entry.source:
            modules.add(entry.reference.partition(":")[0])
    registers = any(entry.table in TABLES for entry in entries)
    return [*([f"{INDUCTOR_CONFIG}.force_disable_caches = True"] if registers else []), *lines]


def with_code_options(compiler: Compiler, entries: Sequence[UserSetting]) -> Compiler:
    """Return the compiler with the options that are code, as the expressions of a script."""
    code = {entry.name: Text(_expression(entry)) for entry in entries if entry.table == OPTIONS}
    return replace(compiler, options={**compiler.options, **code}) if code else compiler


def _expression(entry: UserSetting) -> str:
    return entry.source or entry.reference.replace(":", ".")


def contexts(ambient: Ambient) -> list[str]:
    """Return the context managers around the forward call, the outermost first."""
    found = []
    if ambient.inference_mode:
        found.append("torch.inference_mode()")
    elif not ambient.grad_enabled:
        found.append("torch.no_grad()")
    return found + [
        autocast_text(
            cast.device, f"torch.{cast.dtype}", enabled=cast.enabled, cache_enabled=cast.cache_enabled
        )
        for cast in ambient.autocast
    ]


def within(around: Sequence[str], calls: Sequence[str]) -> list[str]:
    """Return the calls inside the context managers, where there are any."""
    return [f"with {', '.join(around)}:", *indented(calls)] if around else list(calls)


def compile_arguments(compiler: Compiler, *, dynamic: bool) -> str:
    """Return the arguments of `torch.compile` after the function, with the comma before them."""
    words = []
    module, colon, function = compiler.name.partition(":")
    if colon:
        if "<locals>" in function or module == "__main__":
            raise Unwritable(f"the backend {compiler.name}, which no import finds")
        words.append(f"backend={function if module == SOURCE_TRUST else f'{module}.{function}'}")
    elif compiler.name != "inductor":
        words.append(f"backend={quote(compiler.name)}")
    if compiler.options:
        words.append(f"options={_data(dict(compiler.options))}")
    elif compiler.mode:
        words.append(f"mode={quote(compiler.mode)}")
    if compiler.fullgraph:
        words.append("fullgraph=True")
    if compiler.dynamic is not None:
        words.append(f"dynamic={compiler.dynamic}")
    elif dynamic:
        words.append("dynamic=True")
    return "".join(f", {word}" for word in words)


def autocast_text(device: object, dtype: object, *, enabled: bool = True, cache_enabled: bool = True) -> str:
    """Return the context manager of an autocast; `dtype` is None where it is the device's default."""
    words = [quote(str(device)), *([] if dtype is None else [f"dtype={dtype}"])]
    words += [] if enabled else ["enabled=False"]
    words += [] if cache_enabled else ["cache_enabled=False"]
    return f"torch.autocast({', '.join(words)})"


def _data(value: object) -> Text:
    return Writer({}).write(value)


def group_lines(groups: ProcessGroups) -> list[str]:
    """Return the lines that make process groups of these names, which do not communicate."""
    start = f'torch.distributed.init_process_group("fake", rank={groups.rank}, world_size={groups.size}'
    lines = [f"{start}, store=torch.distributed.HashStore())"]
    for name, ranks in list(groups.groups.items())[1:]:
        made = f"torch.distributed.new_group({list(ranks)})"
        lines.append(f"{REGISTER_GROUP}({name!r}, {made})")
    return lines
