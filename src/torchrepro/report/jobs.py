"""What a report runs in a process of its own: a bundle, to look at its values; and "what is here?"."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.bundle.load import load_bundle
from torchrepro.execute.judge_repro import subject_of_repro
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Phase, Phases, judge
from torchrepro.judge.randomness import Draws
from torchrepro.judge.rule import Rule
from torchrepro.nouns.comparison import Comparison, LeafComparison
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.plain import as_data
from torchrepro.report.error_map import error_map
from torchrepro.state.ambient import applied_settings

_TENSORS = 3
"""Wrong tensors that a report shows; the verdict names all."""


def measure(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a bundle, and map the errors of its worst tensors: `{"verdict": ..., "maps": [...]}`."""
    phase("load")
    trusted = tuple(payload.get("trusted", ()))
    if trusted:
        sys.path.insert(0, os.getcwd())
    repro = load_bundle(Path(payload["bundle"]), trusted=trusted)
    phases = Phases(phase)
    runs = _Runs()
    subject = subject_of_repro(repro, phases, fp64=payload.get("fp64", True))
    subject = replace(
        subject,
        eager=runs.kept("eager", subject.eager),
        compiled=runs.kept("compiled", subject.compiled),
        truth=runs.kept_truth(subject.truth) if subject.truth else None,
    )
    rule = Rule(strict=repro.strict, tol=repro.tolerance)
    with applied_settings(repro.ambient):
        verdict = judge(subject, rule=rule, rng=repro.ambient.rng or None, phase=phases)
    # Not by its truth: a comparison is true where nothing differs.
    maps = runs.maps(verdict.comparison) if verdict.comparison is not None else []
    return {"verdict": msgspec.to_builtins(verdict.with_notes(*repro.notes)), "maps": maps}


def environment_here(payload: dict[str, Any], phase: Phase) -> Any:
    """The versions, the hardware and the telling environment variables of this machine now."""
    if torch.cuda.is_available():
        torch.cuda.init()  # nothing is forked from here, and the names of the devices are wanted
    settings = {"threads": torch.get_num_threads(), **payload["environ"]}
    return {"environment": msgspec.to_builtins(Environment.capture()), "settings": settings}


class _Runs:
    """The first run of each side, with all its values."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}

    def kept(
        self, side: str, run: Callable[[AbstractContextManager[Any]], Run]
    ) -> Callable[[AbstractContextManager[Any]], Run]:
        def running(around: AbstractContextManager[Any]) -> Run:
            found = run(around)
            self._runs.setdefault(side, found)
            return found

        return running

    def kept_truth(
        self, run: Callable[[Draws], tuple[Run, tuple[str, ...]]]
    ) -> Callable[[Draws], tuple[Run, tuple[str, ...]]]:
        def running(draws: Draws) -> tuple[Run, tuple[str, ...]]:
            found, notes = run(draws)
            self._runs["truth"] = found
            return found, notes

        return running

    def maps(self, comparison: Comparison) -> list[Any]:
        """Of the worst tensors that differ, as plain data."""
        sides = {side: _tensors_of(run) for side, run in self._runs.items()}
        found: list[Any] = []
        for leaf in sorted(comparison.differing, key=_badness):
            tensors = [sides.get(side, {}).get(leaf.path) for side in ("eager", "compiled", "truth")]
            eager, compiled, truth = tensors
            if eager is None or compiled is None or len(found) == _TENSORS:
                continue
            one = error_map(leaf.path, eager, compiled, truth)
            if one is not None:
                found.append(as_data(dataclasses.asdict(one)))
        return found


def _badness(leaf: LeafComparison) -> tuple[float, float]:
    """Most elements wrong first, as a share of all."""
    error = leaf.max_rel if leaf.max_rel == leaf.max_rel else float("inf")
    return -leaf.mismatched / max(leaf.elements, 1), -error


def _tensors_of(run: Run) -> dict[str, torch.Tensor]:
    """Every tensor that a run left, by the path that the judge has for it (`judge/compare.py`)."""
    parts = {"out": run.outputs, "grad": run.gradients, "inputs": run.inputs, "state": run.state}
    return {path: tensor for name, value in parts.items() for path, tensor in _walk(value, name)}


def _walk(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        attributes = dataclasses.is_dataclass(value)
        for key, child in value.items():
            step = f".{key}" if attributes else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
            yield from _walk(child, path + step)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        names = getattr(type(value), "_fields", None)
        for number, child in enumerate(value):
            yield from _walk(child, path + (f".{names[number]}" if names else f"[{number}]"))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name, None), f"{path}.{field.name}")
