"""Jobs of a hunt, each in a process of its own: they take seeds and make the programs themselves.

A job that judges takes `seeds`, `sources` and `alone`, and returns an entry for each seed (`Judged`). If not
`alone`, it may judge many programs in one compilation; it need not be certain then: a program with
`SUSPECT` is judged again alone. `alone`, there is one seed, and `bundle` is where it is saved if it fails.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from torchrepro.cut.batches import can_be_joined, joined
from torchrepro.cut.judge_joined import judge_joined
from torchrepro.engine.processes.fresh_process import job_named
from torchrepro.execute.judge_repro import Prepared, judge_repro
from torchrepro.hunt.directory import NO_PROGRAM, SUSPECT, Judged
from torchrepro.hunt.registry import SHARED, Draw, generator_named
from torchrepro.hunt.seeds import TOGETHER, parse_seed
from torchrepro.judge.models import Phase
from torchrepro.judge.reference import without_compilers
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.save_bundle import save_bundle
from torchrepro.state.ambient import applied_settings
from torchrepro.state.fake_run import OperatorLog, run_on_fakes, silent_torch
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.fake import fake_errors
from torchrepro.torch_api.generators import capture_rng_state, same_randomness

_NOT_CAPTURED = (
    fake_errors.DataDependentOutputException,
    fake_errors.DynamicOutputShapeException,
    fake_errors.UnsupportedOperatorException,
)


@dataclass(frozen=True, eq=False)
class Program:
    """A program, or none where its seed leads to none."""

    seed: str
    repro: Repro | None


def program_of(seed: str, sources: Sequence[Path] = ()) -> Program:
    """Return the program of a seed. `sources` are the bundles from which some generators make programs."""
    repros = [_generated(one, sources) for one in seed.split(TOGETHER)]
    present = [repro for repro in repros if repro is not None]
    if len(present) < len(repros):
        return Program(seed, None)
    return Program(seed, present[0] if len(present) == 1 else joined(present).repro)


def _generated(seed: str, sources: Sequence[Path]) -> Repro | None:
    name, number = parse_seed(seed)
    generate = job_named(generator_named(name).function)
    choices = random.Random(f"{name} {number:x}")
    draw = Draw(choices, random.Random(f"{name} shared {number // SHARED:x}"), tuple(sources))
    with same_randomness(capture_rng_state()):
        torch.manual_seed(choices.getrandbits(60))
        random.seed(choices.getrandbits(60))
        np.random.seed(choices.getrandbits(32))
        repro: Repro | None = generate(draw)
    return repro


def judge(_: Repro, payload: Mapping[str, Any], phase: Phase) -> list[dict[str, Any]]:
    """Judge programs that are graphs: as few compilations as possible, or one of them alone."""
    sources = [Path(path) for path in payload["sources"]]
    programs = [program_of(seed, sources) for seed in payload["seeds"]]
    valid = [
        program for program in programs if program.repro is not None and not why_no_program(program.repro)
    ]
    if payload["alone"]:
        found = [_judged_alone(program, payload, phase) for program in valid]
    else:
        found = [judged for group in _groups(valid) for judged in _judged_together(group, phase)]
    told = {judged.seed for judged in found}
    found += [Judged(program.seed, NO_PROGRAM) for program in programs if program.seed not in told]
    return [msgspec.to_builtins(judged) for judged in found]


def save(_: Repro, payload: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Save the program of a seed with a verdict that killed the process which judged it."""
    program = program_of(payload["seed"], [Path(path) for path in payload["sources"]])
    verdict = msgspec.convert(payload["verdict"], Verdict)
    told: dict[str, Any] = msgspec.to_builtins(_saved(program, verdict, Path(payload["bundle"])))
    return told


def sort_failure(_: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Put a failing bundle into its bucket (`hunt/triage.py`)."""
    triage = job_named("torchrepro.hunt.triage:triage")
    bundle, directory = Path(payload["bundle"]), Path(payload["directory"])
    found = triage(bundle, payload["seed"], directory, seconds=payload["seconds"], jobs=payload["jobs"])
    return msgspec.to_builtins(found)


def why_no_program(repro: Repro) -> str:
    """Return why a repro says nothing about a compiler.

    It draws random numbers, eager refuses it, it writes to memory that elements share, or capture would split
    it, as numbers or sizes depend on data.
    """
    run = run_on_fakes(repro, log=OperatorLog(), symbols=False)
    if run.random:
        return "it draws random numbers"
    if isinstance(run.raised, _NOT_CAPTURED):
        return f"capture breaks the graph: {type(run.raised).__name__}"
    if any(_shares_memory(repro.inputs[place]) for place in run.mutated):
        return "it writes to memory that elements share"
    prepared = Prepared(repro)
    graph = prepared.graph()
    try:
        start = capture_rng_state()
        with silent_torch(), same_randomness(start), applied_settings(repro.ambient), without_compilers():
            prepared.observe(graph, graph, prepared.inputs())
    except Exception as exc:  # what eager raises, of whatever kind
        return f"eager refuses it: {type(exc).__name__}"
    return ""


def _shares_memory(value: Any) -> bool:
    """Return whether several elements of a tensor have one place: what a write to it leaves is undefined."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride(), strict=True))


def _groups(programs: Sequence[Program]) -> list[list[Program]]:
    """Group programs that can share a compilation."""
    groups: dict[str, list[Program]] = {}
    for program in programs:
        repro = program.repro
        assert repro is not None
        shared = (repro.place, repro.compiler, repro.ambient, repro.backward, repro.strict, repro.tolerance)
        key = repr(shared) if can_be_joined(repro) else program.seed
        groups.setdefault(key, []).append(program)
    return list(groups.values())


def _judged_together(programs: Sequence[Program], phase: Phase) -> list[Judged]:
    """Judge programs in one compilation; where the joint verdict says nothing about each, judge fewer.

    Those that an exception names are judged alone, and the others without them; both halves if it names none.
    """
    repros = [program.repro for program in programs if program.repro is not None]
    if len(repros) == 1:
        verdict = judge_repro(repros[0], phase=phase)
        dynamo.reset()
        return [_together(programs[0], verdict)]
    verdict, whole, named = judge_joined(repros, phase)
    dynamo.reset()
    own = whole.verdicts(verdict)
    suspects = [program for number, program in enumerate(programs) if number in named]
    others = [program for number, program in enumerate(programs) if number not in named]
    found = [Judged(program.seed, SUSPECT, verdict.summary) for program in suspects]
    if own is not None:
        passed = [each for number, each in enumerate(own) if number not in named]
        return found + [_together(program, each) for program, each in zip(others, passed, strict=True)]
    middle = 0 if suspects else len(others) // 2
    for part in filter(None, (others[:middle], others[middle:])):
        found += _judged_together(part, phase)
    return found


def _together(program: Program, verdict: Verdict) -> Judged:
    """Return what a joint compilation shows about a program."""
    if verdict.fails:
        return Judged(program.seed, SUSPECT, verdict.summary)
    return Judged(program.seed, verdict.kind.value)


def _judged_alone(program: Program, payload: Mapping[str, Any], phase: Phase) -> Judged:
    assert program.repro is not None
    verdict = judge_repro(program.repro, phase=phase, fp64=payload.get("fp64", True))
    if not verdict.fails:
        return Judged(program.seed, verdict.kind.value, verdict.summary)
    return _saved(program, verdict, Path(payload["bundle"]))


def _saved(program: Program, verdict: Verdict, bundle: Path) -> Judged:
    assert program.repro is not None
    signature = Signature.of(verdict)
    judged = Judged(program.seed, verdict.kind.value, verdict.summary, str(signature))
    note = f"a program of torchrepro hunt, seed {program.seed}"
    repro = replace(program.repro, expected=signature, notes=(*program.repro.notes, note))
    try:
        with suppress(FileExistsError):
            save_bundle(repro, bundle, verdict=verdict)
    except TorchReproError as exc:
        return replace(judged, not_saved=str(exc))
    return replace(judged, bundle=str(bundle))
