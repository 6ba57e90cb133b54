"""What stands around a call, as the lines that a user would write for it; defaults are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchrepro.nouns.ambient import Ambient, Autocast
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.trust import SOURCE_TRUST
from torchrepro.script.layout import indented, quoted
from torchrepro.script.literals import Text, Unwritable, Writer

DRAW_AS_EAGER = "torch._inductor.config.fallback_random = True  # draw as eager does"


def environment_lines(environ: Mapping[str, str]) -> list[str]:
    """Environment variables: compilers read them when torch is imported."""
    return [f"os.environ[{quoted(name)}] = {quoted(value)}" for name, value in environ.items()]


def setting_lines(ambient: Ambient) -> list[str]:
    """Settings of the whole process."""
    lines = []
    if ambient.default_dtype != "float32":
        lines.append(f"torch.set_default_dtype(torch.{ambient.default_dtype})")
    if ambient.matmul_precision != "highest":
        lines.append(f"torch.set_float32_matmul_precision({quoted(ambient.matmul_precision)})")
    if ambient.deterministic != "off":
        warn = ", warn_only=True" if ambient.deterministic == "warn" else ""
        lines.append(f"torch.use_deterministic_algorithms(True{warn})")
    if ambient.threads is not None:
        lines.append(f"torch.set_num_threads({ambient.threads})")
    for module, values in ambient.configs.items():
        lines += [f"torch._{module}.config.{name} = {_data(value)}" for name, value in values.items()]
    return lines


def config_modules(lines: Sequence[str]) -> set[str]:
    """Modules of configs that lines name: `import torch` does not load them all."""
    found = set()
    for line in lines:
        if line.startswith("torch._") and ".config." in line:
            found.add(line[: line.index(".config.")] + ".config")
    return found


def contexts(ambient: Ambient) -> list[str]:
    """Context managers around the forward call, the outermost first."""
    found = []
    if ambient.inference_mode:
        found.append("torch.inference_mode()")
    elif not ambient.grad_enabled:
        found.append("torch.no_grad()")
    return found + [_autocast(cast) for cast in ambient.autocast]


def within(around: Sequence[str], calls: Sequence[str]) -> list[str]:
    """The calls inside context managers, where there are any."""
    return [f"with {', '.join(around)}:", *indented(calls)] if around else list(calls)


def compile_arguments(compiler: Compiler, *, dynamic: bool) -> str:
    """The arguments of `torch.compile` after the function, with the comma before them."""
    words = []
    if ":" in compiler.name:
        module, _, function = compiler.name.partition(":")
        if "<locals>" in function or module == "__main__":
            raise Unwritable(f"the backend {compiler.name}, which no import finds")
        words.append(f"backend={function if module == SOURCE_TRUST else f'{module}.{function}'}")
    elif compiler.name != "inductor":
        words.append(f"backend={quoted(compiler.name)}")
    if compiler.options:
        words.append(f"options={_data(dict(compiler.options))}")
    elif compiler.mode:
        words.append(f"mode={quoted(compiler.mode)}")
    if compiler.fullgraph:
        words.append("fullgraph=True")
    if compiler.dynamic is not None:
        words.append(f"dynamic={compiler.dynamic}")
    elif dynamic:
        words.append("dynamic=True")
    return "".join(f", {word}" for word in words)


def compiler_module(compiler: Compiler) -> str:
    """The module of the user that a backend comes from; empty for torch's own."""
    module, colon, _ = compiler.name.partition(":")
    return module if colon and module != SOURCE_TRUST else ""


def _autocast(cast: Autocast) -> str:
    words = [quoted(cast.device), f"dtype=torch.{cast.dtype}"]
    words += [] if cast.enabled else ["enabled=False"]
    words += [] if cast.cache_enabled else ["cache_enabled=False"]
    return f"torch.autocast({', '.join(words)})"


def _data(value: object) -> Text:
    return Writer({}).write(value)
