"""Environments with a version of torch, kept in the user's cache directory and made when they are first used.

    environments/torch-2.15.0-3f2a.../    the environment
    environments/torch-2.15.0-3f2a....lock    held while it is made: others wait for it
    environments/torch-2.15.0-3f2a.../ready.json    written last: an environment without it is made again

The name has a digest of what is in it. The judge is not installed but linked in (`engine/other_python.py`);
what it imports is installed in the versions that it has here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from torchrepro.bisect.installers import (
    Installer,
    installer_for,
    locked,
    python_of,
    site_packages_of,
)
from torchrepro.bisect.no_cuda import stand_in_for_cuda
from torchrepro.bundle.read import file_digest
from torchrepro.engine.line_file import decode
from torchrepro.engine.other_python import Interpreter, ask_interpreter
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.engine.search.run_directory import write_json
from torchrepro.nouns.errors import TorchReproError

_FORMAT = 1
_READY = "ready.json"
_OF_CUDA = ("nvidia-", "cuda-", "triton", "pytorch-triton")
_RUNTIME = "cudart"
"""The part of `cuda-toolkit` that is called while torch is imported."""
_NO_DEVICE: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an environment is made of."""

    torch: str
    """A requirement (`torch==2.15.0`) or the path of a wheel."""
    triton: str = ""
    """A version; empty: what torch asks for, if devices are needed."""
    more: tuple[str, ...] = ()
    """Requirements of the user's script."""
    devices: bool = False
    """With the packages of CUDA."""
    python: Path = field(default_factory=lambda: Path(sys.executable).resolve())
    """The interpreter that the environment is made with, not the link to it in another environment."""
    indexes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the environment: a part to read, and a digest of everything in it."""
        wheel = self.torch.endswith(".whl")
        contents = {
            **asdict(self),
            "python": str(self.python),
            "wheel": file_digest(Path(self.torch)) if wheel else "",
            "judge": judge_requirements(),
            "format": _FORMAT,
        }
        text = json.dumps(contents, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        readable = Path(self.torch).stem if wheel else self.torch.replace("==", "-")
        return f"{readable}-{digest}"


@dataclass(frozen=True, slots=True)
class Made:
    """An environment that is ready, and what making it took."""

    interpreter: Interpreter
    stand_ins: tuple[str, ...] = ()
    """The libraries of CUDA that it does without (`no_cuda.py`)."""
    seconds: float = 0.0
    megabytes: int = 0

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables for everything that runs in it."""
        return _NO_DEVICE if self.stand_ins else {}


def environment_for(recipe: Recipe, on_step: Callable[[str], None] = lambda step: None) -> Made:
    """Return the environment of a recipe; make it, or wait for the process that is making it."""
    directory = cache_directory() / "environments" / recipe.name
    found = _ready(directory)
    if found is not None:
        return found
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f"{directory.name}.lock"), on_step):
        found = _ready(directory)  # another process has made it meanwhile
        if found is None:
            shutil.rmtree(directory, ignore_errors=True)
            try:
                found = _make(recipe, directory, on_step)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
            write_json(directory / _READY, msgspec.to_builtins(found, enc_hook=str))
    return found


def judge_requirements() -> tuple[str, ...]:
    """Return what this torchrepro imports, torch apart, in the versions that are installed here."""
    try:
        named = metadata.requires("torchrepro") or []
    except metadata.PackageNotFoundError as exc:
        raise TorchReproError(
            "torchrepro is not installed here, so its dependencies are unknown",
            next_step="install it (pip install torchrepro), or name interpreters with --python",
        ) from exc
    needed = [Requirement(text) for text in named]
    names = sorted(one.name for one in needed if one.name != "torch" and _applies(one))
    return tuple(f"{name}=={metadata.version(name)}" for name in names)


def _make(recipe: Recipe, directory: Path, on_step: Callable[[str], None]) -> Made:
    began = time.monotonic()
    installer = installer_for(recipe.python, recipe.indexes)
    on_step("making the environment")
    installer.create(directory)
    on_step("installing torch")
    installer.install(directory, [recipe.torch], alone=not recipe.devices)
    site_packages = site_packages_of(directory)
    stand_ins: tuple[str, ...] = ()
    if not recipe.devices:
        _install_for_cpu(installer, directory, site_packages)
        stand_ins = stand_in_for_cuda(site_packages)
    if recipe.triton:
        installer.install(directory, [f"triton=={recipe.triton}"], alone=True)
    on_step("installing what the judge needs")
    installer.install(directory, [*judge_requirements(), *recipe.more])
    on_step("importing torch")
    interpreter = ask_interpreter(python_of(directory))
    size = sum(path.lstat().st_size for path in directory.rglob("*") if not path.is_symlink())
    return Made(interpreter, stand_ins, round(time.monotonic() - began, 1), size >> 20)


def _install_for_cpu(installer: Installer, directory: Path, site_packages: Path) -> None:
    """Install what torch depends on, and of CUDA the runtime alone."""
    found = list(metadata.distributions(name="torch", path=[str(site_packages)]))
    plain: list[str] = []
    for text in (found[0].requires or []) if found else []:
        needed = Requirement(text)
        if not _applies(needed):
            continue
        needed.marker = None
        if not needed.name.startswith(_OF_CUDA) or needed.name.startswith("nvidia-cuda-runtime"):
            plain.append(str(needed))
        elif _RUNTIME in needed.extras:
            needed.extras = {_RUNTIME}
            plain.append(str(needed))
    installer.install(directory, plain)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _ready(directory: Path) -> Made | None:
    """Return what is known of a finished environment; None if it is missing or half made."""
    try:
        made = decode((directory / _READY).read_bytes(), Made)
    except (OSError, msgspec.DecodeError):
        return None
    return made if made.interpreter.python.exists() else None


def is_requirement(text: str) -> bool:
    """Return whether pip would understand a requirement."""
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True
