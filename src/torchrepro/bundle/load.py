"""From a bundle back to a repro: parsed, checked and complete, or a clear line that says what is wrong."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torchrepro.bundle.manifest import GroupEntry, Manifest, MeshEntry, StrEntry, parts_of
from torchrepro.bundle.process_groups import require_groups
from torchrepro.bundle.provenance import is_own, names_it_runs, works_for_stranger
from torchrepro.bundle.read import (
    GRAPH,
    OPERATORS,
    SOURCE,
    TENSORS,
    manifest_of,
    open_bundle_files,
    require_complete,
    text_of,
)
from torchrepro.bundle.safe_state import COMPILERS, MODES, safe_environment, safe_settings
from torchrepro.bundle.storage_file import open_storages
from torchrepro.bundle.values import device_notes, unpack_values
from torchrepro.graph_text.literals import plain_text
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.resolver import IDENTIFIER, resolve_trusted
from torchrepro.nouns.errors import BundleError, damaged
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import (
    SOURCE_TRUST,
    Ambient,
    Collective,
    Compiler,
    Repro,
)
from torchrepro.torch_api.configs import CONFIG_MODULES
from torchrepro.user_code.closure import load_source
from torchrepro.user_code.graph_source import compiler_in, tensors_of_source
from torchrepro.user_code.operators import require_registered, run_kernels, run_registrations
from torchrepro.user_code.settings import load_settings, with_settings


def load_bundle(path: Path, *, trusted: Collection[str] = ()) -> Repro:
    """Load the repro of a bundle. `trusted` names modules whose code its graph or compiler may call.

    Its members are verified first (`provenance.py`): a gigabyte takes about a second.
    """
    return load_verified(path, trusted=trusted, stranger=not is_own(path))


def load_verified(
    path: Path, *, trusted: Collection[str] | None = None, stranger: bool | None = None
) -> Repro:
    """As `load_bundle`, for a bundle that this run has verified, or has written itself.

    Without `trusted`, for what this run has written: its graph may call everything that it names. The
    default of `stranger` is what the process was started for.
    """
    stranger = works_for_stranger() if stranger is None else stranger
    with open_bundle_files(path) as files:
        manifest = manifest_of(files)
        require_complete(path, manifest)
        trusted = names_it_runs(manifest) if trusted is None else trusted
        if stranger:
            _require_plain_strings(manifest, path)
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
    compiler, ambient, refused = _safe_state(manifest, trusted, own=not stranger)
    probe, refused_of_probe = _safe_probe(manifest.probe, trusted, own=not stranger)
    refused += refused_of_probe
    settings, missing = load_settings(manifest.user_settings, source, trusted, path)
    ambient = replace(ambient, left_out=(*ambient.left_out, *missing))
    notes = (*manifest.notes, *device_notes(manifest.values), *refused)
    notes += tuple(f"the setting {name} is not applied: {why}" for name, why in missing.items())
    if not 0 <= manifest.inputs <= len(values) or not 0 <= manifest.earlier <= len(values):
        raise damaged(f"{path}: the manifest does not describe {manifest.inputs} inputs")
    try:
        inputs = tuple(values[f"input.{index}"] for index in range(manifest.inputs))
        calls = [_under(values, f"earlier.{call}.input.") for call in range(manifest.earlier)]
        earlier = tuple(tuple(call[str(index)] for index in range(len(call))) for call in calls)
        collectives = tuple(
            Collective(one.op, one.arguments, *_collective_tensors(values, number))
            for number, one in enumerate(manifest.collectives)
        )
    except KeyError as exc:
        raise damaged(f"{path}: the manifest does not describe {exc}") from exc
    if manifest.custom_ops:
        require_registered(manifest.custom_ops, trusted, lambda: run_registrations(operators), path)
    kernels = run_kernels(operators) if manifest.kernels and SOURCE_TRUST in trusted else {}
    repro = Repro(
        graph=read_graph(text, constants, trusted=trusted, kernels=kernels, source=source, stranger=stranger),
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
        probe=probe,
        groups=manifest.groups,
        collectives=collectives,
        notes=notes,
        stranger=stranger,
    )
    return with_settings(repro, settings)


def _collective_tensors(values: dict[str, Any], number: int) -> tuple[torch.Tensor, torch.Tensor]:
    given, returned = (values[f"collective.{number}.{name}"] for name in ("given", "returned"))
    if not isinstance(given, torch.Tensor) or not isinstance(returned, torch.Tensor):
        raise damaged(f"the collective {number} has no tensors")
    return given, returned


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
            show = f"read it (torchrepro show --source {shlex.quote(str(self.path))})"
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
            raise damaged(f"{SOURCE} does not define {name}")
        return found[name]


def _safe_state(
    manifest: Manifest, trusted: Collection[str], *, own: bool
) -> tuple[Compiler, Ambient, tuple[str, ...]]:
    """Return the compiler and state that a bundle may choose, and notes on what was refused."""
    compiler, ambient = manifest.compiler, manifest.ambient
    _require_known_compiler(compiler, trusted, own=own)
    _require_known_words(manifest)
    compiler, refused = _safe_options(compiler, own=own)
    configs = {}
    for name, settings in ambient.configs.items():
        configs[name], more = safe_settings(settings if name in CONFIG_MODULES else {}, own=own)
        refused += [f"{name}.{setting}" for setting in (more if name in CONFIG_MODULES else settings)]
    environ, not_set = safe_environment(ambient.environ, own=own)
    refused += [] if own else not_set
    notes = _warn_of_refused(refused)
    known = {name: values for name, values in configs.items() if name in CONFIG_MODULES}
    state = replace(ambient, configs=known, environ=ambient.environ if own else environ)
    return compiler, state, notes


def _safe_probe(
    probe: Probe | None, trusted: Collection[str], *, own: bool
) -> tuple[Probe | None, tuple[str, ...]]:
    """Return the probe with the baseline that a bundle may choose, and notes on what was refused."""
    if probe is None or probe.against is None:
        return probe, ()
    _require_known_compiler(probe.against, trusted, own=own)
    against, refused = _safe_options(probe.against, own=own)
    return replace(probe, against=against), _warn_of_refused(refused)


def _safe_options(compiler: Compiler, *, own: bool) -> tuple[Compiler, list[str]]:
    options, refused = safe_settings(compiler.options, own=own)
    return replace(compiler, options=options), refused


def _warn_of_refused(refused: list[str]) -> tuple[str, ...]:
    notes = tuple(f"the setting {name} is not applied: it could name a program or a file" for name in refused)
    for note in notes:
        warnings.warn(note, stacklevel=4)
    return notes


def _require_known_compiler(compiler: Compiler, trusted: Collection[str], *, own: bool) -> None:
    module, _, function = compiler.name.partition(":")
    if ":" in compiler.name and (
        module not in trusted or not (own or IDENTIFIER.match(function) or module == SOURCE_TRUST)
    ):
        raise BundleError(
            f"the bundle's compiler is {compiler.name}, a function that would be imported and run",
            next_step=f"if you know it, allow it with --trust {shlex.quote(module)}",
        )
    if not own and ":" not in compiler.name and compiler.name not in COMPILERS | set(trusted):
        raise BundleError(
            f"the bundle's compiler is {compiler.name!r}, which is not one of torch's own",
            next_step="if it is installed and you know it, allow it with "
            f"--trust {shlex.quote(compiler.name)}",
        )
    # A compiler of the user may have modes of its own.
    if not own and compiler.mode is not None and compiler.mode not in MODES:
        raise BundleError(f"torch.compile has no mode {compiler.mode!r}", next_step="do not trust the bundle")


def _require_known_words(manifest: Manifest) -> None:
    """Raise if words of the state that end up in code (`torch.WORD`) are not torch's own."""
    ambient = manifest.ambient
    dtypes = [ambient.default_dtype, *(cast.dtype for cast in ambient.autocast)]
    known = all(isinstance(getattr(torch, name, None), torch.dtype) for name in dtypes)
    known &= all(IDENTIFIER.match(cast.device) is not None for cast in ambient.autocast)
    known &= all(IDENTIFIER.match(symbol.name) is not None for symbol in manifest.symbols)
    known &= ambient.matmul_precision in ("highest", "high", "medium")
    known &= ambient.deterministic in ("off", "warn", "error")
    known &= ambient.threads is None or ambient.threads > 0
    if not known:
        raise BundleError(
            "the manifest describes a state that torch does not have", next_step="do not trust it"
        )


def _require_plain_strings(manifest: Manifest, path: Path) -> None:
    """Raise if an input or the name of a group is a text that compilers could write into generated code."""
    texts = [] if manifest.groups is None else [*manifest.groups.groups]
    for entry in parts_of(manifest.values):
        match entry:
            case StrEntry(value=text) | GroupEntry(name=text):
                texts.append(text)
            case MeshEntry(names=names, groups=groups):
                texts += (*(names or ()), *groups)
    for text in texts:
        if text != plain_text(text):
            raise BundleError(
                f"{path} holds the text {text[:40]!r}; a stranger's may hold plain words",
                next_step="ask for a bundle with another text",
            )


def _under(values: dict[str, object], prefix: str) -> dict[str, object]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}
