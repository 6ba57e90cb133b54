"""The labels of PyTorch's tracker that fit a failure, by its public triage rubric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchrepro.nouns.results import Located
from torchrepro.nouns.verdict import Kind, Verdict

_LABELS = {
    "inductor": "inductor",
    "aot_eager": "aotdispatch",
    "eager": "dynamo",
    "aot_inductor": "aotinductor",
}
_STAGES = {"capture": "dynamo", "aot": "aotdispatch", "decomposition": "decompositions"}
_KINDS = {
    Kind.MISMATCH: "correctness (silent)",
    Kind.NON_FINITE: "NaNs and Infs",
    Kind.CRASH: "crash",
}
_URGENT = (Kind.MISMATCH, Kind.NON_FINITE, Kind.CRASH)
"""PyTorch's rubric calls wrong results without an error, crashes and regressions `high priority`."""


def labels_of(
    verdict: Verdict | None,
    located: Located | None,
    *,
    compiler: str,
    devices: Iterable[str] = (),
    dynamic: bool = False,
    regression: bool = False,
) -> tuple[str, ...]:
    """Suggest labels of PyTorch's tracker; none for a failure of the user's operator, or for none at all."""
    if verdict is None or not verdict.fails or (located is not None and located.blamed):
        return ()
    stage = located.stage.value if located is not None else ""
    module = _STAGES.get(stage) or _LABELS.get(compiler)
    return tuple(_labels(verdict.kind, module, set(devices), dynamic=dynamic, regression=regression))


def _labels(
    kind: Kind, module: str | None, devices: set[str], *, dynamic: bool, regression: bool
) -> Iterator[str]:
    yield "oncall: pt2"
    if module:
        yield f"module: {module}"
    if kind in _KINDS:
        yield f"module: {_KINDS[kind]}"
    if module == "inductor" and not devices - {"cpu"}:
        yield "oncall: cpu inductor"
    if dynamic:
        yield "module: dynamic shapes"
    if regression:
        yield "module: regression"
    if kind in _URGENT or regression:
        yield "high priority"
