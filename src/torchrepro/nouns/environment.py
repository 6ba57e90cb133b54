"""Environment: versions and hardware, as a maintainer needs them. Reading the C++ compiler needs no torch."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from torchrepro.nouns import __version__


@dataclass(frozen=True, slots=True)
class Environment:
    """Versions and hardware, as a maintainer needs them."""

    torchrepro: str = ""
    torch: str = ""
    python: str = ""
    platform: str = ""
    cpu: str = ""
    cpu_capability: str = ""
    cores: int = 0
    gpus: tuple[str, ...] = ()
    cuda: str = ""
    triton: str = ""
    cxx: str = ""

    @classmethod
    def capture(cls) -> Environment:
        from importlib import metadata

        import torch

        try:
            triton = metadata.version("triton")
        except metadata.PackageNotFoundError:
            triton = ""
        gpus: tuple[str, ...] = ()
        # Reading names initialises CUDA, after which a process cannot be forked.
        if torch.cuda.is_initialized():
            gpus = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return cls(
            torchrepro=__version__,
            torch=str(torch.__version__),
            python=platform.python_version(),
            platform=platform.platform(),
            cpu=cpu_name(),
            cpu_capability=torch.backends.cpu.get_cpu_capability(),
            cores=os.cpu_count() or 0,
            gpus=gpus,
            cuda=str(torch.version.cuda or ""),
            triton=triton,
            cxx=cxx_version(),
        )

    def computes_as(self, other: Environment) -> bool:
        """Return whether torch, the processor and the compilers are the same; GPUs may not be named yet."""
        telling = ("torch", "python", "cpu", "cpu_capability", "cuda", "triton", "cxx")
        return all(getattr(self, name) == getattr(other, name) for name in telling)


def cpu_name() -> str:
    """Return the model name of the processor. Needs no torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def cxx_compiler() -> str:
    """Return the C++ compiler that inductor finds: `CXX`, else g++ or clang++; empty if there is none."""
    return os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or ""


def cxx_version() -> str:
    """Return the first line of the C++ compiler's `--version`: generated code depends on it."""
    compiler = cxx_compiler()
    if not compiler:
        return ""
    try:
        shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return shown.stdout.partition("\n")[0].strip()
