"""The argument of every verb: a bundle, a program to run, or a function."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins

from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import file_digest
from torchrepro.engine.search.run_directory import CAUGHT, write_json
from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.nouns.repro import ModelRequest


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed target."""

    text: str
    file: Path | None = None
    """The program, or the file of the function; None: a bundle, or a function of an installed module."""
    function: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a bundle, a SCRIPT.py, FILE.py:FUNCTION or package.module:FUNCTION."""
        found = re.fullmatch(r"(.+\.py|[A-Za-z_][\w.]*):([A-Za-z_]\w*)", text)
        if found is None and Path(text).suffix != ".py":
            return cls(text)
        file = Path(text) if found is None else _file_of(found[1])
        if file is not None and not file.exists():
            raise TorchReproError(
                f"{file} does not exist", next_step="give a bundle, a script or FILE.py:FUNCTION"
            )
        return cls(text, file, "" if found is None else found[2])

    @property
    def is_bundle(self) -> bool:
        return self.file is None and not self.function

    @property
    def is_program(self) -> bool:
        return self.file is not None and not self.function

    @property
    def path(self) -> Path:
        """The path that a directory for its results is named after."""
        named = self.file if self.file is not None else Path(re.sub(r"\W", "-", self.text))
        return named.with_name(f"{named.stem}-{self.function}" if self.function else named.stem)

    def require_fitting(self, request: ModelRequest) -> None:
        """Raise if a bundle or a program is given options for a model: it says itself how it is run."""
        plain = ModelRequest(request.target)
        if self.function or request == plain:
            return
        given, usual = to_builtins(request), to_builtins(plain)
        names = [name for name, value in given["compiler"].items() if value != usual["compiler"][name]]
        names += [name for name in given if name != "compiler" and given[name] != usual[name]]
        raise TorchReproError(
            f"{request.target} is no FILE.py:FUNCTION: it says itself how it is run ({', '.join(names)})",
            next_step="leave these options out, or name the function that returns the model",
        )

    def caught_before(self, directory: Path, request: ModelRequest) -> Path | None:
        """Return the bundle that the same command left in a directory, if the file is still the same."""
        if self.file is None:
            return None
        try:
            record = json.loads((directory / f"{CAUGHT}.json").read_text())
            bundle = directory / str(record["bundle"])
            same = record["file"] == file_digest(self.file) and record["request"] == to_builtins(request)
            # Not one that came along with the program: it may run what it names.
            return bundle if same and is_own(bundle) else None
        except (OSError, ValueError, KeyError, TypeError, BundleError):
            return None

    def remember(self, bundle: Path, directory: Path, request: ModelRequest) -> None:
        """Record which bundle was caught, for `caught_before`."""
        if self.file is not None and bundle.is_relative_to(directory):
            place = str(bundle.relative_to(directory))
            record = {"file": file_digest(self.file), "request": to_builtins(request), "bundle": place}
            write_json(directory / f"{CAUGHT}.json", record)


def _file_of(named: str) -> Path | None:
    """Return the file of FILE.py or of a module in the working directory; None for an installed one."""
    if named.endswith(".py"):
        return Path(named)
    path = Path(*named.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.exists()), None)
