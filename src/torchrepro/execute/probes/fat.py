"""Do the tensors of the compiled code take more memory at a time than those of the baseline?

On CUDA the allocator tells its peak. On the CPU torch's profiler tells each allocation and release; what a
kernel allocates by itself it does not see.
"""

from __future__ import annotations

from functools import partial

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.execute.probes.measure import peak_of
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.probe import MORE
from torchrepro.nouns.verdict import Kind


def probe_fat(context: ProbeContext) -> Finding:
    devices = {tensor.device.type for _, tensor in tensors_in(context.repro.inputs)} - {"cpu"}
    device = devices.pop() if devices else "cpu"
    if device not in ("cpu", "cuda"):
        return context.not_asked(f"peaks of memory are known of CPU and CUDA, not of {device}")
    compiled, (other, name) = context.artefact(), context.baseline_of_cost()
    verdict = context.judge_baseline(compiled)
    if verdict.kind is not Kind.PASS:
        return Finding(verdict, context.probe)
    context.phase("measure")
    peak, baseline = (_peak(context, artefact, device) for artefact in (compiled, other))
    granted = context.probe.granted
    fatter = peak > granted * baseline and peak - baseline > MORE[Kind.FAT]
    words = f"{_shown(peak)} at a time, {name} {_shown(baseline)} (granted: {granted:g} times)"
    return context.finding_of_cost(verdict, words, fails=fatter)


def _peak(context: ProbeContext, artefact: Artefact, device: str) -> int:
    """Return the smaller peak of two calls: the first one of a process allocates for later ones too."""
    artefact.execute(clone_inputs(context.repro.inputs))
    inputs = (clone_inputs(context.repro.inputs) for _ in range(2))
    return min(peak_of(partial(artefact.execute, each), device) for each in inputs)


def _shown(size: int) -> str:
    return f"{size / (1 << 20):.3g} MiB" if size >= 1 << 20 else f"{size / (1 << 10):.3g} KiB"
