"""Import one artefact after the other: one that cannot be understood does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.read import read_manifest
from torchrepro.interchange.find_artefacts import Payload
from torchrepro.nouns.errors import BundleError, TorchReproError


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
    from torchrepro.interchange.import_artefact import import_artefact, place_for  # imports torch

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
