"""Let a CUDA build of torch be imported without CUDA's packages, for runs on the CPU.

The wheels of torch for Linux on PyPI link libraries of CUDA that take gigabytes (cuBLAS, cuDNN, NCCL, ...).
Importing torch loads them all, and no code on the CPU calls them. Only the CUDA runtime, 2 MB, is called
during the import, where libtorch_cuda registers its kernels; that one is installed. In place of the others
this writes one library that defines the symbols which torch wants from them. Each of them prints a sentence
and aborts: nothing is ever computed by a stand-in. Checked on torch 2.11 to 2.15 (Linux, x86-64).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from torchrepro.nouns.errors import TorchReproError

STAND_IN = "libtorchrepro_no_cuda.so"
_OF_CUDA = re.compile(r"lib(?:cu|nv|nccl)[\w.-]*\.so[\d.]*")
_SYMBOL_OF_CUDA = re.compile(r"_*(?:cu|nv|nccl)[A-Za-z]\w*")
_DRIVER = "libcuda.so.1"
"""Comes with the machine's driver; torch loads it only where it finds a device."""
_SOURCE = """\
#include <stdlib.h>
#include <unistd.h>
extern "C" {{
void torchrepro_no_cuda() {{
    static const char said[] = "torchrepro bisect: this environment has no CUDA libraries\\n";
    if (write(2, said, sizeof said - 1)) {{}}
    abort();
}}
{symbols}
}}
"""


def stand_in_for_cuda(site_packages: Path) -> tuple[str, ...]:
    """Write the library for what is missing of CUDA; return the names of the libraries it stands in for."""
    directory = site_packages / "torch" / "lib"
    own = sorted(
        path for path in directory.glob("lib*.so*") if not path.is_symlink() and path.name != STAND_IN
    )
    if sys.platform != "linux" or not any(path.name == "libtorch_cuda.so" for path in own):
        return ()
    installed = {path.name for path in site_packages.glob("nvidia/**/*.so*")} | {path.name for path in own}
    linked = re.findall(r"\(NEEDED\).*\[(.+?)\]", _ask("readelf", "-dW", *own))
    missing = sorted({name for name in linked if _OF_CUDA.fullmatch(name)} - installed - {_DRIVER})
    if not missing:
        return ()
    by_version: dict[str, set[str]] = defaultdict(set)
    for symbol in re.findall(r"^\s+[Uwv] (\S+)$", _ask("nm", "-D", "--undefined-only", *own), re.MULTILINE):
        name, _, version = symbol.partition("@")
        if _SYMBOL_OF_CUDA.fullmatch(name) and version not in installed:
            by_version[version].add(name)
    _compile(directory / STAND_IN, by_version)
    for name in missing:
        (directory / name).symlink_to(STAND_IN)
    return tuple(missing)


def _compile(library: Path, by_version: dict[str, set[str]]) -> None:
    names = sorted({name for names in by_version.values() for name in names})
    symbols = "\n".join(f'void {name}() __attribute__((alias("torchrepro_no_cuda")));' for name in names)
    versions = "".join(
        f"{version} {{ {' '.join(f'{name};' for name in sorted(names))} }};\n"
        for version, names in sorted(by_version.items())
        if version
    )
    with tempfile.TemporaryDirectory(prefix="torchrepro-no-cuda-") as scratch:
        source, script = Path(scratch, "no_cuda.cpp"), Path(scratch, "versions.map")
        source.write_text(_SOURCE.format(symbols=symbols))
        script.write_text(versions)
        compiler = shutil.which("g++") or shutil.which("clang++") or "c++"
        versioned = [f"-Wl,--version-script={script}"] if versions else []
        _ask(compiler, "-shared", "-fPIC", "-o", library, source, *versioned)


def _ask(program: str, *arguments: str | Path) -> str:
    try:
        ran = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    except OSError as exc:
        raise TorchReproError(
            f"{program} cannot be run ({exc.strerror}): a CUDA build of torch needs it to do without CUDA",
            next_step="install a C++ compiler and binutils, or name an index with CPU builds (--index)",
        ) from exc
    if ran.returncode != 0:
        raise TorchReproError(f"{program} failed: {ran.stderr.strip()[-300:]}")
    return ran.stdout
