"""A series of settings, in order: versions of torch, interpreters, wheels, Tritons, compilers, a variable.

One option may have several values; those with one value hold for all settings.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from torchrepro.bisect.environments import Recipe, is_requirement
from torchrepro.nouns.errors import TorchReproError

_RANGE = ".."
_EXAMPLES = "write --torch 2.11..2.15 or --torch 2.11.0,2.13.0"


@dataclass(frozen=True, slots=True)
class Setting:
    """One member of a series: an interpreter or an environment to make, and variables."""

    label: str
    recipe: Recipe | None = None
    """None: `python` is used as it is."""
    python: Path = field(default_factory=lambda: Path(sys.executable))
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """What is varied, and the settings from the oldest to the newest, or in the order of the user."""

    axis: str
    settings: tuple[Setting, ...]
    is_range: bool = False
    """Its members were not named one by one: those between two of the same state need not run."""

    def place_of(self, version: str) -> int | None:
        """Return the place of a version of torch in a series of versions; None if it is not in it."""
        public = version.partition("+")[0]
        labels = [setting.label for setting in self.settings]
        return labels.index(public) if self.axis == "torch" and public in labels else None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user wrote, an option each."""

    torch: str = ""
    pythons: tuple[Path, ...] = ()
    wheels: tuple[Path, ...] = ()
    triton: str = ""
    cxx: str = ""
    environ: tuple[str, ...] = ()
    """`NAME=A,B`; a name may be repeated."""
    more: tuple[str, ...] = ()
    """Requirements for environments that are made."""
    indexes: tuple[str, ...] = ()

    def series(self, *, devices: bool, versions: Callable[[bool], Sequence[str]]) -> Series:
        """Return the series. `versions` lists the versions of torch there are; it is asked for a range."""
        torches, tritons, compilers = _split(self.torch), _split(self.triton), _split(self.cxx)
        is_range = any(_RANGE in part for part in torches)
        if is_range:
            torches = _in_ranges(torches, versions)
        torches = list(dict.fromkeys(map(_version, torches)))
        variables = self._variables()
        # Where environments are made, an interpreter is what they are made of.
        makes = bool(torches or tritons or self.wheels)
        axes: dict[str, Sequence[object]] = {
            "torch": torches,
            "python": self.pythons,
            "wheel": self.wheels,
            "Triton": tritons,
            "C++ compiler": compilers,
            **variables,
        }
        varied = [name for name, values in axes.items() if len(values) > 1]
        if len(varied) != 1:
            several = f"{' and '.join(varied)} both vary" if varied else "nothing varies"
            raise TorchReproError(
                f"{several}: a series has one setting with several values",
                next_step=f"{_EXAMPLES}, or give several to one of --python, --wheel, --triton, --cxx, --env",
            )
        if torches and self.wheels:
            raise TorchReproError("--torch and --wheel exclude each other", next_step="give one of them")
        for requirement in self.more:
            if not is_requirement(requirement):
                raise TorchReproError(
                    f"{requirement!r} is no requirement", next_step="write --with transformers==5.1"
                )
        axis = varied[0]
        settings = []
        for value in axes[axis]:
            fixed = {name: values[0] for name, values in axes.items() if values}
            chosen = {**fixed, axis: value}
            environ = {name: str(chosen[name]) for name in variables}
            if "C++ compiler" in chosen:
                environ["CXX"] = _compiler(str(chosen["C++ compiler"]))
            python = Path(str(chosen.get("python", sys.executable)))
            recipe = self._recipe(chosen, python, devices) if makes else None
            label = f"{axis}={value}" if axis in variables else str(value)
            settings.append(Setting(label, recipe, python, environ))
        return Series(axis, tuple(settings), is_range)

    def _recipe(self, chosen: Mapping[str, object], python: Path, devices: bool) -> Recipe:
        torch = str(chosen.get("wheel") or "")
        if torch:
            if not Path(torch).is_file():
                raise TorchReproError(
                    f"{torch} does not exist", next_step="give the path of a wheel of torch"
                )
            torch = str(Path(torch).absolute())
        version = chosen.get("torch") or (metadata.version("torch").partition("+")[0])
        return Recipe(
            torch or f"torch=={version}",
            str(chosen.get("Triton", "")),
            self.more,
            devices,
            python.resolve(),
            self.indexes,
        )

    def _variables(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for text in self.environ:
            name, equals, values = text.partition("=")
            if not equals or not name.strip():
                raise TorchReproError(f"{text!r} is no variable", next_step="write --env NAME=A,B")
            found.setdefault(name.strip(), []).extend(values.split(","))
        return found


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise TorchReproError(f"{text!r} is no version of torch", next_step=_EXAMPLES) from None


def _in_ranges(parts: Sequence[str], versions: Callable[[bool], Sequence[str]]) -> list[str]:
    """Return the versions in ranges and those named, in order; `2.11..2.15` has every 2.15.x in it."""
    bounds = []
    for part in parts:
        first, dots, last = part.partition(_RANGE)
        low, high = Version(_version(first)), Version(_version(last if dots else first))
        if low > high:
            raise TorchReproError(f"{part} is empty", next_step="write the older version first")
        bounds.append((low, high, last if dots else first))
    wants_unreleased = any(bound.is_prerelease for low, high, _ in bounds for bound in (low, high))
    found: set[Version] = set()
    for text in versions(wants_unreleased):
        version = Version(Version(text).public)
        for low, high, last in bounds:
            part_of = not high.is_prerelease and version.release[: last.count(".") + 1] == high.release
            below = version <= high or part_of
            if low <= version and below and (wants_unreleased or not version.is_prerelease):
                found.add(version)
    if not found:
        raise TorchReproError(
            f"the package index has no torch in {', '.join(parts)}",
            next_step="widen the range, or name another index (--index)",
        )
    return [str(version) for version in sorted(found)]


def _compiler(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise TorchReproError(f"there is no C++ compiler {name}", next_step="install it, or name another")
    return found
