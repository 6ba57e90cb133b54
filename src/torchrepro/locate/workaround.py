"""Find the smallest change to the user's code that is verified to make the failure go away.

Options of `torch.compile` first, from the one that turns off just the culprit to calling every operator
without generated code; then a setting of torch; then a simpler backend, without the failing stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchrepro.engine.subsets import narrow
from torchrepro.execute.backends import with_backend
from torchrepro.locate.component import Found
from torchrepro.locate.context import Inquiry
from torchrepro.locate.stages import Ladder, captures
from torchrepro.locate.switches import (
    INDUCTOR,
    PASSES,
    PATTERNS,
    Off,
    settings_of,
)
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.nouns.results import Workaround
from torchrepro.nouns.verdict import Kind, Stage
from torchrepro.torch_api.names import COMPILE_AHEAD

# The passes that have their own option; the others are disabled by name (`disabled_passes`).
_OPTION_OF_PASS: Mapping[str, Mapping[str, Any]] = {
    "constant_fold_uniform_value": {"joint_graph_constant_folding": False},
    "reorder_for_locality": {"reorder_for_locality": False},
    "partitioned_scatter_optimization": {"partitioned_scatter_enabled": False},
}


_ALL_PASSES: Mapping[str, Any] = {
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
}


_CALL_EVERY_OPERATOR: Mapping[str, Any] = {"fallback_by_default": True}


@dataclass(frozen=True)
class _Trial:
    """Tries changes on the culprit op alone, where that fails, and then on the whole repro."""

    whole: Inquiry
    small: Inquiry | None

    def passes(self, change: Callable[[Repro], Repro]) -> bool:
        return self.passes_alone(change) and self.whole.passes(change(self.whole.repro))

    def passes_alone(self, change: Callable[[Repro], Repro]) -> bool:
        return self.small is None or self.small.passes(change(self.small.repro))


def find_workaround(
    inquiry: Inquiry, ladder: Ladder, found: Found | None, small: Inquiry | None = None
) -> Workaround | None:
    """Return the first workaround with which the repro passes; None if there is none.

    `small` is about the culprit op alone: what does not help there is not tried on the whole.
    """
    if ladder.stage is Stage.NONE:
        return None
    inquiry.on_step("a workaround")
    trial = _Trial(inquiry, small)
    if ladder.stage is Stage.BACKEND and inquiry.repro.compiler.name in (INDUCTOR, AOT_INDUCTOR):
        known = settings_of(INDUCTOR, inquiry.repro).keys()
        for options in _options_for(found):
            if options.keys() <= known and trial.passes(Off({INDUCTOR: options}).applied_to):
                return _by_fewest(trial, options)
    for code, candidate in _lines_for(inquiry.repro, ladder, found):
        if candidate is None or inquiry.passes(candidate):
            return Workaround(code=code, verified=True)
    return None


def _options_for(found: Found | None) -> Iterator[Mapping[str, Any]]:
    """Yield options to try, the one with the least cost for the user first."""
    if found is not None:
        yield from [found.off.settings[INDUCTOR]] if INDUCTOR in found.off.settings else []
        passes, patterns = (found.off.parts.get(kind, ()) for kind in (PASSES, PATTERNS))
        if passes:
            # Some passes have their own option; the others are disabled by name.
            named = ",".join(sorted(set(passes) - set(_OPTION_OF_PASS)))
            options: dict[str, Any] = {"disabled_passes": named} if named else {}
            for name in sorted(set(passes) & set(_OPTION_OF_PASS)):
                options |= _OPTION_OF_PASS[name]
            yield options
        if patterns:
            yield {"pattern_matcher": False}
        if passes or patterns:
            yield _ALL_PASSES
    yield _CALL_EVERY_OPERATOR
    yield {**_CALL_EVERY_OPERATOR, **_ALL_PASSES}


def _by_fewest(trial: _Trial, options: Mapping[str, Any]) -> Workaround:
    """Return the workaround with only those options that are needed."""

    def change(some: Iterable[str]) -> Callable[[Repro], Repro]:
        return Off({INDUCTOR: {name: options[name] for name in some}}).applied_to

    needed = list(options)
    if len(needed) > 1:
        tried = trial.passes_alone if trial.small is not None else trial.passes
        fewer = narrow(needed, lambda some: tried(change(some))) or needed
        needed = fewer if trial.passes(change(fewer)) else needed
    whole = change(needed)(trial.whole.repro)
    return Workaround(options=dict(whole.compiler.options), code=code_for(whole), verified=True)


def _lines_for(repro: Repro, ladder: Ladder, found: Found | None) -> Iterator[tuple[str, Repro | None]]:
    """Yield workarounds that are not options, each with the repro to try; None: it is known to pass."""
    configs = {} if found is None else {**found.off.settings}
    configs.pop(INDUCTOR, None)
    if configs:
        lines = [
            f"torch._{module}.config.{name} = {value!r}"
            for module, values in sorted(configs.items())
            for name, value in values.items()
        ]
        yield "; ".join(lines), Off(configs).applied_to(repro)
    passing = [rung.backend for rung in ladder.rungs if rung.kind is Kind.PASS]
    if passing:
        yield code_for(with_backend(repro, passing[-1])), None
    if captures(repro):
        # As `torch.compiler.disable` does for one function.
        yield "@torch.compiler.disable", Off({"dynamo": {"disable": True}}).applied_to(repro)
    else:
        # The backend that runs a graph as it was captured. It is not on the ladder: it has no stage.
        plain = with_backend(repro, "aot_eager" if repro.place is Place.AFTER_AOT else "eager")
        yield code_for(plain), plain


def code_for(repro: Repro) -> str:
    """Return the call that selects the compiler of this repro in a user's code."""
    compiler = repro.compiler
    if compiler.name == AOT_INDUCTOR:
        configs = f", inductor_configs={dict(compiler.options)!r}" if compiler.options else ""
        return f"{COMPILE_AHEAD}(program{configs})"
    words = ["program.module()" if repro.place is Place.EXPORT else "model"]
    if compiler.name != "inductor":
        backend = compiler.name.rpartition(":")[2] if ":" in compiler.name else repr(compiler.name)
        words.append(f"backend={backend}")
    words += [f"mode={compiler.mode!r}"] if compiler.mode else []
    words += [f"dynamic={compiler.dynamic}"] if compiler.dynamic is not None else []
    words += ["fullgraph=True"] if compiler.fullgraph else []
    words += [f"options={dict(compiler.options)!r}"] if compiler.options else []
    return f"torch.compile({', '.join(words)})"
