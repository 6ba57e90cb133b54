"""Compare two environments: where it failed, and another one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import read_manifest, read_small_file
from torchrepro.engine.processes.fresh_process import result_in_isolation
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.verdict import as_data
from torchrepro.report.contents import Difference
from torchrepro.report.privacy import shareable_environ

HERE = "here"
"""The value of `--against` for this machine."""


@dataclass(frozen=True, slots=True)
class Surrounding:
    """Versions, hardware and settings of one environment."""

    environment: Environment
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


def settings_of(manifest: Manifest) -> dict[str, Any]:
    """Return the settings that are not torch's default: compiler, configs, modes, switches."""
    compiler, ambient = manifest.compiler, manifest.ambient
    chosen = {} if compiler == Compiler() else {"compiler": str(compiler)}
    threads = {} if ambient.threads is None else {"threads": ambient.threads}
    code = {str(entry): entry.shown for entry in manifest.user_settings}
    return {**chosen, **ambient.non_default, **code, **threads, **shareable_environ(ambient.environ)}


def other_place(against: str) -> Surrounding:
    """Return the environment in `--against`: `here`, another bundle, or a report of `--format json`."""
    if against == HERE:
        return _here()
    path = Path(against)
    if not path.is_file() or path.suffix != ".json":
        manifest = read_manifest(path)
        is_own(path)  # a damaged bundle is an error, one's own and a stranger's
        return Surrounding(manifest.environment, settings_of(manifest), path.name)
    try:
        data = json.loads(read_small_file(path))
        environment = msgspec.convert(data["environment"], Environment)
        return Surrounding(environment, dict(data.get("settings") or {}), path.name)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, msgspec.ValidationError) as exc:
        raise TorchReproError(
            f"{path} is no report of torchrepro ({type(exc).__name__})",
            next_step="write one with torchrepro report BUNDLE --format json",
        ) from None


def differences(ours: Surrounding, other: Surrounding) -> tuple[Difference, ...]:
    """Return every line that differs, in the order of an environment, settings last."""
    left, right = (
        {**lines_of(place.environment), **settings_lines(place.settings)} for place in (ours, other)
    )
    # Not every bundle has the number of threads: then there is nothing to compare.
    unknown = {"threads"} - (left.keys() & right.keys())
    names = [name for name in dict.fromkeys((*left, *right)) if name not in unknown]
    return tuple(
        Difference(name, left.get(name, "not set"), right.get(name, "not set"))
        for name in names
        if left.get(name) != right.get(name)
    )


def lines_of(environment: Environment | None) -> dict[str, str]:
    """Return the known values of an environment, as text by name."""
    return {
        name: ", ".join(value) if isinstance(value, tuple) else str(value)
        for name, value in (asdict(environment) if environment is not None else {}).items()
        if value
    }


def settings_lines(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the settings as text by name; nested ones have dotted names."""
    found: dict[str, str] = {}
    for name, value in (settings or {}).items():
        if isinstance(value, Mapping) and value:
            found |= {f"{name}.{inner}": shown for inner, shown in settings_lines(value).items()}
        else:
            found[str(name)] = value if isinstance(value, str) else json.dumps(as_data(value), default=str)
    return found


def _here() -> Surrounding:
    """Return this machine's environment, from a fresh process: a query for GPUs starts CUDA."""
    told = result_in_isolation(
        "torchrepro.report.error_map:environment_here",
        {"environ": dict(shareable_environ(os.environ))},
        time_limit=120.0,
        unfinished="the environment of this machine is unknown",
        next_step='try python -c "import torch"',
    )
    environment = msgspec.convert(told["environment"], Environment)
    return Surrounding(environment, told["settings"], "this machine")
