"""Probe a bundle or a user's model: each probe, of each graph, in a process of its own. Needs no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.provenance import names_it_runs, standing_of
from torchrepro.bundle.read import read_manifest, require_complete
from torchrepro.engine.check_bundle import OnPhase, isolation_for
from torchrepro.engine.compare_model import record_graphs, save_whole_call
from torchrepro.engine.processes.fresh_process import judged_in_isolation
from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.nouns.probe import Probe, ProbeAnswer
from torchrepro.nouns.repro import ModelRequest, telling_environment
from torchrepro.nouns.verdict import Kind, Signature, Verdict

ONLY_SIZES = {"dynamo": {"specialize_float": True}}
"""With dynamic shapes capture makes inputs of floats as well (the eps of a normalisation), which the graph
reads by `.item()`: then nothing in it is known before it runs."""


@dataclass(frozen=True, slots=True)
class Found:
    """The verdict on one graph, and the probe that asks for no more than what failed."""

    bundle: Path
    verdict: Verdict
    probe: Probe


@dataclass(frozen=True, eq=False)
class ProbedTarget:
    """What is probed, and how."""

    request: ModelRequest
    """Of a function; a bundle is its target alone."""
    is_bundle: bool
    scratch: Path
    save_to: Path | None = None
    trusted: tuple[str, ...] = ()
    time_limit: float = 300.0
    on_phase: OnPhase = field(default=lambda phase: None)

    def answer(self, probe: Probe) -> ProbeAnswer:
        """Ask one probe about each graph, until one fails."""
        bundles = self._with_symbols if probe.kind in (Kind.SIZES, Kind.BATCH) else self._bundles
        passing: ProbeAnswer | None = None
        for bundle in bundles:
            found = self._found(bundle, probe)
            origin = read_manifest(bundle).origin
            place = str(origin) if origin is not None and len(bundles) > 1 else ""
            answer = ProbeAnswer(probe.kind, found.verdict, place)
            if found.verdict.fails:
                return replace(answer, bundle=self._saved(found))
            if passing is None or (found.verdict.testable and not passing.verdict.testable):
                passing = answer
        assert passing is not None, "there is a bundle"
        return passing if len(bundles) == 1 else replace(passing, place=f"{len(bundles)} graphs")

    @cached_property
    def _bundles(self) -> tuple[Path, ...]:
        if self.is_bundle:
            path = Path(self.request.target)
            require_complete(path, read_manifest(path))
            return (path,)
        return self._recorded(self.request, "graphs")

    @cached_property
    def _with_symbols(self) -> tuple[Path, ...]:
        """The graphs as capture makes them for dynamic shapes, where it can."""
        if self.is_bundle or self.request.compiler.dynamic:
            return self._bundles
        dynamic = replace(self.request, compiler=replace(self.request.compiler, dynamic=True))
        with suppress(TorchReproError):
            return self._recorded(dynamic, "dynamic", ONLY_SIZES)
        return self._bundles

    def _recorded(
        self, request: ModelRequest, name: str, configs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> tuple[Path, ...]:
        """Record the graphs of a model; the whole call where capture makes none."""
        directory = self.scratch / name
        directory.mkdir()
        recorded = record_graphs(
            request, directory, time_limit=self.time_limit, configs=configs, on_phase=self.on_phase
        )
        if recorded is not None and recorded.bundles:
            return recorded.bundles
        nothing = Verdict(Kind.NOT_COMPARABLE)
        whole = self.scratch / f"{name}-whole"
        return (save_whole_call(request, nothing, whole, time_limit=self.time_limit, on_phase=self.on_phase),)

    def _found(self, bundle: Path, probe: Probe) -> Found:
        manifest = read_manifest(bundle)
        trusted = self._trusted(manifest)
        told: list[Probe] = []

        def take(message: Mapping[str, Any]) -> None:
            told.extend([msgspec.convert(message["probe"], Probe)] if "probe" in message else [])

        with isolation_for(bundle, manifest, self.time_limit, trusted, self.on_phase) as (payload, how):
            payload = {**payload, "probe": msgspec.to_builtins(probe)}
            try:
                verdict = judged_in_isolation(
                    "torchrepro.execute.probes.probe_repro:probe", payload, on_message=take, **how
                )
            except BundleError:
                raise  # no probe can open it
            except TorchReproError as exc:  # eager does not finish in time: the other probes are still asked
                verdict = Verdict(Kind.INVALID, summary=str(exc))
        return Found(bundle, verdict, told[-1] if told else probe)

    def _trusted(self, manifest: Manifest) -> tuple[str, ...]:
        """Return what the user trusts: in graphs of their own function all that these call."""
        return self.trusted if self.is_bundle else names_it_runs(manifest)

    def _saved(self, found: Found) -> Path | None:
        if self.save_to is None:
            return None
        from torchrepro.bundle.load import load_verified
        from torchrepro.script.save_bundle import save_bundle

        # Saved anew, a stranger's stays a stranger's: it is not signed.
        manifest = read_manifest(found.bundle)
        standing = standing_of(found.bundle, manifest, self._trusted(manifest))
        stranger = self.is_bundle and not standing.own
        repro = load_verified(found.bundle, trusted=standing.trusted, stranger=stranger)
        # What fails without being varied is an ordinary failure, and crashes and hangs have no evidence.
        plain = found.verdict.kind in (Kind.MISMATCH, Kind.NON_FINITE, Kind.COMPILE_ERROR, Kind.RUN_ERROR)
        repro = replace(repro, probe=None if plain else found.probe, expected=Signature.of(found.verdict))
        path = self.save_to / f"{new_run_id()}-{found.probe.kind.value}"
        return save_bundle(repro, path, verdict=found.verdict)


def probe_target(
    request: ModelRequest,
    probes: Sequence[Probe],
    *,
    is_bundle: bool,
    save_to: Path | None = None,
    trusted: tuple[str, ...] = (),
    time_limit: float = 300.0,
    on_phase: OnPhase = lambda phase: None,
) -> Iterator[ProbeAnswer]:
    """Yield the answer of each probe as it comes; what fails is saved at once."""
    request = replace(request, environ=telling_environment())
    with tempfile.TemporaryDirectory(prefix="torchrepro-probe-") as scratch:
        target = ProbedTarget(request, is_bundle, Path(scratch), save_to, trusted, time_limit, on_phase)
        for probe in probes:
            on_phase(f"probe {probe.kind.value}")
            yield target.answer(probe)
