"""From an artefact to a bundle: the graph through the reader of graph text, inputs from bytes or as recipes.

An artefact is a stranger's like any file: `--trust` alone makes its bundle the user's own. Its text goes
through the same table as a stranger's graph (`graph_text/resolver.py`). Storages are read as bytes out of the
zip that `torch.save` writes; the pickle in it is not opened. Data that is not there becomes a recipe.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.read import read_manifest, read_small_file
from torchrepro.bundle.tensors import available_device, parse_device
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.syntax import unused_name
from torchrepro.interchange.artefact import (
    Artefact,
    ArtefactError,
    GeneratorInput,
    Input,
    NumberInput,
    StorageLine,
    TensorInput,
    TensorState,
)
from torchrepro.interchange.find_artefacts import Payload
from torchrepro.interchange.read_artefact import read_artefact
from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.nouns.repro import Ambient, Autocast, Compiler, Place, Repro, Symbol, telling_environment
from torchrepro.nouns.verdict import Kind, Signature
from torchrepro.script.save_bundle import save_bundle
from torchrepro.torch_api.configs import CONFIG_MODULES, default_of
from torchrepro.torch_api.fake import FakeTensorMode

_LARGEST_STORAGE = 16 << 30
_LARGEST_MODULES = 1 << 30
_DEBUGGING = re.compile(r"(TORCHDYNAMO_REPRO_|TORCH_COMPILE_DEBUG|TORCH_TRACE|TORCH_LOGS).*")
_DEBUG_SETTING = re.compile(r"(trace\.|debug|repro_|verbose|.*log|generate_intermediate_hooks).*")
_UNSAID = "the artefact does not say how it failed: torchrepro check tells"


@dataclass(frozen=True, slots=True)
class ImportedBundle:
    """A bundle, and what a reader must know of it."""

    bundle: Path
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """An artefact that was not imported."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of the artefacts at a path."""

    bundles: tuple[ImportedBundle, ...]
    refused: tuple[Refused, ...] = ()


def import_each(
    payloads: Sequence[Payload],
    *,
    out: Path | None,
    trusted: Collection[str],
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Imported:
    """Write a bundle for each artefact; the reason for a single one that cannot be read is raised."""
    several = len(payloads) > 1
    bundles, refused = [], []
    for payload in payloads:
        on_phase(f"import {payload.name}")
        target = place_for(payload, out, several=several)
        try:
            written = import_artefact(payload, target, trusted=trusted)
        except BundleError:
            raise  # it cannot be written: the others cannot either
        except TorchReproError as exc:
            fact = f"{payload.path.name}: {exc.fact}"
            if not several:
                raise TorchReproError(fact, next_step=exc.next_step) from exc
            refused.append(Refused(payload.name, f"{fact}; {exc.next_step}"))
            continue
        bundles.append(ImportedBundle(written, read_manifest(written).notes))
    return Imported(tuple(bundles), tuple(refused))


def import_artefact(payload: Payload, out: Path, *, trusted: Collection[str] = ()) -> Path:
    """Write the bundle of an artefact; it is the user's own if anything is `trusted`, else a stranger's."""
    repro = repro_of(read_artefact(payload.text, payload.path.name), payload.path, trusted=trusted)
    return save_bundle(repro, out)


def repro_of(artefact: Artefact, path: Path, *, trusted: Collection[str] = ()) -> Repro:
    """Return the repro that an artefact describes; `path` is its file, next to which its data lies."""
    stranger = not trusted
    tensors = _Tensors(artefact, path, anywhere=bool(trusted))
    inputs = tuple(map(tensors.input, artefact.inputs))
    constants = {state.name: tensors.state(state) for state in artefact.state}
    if artefact.modules:
        _require_small_modules(artefact, constants, trusted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # modules of torch.nn start from random weights
        graph = read_graph(artefact.graph_text, constants, trusted=trusted, stranger=stranger)
    dynamic = artefact.place is Place.AFTER_CAPTURE and bool(artefact.symbols)
    configs, left_out = _configs(artefact.configs)
    after_aot = artefact.place is Place.AFTER_AOT
    written_by = f" of torch {artefact.torch}" if artefact.torch else ""
    return Repro(
        graph=graph,
        inputs=inputs,
        place=artefact.place,
        # Torch's own launcher captures a graph of Dynamo once more, which makes sizes dynamic again.
        compiler=Compiler(artefact.backend, dynamic=True if dynamic else None, recapture=dynamic),
        ambient=Ambient(
            grad_enabled=not after_aot,
            autocast=(Autocast("cuda", "float16"),) if artefact.autocast else (),
            configs=configs,
            environ={
                name: value
                for name, value in telling_environment(artefact.environ).items()
                if not _DEBUGGING.fullmatch(name)
            },
        ),
        symbols=tuple(Symbol(name, value) for name, value in artefact.symbols.items()),
        expected=Signature(Kind.MISMATCH) if artefact.accuracy else None,
        notes=(
            f"imported from {artefact.name}{written_by}",
            *(() if artefact.accuracy else (_UNSAID,)),
            *artefact.notes,
            *(f"the setting {name} is unknown to this torch, and is left out" for name in left_out),
            *tensors.notes(),
        ),
        stranger=stranger,
    )


def _configs(recorded: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the settings that differ from this torch's own, and the names of those it does not have.

    Artefacts list every setting that was ever touched; those that only write logs are no part of a failure.
    """
    kept: dict[str, dict[str, Any]] = {}
    unknown: list[str] = []
    for module, values in recorded.items():
        for name, value in values.items():
            if _DEBUG_SETTING.fullmatch(name):
                continue
            try:
                default = default_of(module, name) if module in CONFIG_MODULES else ...
            except (KeyError, AttributeError):
                default = ...
            if default is ...:
                unknown.append(f"{module}.{name}")
            elif default != value:
                kept.setdefault(module, {})[name] = value
    return kept, unknown


def _require_small_modules(
    artefact: Artefact, constants: Mapping[str, Any], trusted: Collection[str]
) -> None:
    """Raise if modules of torch.nn would need more memory than an import may take; build them on `meta`."""
    with torch.device("meta"):
        graph = read_graph(artefact.graph_text, constants, trusted=trusted, stranger=not trusted)
    size = sum(tensor.nbytes for tensor in graph.state_dict().values() if tensor.device.type == "meta")
    if size > _LARGEST_MODULES:
        raise TorchReproError(
            f"the modules of {artefact.name} have {size:,} bytes of weights",
            next_step="run the program itself under torchrepro run, which keeps its own weights",
        )


class _Tensors:
    """Builds the tensors of an artefact: on the bytes of its storages, or without data."""

    def __init__(self, artefact: Artefact, path: Path, *, anywhere: bool) -> None:
        self._artefact = artefact
        self._places = [path.parent / "checkpoints" / "storages", path.parent / "storages"]
        # What an artefact names by itself may be any file of this machine.
        self._places += [Path(artefact.save_dir) / "storages"] if anywhere and artefact.save_dir else []
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: dict[str, torch.UntypedStorage | None] = {}
        self._fakes: dict[str, torch.UntypedStorage] = {}
        self._remarks: list[str] = []
        self._invented = 0

    def notes(self) -> list[str]:
        """Return what is not as it was when the artefact was written."""
        what = f"the artefact has no data for {self._invented} of its tensors: they get random values"
        return [
            *self._remarks,
            *([f"{what} of the same shape, dtype and strides, integers 0 or 1"] if self._invented else []),
        ]

    def input(self, described: Input) -> Any:
        match described:
            case NumberInput(value=value):
                return value
            case GeneratorInput(device=device):
                return torch.Generator(available_device(parse_device(device)))
        return self._tensor(described)

    def _tensor(self, described: TensorInput) -> torch.Tensor:
        line = self._artefact.storages[described.storage]
        dtype = _dtype(described.dtype, described.line)
        _require_inside(described, line, dtype)
        storage = self._real(described.storage, line)
        if storage is None:
            self._invented += 1
            with self._mode:
                fake = self._fake(described.storage, line)
                return _over(fake, described, dtype, parse_device(line.device))
        return _over(storage, described, dtype, storage.device)

    def _fake(self, name: str, line: StorageLine) -> torch.UntypedStorage:
        if name not in self._fakes:
            memory = torch.empty(line.nbytes.value, dtype=torch.uint8, device=parse_device(line.device))
            self._fakes[name] = memory.untyped_storage()
        return self._fakes[name]

    def _real(self, name: str, line: StorageLine) -> torch.UntypedStorage | None:
        """Return the memory with its recorded bytes; None where they are not there."""
        if name not in self._storages:
            self._storages[name] = self._load(line) if line.digest else None
        return self._storages[name]

    def _load(self, line: StorageLine) -> torch.UntypedStorage | None:
        # A link next to a stranger's file may lead anywhere; `read_small_file` follows none either.
        places = [place for place in self._places if not place.is_symlink()]
        path = next((place / line.digest for place in places if (place / line.digest).exists()), None)
        if path is None:
            return None
        try:
            content = _storage_bytes(path)
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as exc:
            self._remarks.append(f"line {line.line}: {line.digest} cannot be read ({exc})")
            return None
        if len(content) != line.nbytes.value:
            self._remarks.append(
                f"line {line.line}: {line.digest} has {len(content)} bytes, not {line.nbytes.value}"
            )
            return None
        device = available_device(parse_device(line.device))
        if device.type != parse_device(line.device).type:
            self._remarks.append(f"line {line.line}: {line.device} is not here, its values are on {device}")
        # An empty buffer has no memory to share.
        memory = (
            torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        )
        return memory.to(device).untyped_storage()

    def state(self, state: TensorState) -> Any:
        dtype = _dtype(state.dtype, state.line) if state.dtype else None
        if state.values is not None:
            try:
                made = torch.tensor(state.values, dtype=dtype)
            except (ValueError, TypeError, RuntimeError) as exc:
                raise ArtefactError(state.line, f"the values of {state.name} are no tensor ({exc})") from None
            if made.is_floating_point():
                self._remarks.append(f"the values of {state.name} have the four digits that torch prints")
            made = made.to(available_device(parse_device(state.device)))
        else:
            self._invented += 1
            _require_representable(state, dtype or torch.float32)
            with self._mode:
                made = torch.empty(state.shape or (), dtype=dtype, device=parse_device(state.device))
        if state.parameter:
            return torch.nn.Parameter(made, requires_grad=made.is_floating_point() or made.is_complex())
        return made


def _storage_bytes(path: Path) -> bytearray:
    """Return the bytes in a file of `torch.save(storage)`: a zip with one uncompressed `NAME/data/0`."""
    with zipfile.ZipFile(io.BytesIO(read_small_file(path, _LARGEST_STORAGE))) as archive:
        found = [item for item in archive.infolist() if item.filename.endswith("/data/0")]
        if len(found) != 1 or found[0].compress_type != zipfile.ZIP_STORED:
            raise ValueError("it is no storage that torch has saved")
        return bytearray(archive.read(found[0]))


def _dtype(name: str, line: int) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ArtefactError(line, f"torch has no dtype {name}")
    return dtype


def _require_inside(described: TensorInput, line: StorageLine, dtype: torch.dtype) -> None:
    sizes = [size.value for size in described.shape]
    last = described.offset.value + sum(
        (size - 1) * step.value for size, step in zip(sizes, described.stride, strict=True)
    )
    if 0 not in sizes and (last + 1) * dtype.itemsize > line.nbytes.value:
        raise ArtefactError(
            described.line,
            f"a tensor of shape {tuple(sizes)} does not fit into its storage of {line.nbytes.value} bytes",
        )


def _require_representable(state: TensorState, dtype: torch.dtype) -> None:
    count = dtype.itemsize
    for size in state.shape or ():
        count *= size
        if count > 1 << 62:
            raise ArtefactError(state.line, f"{state.name} is larger than a tensor can be")


def _over(
    storage: torch.UntypedStorage, described: TensorInput, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the tensor over a memory; one that is no leaf of autograd has a history, as torch makes it.

    The memory of fake tensors is on `meta`, whatever their device is.
    """
    where = (
        described.offset.value,
        [size.value for size in described.shape],
        [step.value for step in described.stride],
    )
    made = torch.empty(0, dtype=dtype, device=device)
    with torch.no_grad():
        made.set_(storage, *where)
    if not described.requires_grad:
        return made
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ArtefactError(described.line, f"{dtype} has no gradients")
    made.requires_grad_()
    if described.is_leaf:
        return made
    with torch.enable_grad():
        later = made.clone(memory_format=torch.preserve_format)
    with torch.no_grad():
        later.set_(storage, *where)
    return later


def place_for(payload: Payload, out: Path | None, *, several: bool) -> Path:
    """Return where a bundle goes: `out` itself, or a new name in it for one of several."""
    if out is not None and not several:
        return out
    directory = out or Path("torchrepro-out")
    taken = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    name = re.sub(r"[^\w.-]", "_", f"imported-{payload.name}", flags=re.ASCII)[:120]
    return directory / unused_name(name, taken, join="-")
