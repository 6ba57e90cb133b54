"""Identity: what the verdicts of a run depend on. If any of it changes, they say nothing any more.

Found without importing torch, so that a finished run is answered at once.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from torchrepro.bundle.read import LOCATED
from torchrepro.nouns.ambient import telling_environment
from torchrepro.nouns.environment import cpu_name, cxx_version
from torchrepro.nouns.version import __version__

_IN_WORDS = {
    "bundle": "the bundle has changed",
    "oracle": "another oracle is asked",
    "torchrepro": "torchrepro is another version",
    "torch": "torch is another version",
    "python": "Python is another version",
    "machine": "this is another machine",
    "cxx": "the C++ compiler is another one",
    "environ": "environment variables that matter to compilers have changed",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """The bundle, who judges, and everything installed that takes part."""

    bundle: str = ""
    """A digest of its files."""
    oracle: str = ""
    torchrepro: str = ""
    torch: str = ""
    python: str = ""
    machine: str = ""
    cxx: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Path, *, oracle: str = "") -> Identity:
        return cls(
            bundle=_digest(bundle),
            oracle=oracle,
            torchrepro=__version__,
            torch=_torch_version(),
            python=platform.python_version(),
            machine=f"{platform.machine()} {cpu_name()}",
            cxx=cxx_version(),
            environ=telling_environment(),
        )

    @property
    def toolchain(self) -> str:
        """A digest of what compiled libraries depend on: those of other runs serve where it is the same."""
        parts = (self.torch, self.python, self.machine, self.cxx)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def changed_since(self, former: Identity) -> str:
        """The first thing that is not as it was, in words; empty if all is."""
        for entry in fields(self):
            if getattr(self, entry.name) != getattr(former, entry.name):
                return _IN_WORDS[entry.name]
        return ""


def _digest(bundle: Path) -> str:
    """Of every file in it. A gigabyte takes about a second."""
    files = _files_of(bundle) if bundle.is_dir() else [bundle]
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            name = path.name if path == bundle else str(path.relative_to(bundle))
            digest.update(f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def _files_of(bundle: Path) -> list[Path]:
    """Its own files; what was found out about it and lies in a folder of it is not part of it."""
    beside = bundle / LOCATED
    return sorted(path for path in bundle.rglob("*") if path.is_file() and beside not in path.parents)


def _torch_version() -> str:
    """The version, and for a build from source also the commit: `torch/version.py` has both."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin).with_name("version.py")
    if path.exists():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return metadata.version("torch")
