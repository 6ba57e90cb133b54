"""A workaround: the smallest thing that a user can write so that the failure goes away, seen to do so.

Options of `torch.compile` first, from the one that turns off just the culprit part to calling every operator
as it is; then a setting of torch; then a backend that does less, the failing stages left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchrepro.engine.subsets import narrow
from torchrepro.execute.backends import with_backend
from torchrepro.locate.ablation import PASSES, PATTERNS, Off
from torchrepro.locate.component import Found
from torchrepro.locate.context import Inquiry
from torchrepro.locate.stages import Ladder, captures
from torchrepro.locate.switches import inductor_settings
from torchrepro.nouns.repro import AOT_INDUCTOR, Place, Repro
from torchrepro.nouns.results import Workaround
from torchrepro.nouns.verdict import Kind, Stage
from torchrepro.torch_api.names import COMPILE_AHEAD

# The passes that have an option of their own; for the others inductor has a list of names.
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


def find_workaround(inquiry: Inquiry, ladder: Ladder, found: Found | None) -> Workaround | None:
    """The first of the candidates with which the repro passes; None where none does."""
    if ladder.culprit is None:
        return None
    inquiry.on_step("a workaround")
    return (
        _by_options(inquiry, ladder.stage, found)
        or _by_settings(inquiry, found)
        or _by_a_simpler_backend(inquiry, ladder)
        or _by_running_the_graph(inquiry)
        or _by_not_compiling(inquiry)
    )


def _by_options(inquiry: Inquiry, stage: Stage, found: Found | None) -> Workaround | None:
    repro = inquiry.repro
    if stage is not Stage.BACKEND or repro.compiler.name not in ("inductor", AOT_INDUCTOR):
        return None
    known = inductor_settings(repro)

    def passes(options: Mapping[str, Any]) -> bool:
        return inquiry.passes(Off(options=options).settings_on(repro))

    for options in _options_for(found):
        if all(name in known for name in options) and passes(options):
            whole = Off(options=_fewest(options, passes)).settings_on(repro)
            return Workaround(options=dict(whole.compiler.options), code=code_for(whole), verified=True)
    return None


def _fewest(options: Mapping[str, Any], passes: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    """Those of the options that are needed."""
    if len(options) == 1:
        return options
    keys = narrow(list(options), lambda chosen: passes({key: options[key] for key in chosen}))
    return {key: options[key] for key in keys} or options


def _options_for(found: Found | None) -> Iterator[Mapping[str, Any]]:
    """Options to try, the one that costs the user least first."""
    if found is not None:
        off = found.off
        if off.options:
            yield off.options
        passes, patterns = off.names(PASSES), off.names(PATTERNS)
        if passes:
            yield _without_passes(passes)
        if patterns:
            yield {"pattern_matcher": False}
        if passes or patterns:
            yield _ALL_PASSES
    yield _CALL_EVERY_OPERATOR
    yield {**_CALL_EVERY_OPERATOR, **_ALL_PASSES}


def _without_passes(passes: Iterable[str]) -> dict[str, Any]:
    """The options of their own that passes have; of the others, inductor takes a list of names."""
    options: dict[str, Any] = {}
    named = sorted(set(passes) - set(_OPTION_OF_PASS))
    if named:
        options["disabled_passes"] = ",".join(named)
    for name in sorted(set(passes) & set(_OPTION_OF_PASS)):
        options |= _OPTION_OF_PASS[name]
    return options


def _by_settings(inquiry: Inquiry, found: Found | None) -> Workaround | None:
    """Settings of Dynamo and AOT are no options of `torch.compile`: a line before it sets them."""
    if found is None or not found.off.configs:
        return None
    off = Off(configs=found.off.configs)
    if not inquiry.passes(off.settings_on(inquiry.repro)):
        return None
    lines = [
        f"torch._{module}.config.{name} = {value!r}"
        for module, values in sorted(off.configs.items())
        for name, value in values.items()
    ]
    return Workaround(code="; ".join(lines), verified=True)


def _by_a_simpler_backend(inquiry: Inquiry, ladder: Ladder) -> Workaround | None:
    """The highest rung that passes: it was asked before the stage was known."""
    passing = [rung.backend for rung in ladder.rungs if rung.kind is Kind.PASS]
    if not passing:
        return None
    return Workaround(code=code_for(with_backend(inquiry.repro, passing[-1])), verified=True)


def _by_running_the_graph(inquiry: Inquiry) -> Workaround | None:
    """The backend that runs a graph as it was taken. It is no rung of the ladder: no stage is in it."""
    repro = inquiry.repro
    candidate = with_backend(repro, "aot_eager" if repro.place is Place.AFTER_AOT else "eager")
    if captures(repro) or not inquiry.passes(candidate):
        return None
    return Workaround(code=code_for(candidate), verified=True)


def _by_not_compiling(inquiry: Inquiry) -> Workaround | None:
    """Dynamo told to leave the code alone, as `torch.compiler.disable` does for one function."""
    off = Off(configs={"dynamo": {"disable": True}})
    if captures(inquiry.repro) and inquiry.passes(off.settings_on(inquiry.repro)):
        return Workaround(code="@torch.compiler.disable", verified=True)
    return None


def code_for(repro: Repro) -> str:
    """The call that a user would write to have the compiler of this repro."""
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
