"""From a bundle back to a repro: parsed, checked and complete, or a clear line that says what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchrepro.bundle.manifest import Manifest, safe_settings
from torchrepro.bundle.process_groups import require_groups
from torchrepro.bundle.provenance import is_own, names_it_runs
from torchrepro.bundle.read import GRAPH, OPERATORS, SOURCE, TENSORS, manifest_of, open_bundle_files, text_of
from torchrepro.bundle.storage_file import open_storages
from torchrepro.bundle.values import device_notes, unpack_values
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.resolver import resolve_trusted
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import (
    SOURCE_TRUST,
    Ambient,
    Collective,
    Compiler,
    Repro,
)
from torchrepro.user_code.closure import load_source
from torchrepro.user_code.graph_source import compiler_in, tensors_of_source
from torchrepro.user_code.operators import require_registered, run_kernels, run_registrations
from torchrepro.user_code.settings import load_settings, with_settings


def load_bundle(path: Path, *, trusted: Collection[str] = ()) -> Repro:
    """Load the repro of a bundle. `trusted` names modules whose code its graph or compiler may call.

    Its members are verified first (`provenance.py`): a gigabyte takes about a second.
    """
    own = is_own(path)
    return replace(load_verified(path, trusted=trusted), stranger=not own)


def load_verified(path: Path, *, trusted: Collection[str] | None = None) -> Repro:
    """As `load_bundle`, for a bundle that this run has verified, or has written itself.

    Without `trusted`, for what this run has written: its graph may call everything that it names.
    """
    with open_bundle_files(path) as files:
        manifest = manifest_of(files)
        trusted = names_it_runs(manifest) if trusted is None else trusted
        if manifest.groups is not None:
            require_groups(manifest.groups)
        file, start, length = files.span(TENSORS)
        text = text_of(files, GRAPH)
        operators = text_of(files, OPERATORS) if OPERATORS in files else ""
        code = _Code(path, text_of(files, SOURCE) if SOURCE in files else "", trusted)
        values = unpack_values(
            manifest.values, open_storages(file, start, length).__getitem__, find_code=code.find
        )
    constants = _under(values, "constant.")
    source = code.source(values) if code.text else None
    compiler, ambient, refused = _safe_state(manifest, trusted)
    settings, missing = load_settings(manifest.user_settings, source, trusted, path)
    ambient = replace(ambient, left_out=(*ambient.left_out, *missing))
    notes = (*manifest.notes, *device_notes(manifest.values), *refused)
    notes += tuple(f"the setting {name} is not applied: {why}" for name, why in missing.items())
    try:
        inputs = tuple(values[f"input.{index}"] for index in range(manifest.inputs))
        calls = [_under(values, f"earlier.{call}.input.") for call in range(manifest.earlier)]
        earlier = tuple(tuple(call[str(index)] for index in range(len(call))) for call in calls)
        collectives = tuple(
            Collective(one.op, one.arguments, *_collective_tensors(values, number))
            for number, one in enumerate(manifest.collectives)
        )
    except KeyError as exc:
        raise BundleError(
            f"{path}: the manifest does not describe {exc}", next_step="take the bundle again"
        ) from exc
    if manifest.custom_ops:
        require_registered(manifest.custom_ops, trusted, lambda: run_registrations(operators), path)
    kernels = run_kernels(operators) if manifest.kernels and SOURCE_TRUST in trusted else {}
    repro = Repro(
        graph=read_graph(text, constants, trusted=trusted, kernels=kernels, source=source),
        inputs=inputs,
        place=manifest.place,
        compiler=compiler if source is None else compiler_in(compiler, source),
        ambient=replace(ambient, rng=_under(values, "rng.")),
        symbols=manifest.symbols,
        backward=manifest.backward,
        strict=manifest.strict,
        tolerance=manifest.tolerance,
        expected=manifest.expected,
        earlier=earlier,
        origin=manifest.origin,
        groups=manifest.groups,
        collectives=collectives,
        notes=notes,
    )
    return with_settings(repro, settings)


def _collective_tensors(values: dict[str, Any], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return values[f"collective.{number}.given"], values[f"collective.{number}.returned"]


@dataclass
class _Code:
    """The user's code that a bundle names. None of it runs or is imported unless it is trusted."""

    path: Path
    text: str
    """The source in the bundle; empty where it has none."""
    trusted: Collection[str]
    _module: ModuleType | None = None

    def source(self, values: Mapping[str, Any]) -> ModuleType:
        """Run the source in the bundle, once, on the tensors among the values that it needs."""
        if SOURCE_TRUST not in self.trusted:
            show = f"read it (torchrepro show --source {self.path})"
            raise BundleError(
                f"{self.path} runs code of its user, which it keeps in {SOURCE}",
                next_step=f"{show}, then allow it with --trust {SOURCE_TRUST}",
            )
        if self._module is None:
            self._module = load_source(self.text, tensors_of_source(_under(dict(values), "constant.")))
        return self._module

    def find(self, path: str, values: Mapping[str, Any]) -> Any:
        """Return the class or object at `source:NAME` or `module:Class`."""
        place, _, name = path.partition(":")
        if place != SOURCE_TRUST:
            return resolve_trusted(path, self.trusted)
        found = vars(self.source(values))
        if name not in found:
            raise BundleError(f"{SOURCE} does not define {name}", next_step="take the bundle again")
        return found[name]


def _safe_state(manifest: Manifest, trusted: Collection[str]) -> tuple[Compiler, Ambient, tuple[str, ...]]:
    """Return the compiler and state that an untrusted bundle may choose, and notes on what was refused."""
    compiler = manifest.compiler
    module = compiler.name.partition(":")[0]
    if ":" in compiler.name and module not in trusted and module.partition(".")[0] != "torch":
        raise BundleError(
            f"the bundle's compiler is {compiler.name}, a function that would be imported and run",
            next_step=f"if you know it, allow it with --trust {module}",
        )
    _require_known_words(manifest.ambient)
    options, refused = safe_settings(compiler.options)
    configs = {}
    for name, settings in manifest.ambient.configs.items():
        configs[name], more = safe_settings(settings)
        refused += [f"{name}.{setting}" for setting in more]
    notes = tuple(f"the setting {name} is not applied: it could name a program or a file" for name in refused)
    for note in notes:
        warnings.warn(note, stacklevel=3)
    return replace(compiler, options=options), replace(manifest.ambient, configs=configs), notes


def _require_known_words(ambient: Ambient) -> None:
    """Raise if words of the state that end up in code (`torch.WORD`) are not torch's own."""
    dtypes = [ambient.default_dtype, *(cast.dtype for cast in ambient.autocast)]
    known = all(isinstance(getattr(torch, name, None), torch.dtype) for name in dtypes)
    known &= ambient.matmul_precision in ("highest", "high", "medium")
    known &= ambient.deterministic in ("off", "warn", "error")
    if not known:
        raise BundleError(
            "the manifest describes a state that torch does not have", next_step="do not trust it"
        )


def _under(values: dict[str, object], prefix: str) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
