"""Off: what is turned off in a compiler for one run, as data. It is applied in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchrepro.nouns.repro import Compiler, Repro

EVERYTHING = "*"
"""In place of a name: all there are."""


@dataclass(frozen=True, slots=True)
class Off:
    """Settings that are changed, and passes, rewrites, decompositions and lowerings left out, by name."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Of inductor's config: what a user can write in `torch.compile(options=...)`."""
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the others, `dynamo` and `functorch`, as `Ambient.configs` has them."""
    passes: frozenset[str] = frozenset()
    """`remove_noop_ops`: wherever a pass of that name is run, on the joint graph and after it, for one."""
    patterns: frozenset[str] = frozenset()
    """Rewrites of a pattern matcher, by the name of the function that does it."""
    decompositions: frozenset[str] = frozenset()
    """`aten.gelu.default`: stays as it is, and the backend calls the operator."""
    lowerings: frozenset[str] = frozenset()
    """`aten.erf.default`: inductor calls the operator in place of generated code."""

    def __or__(self, other: Off) -> Off:
        names = {*self.configs, *other.configs}
        return Off(
            {**self.options, **other.options},
            {name: {**self.configs.get(name, {}), **other.configs.get(name, {})} for name in names},
            self.passes | other.passes,
            self.patterns | other.patterns,
            self.decompositions | other.decompositions,
            self.lowerings | other.lowerings,
        )

    def settings_on(self, repro: Repro) -> Repro:
        """The repro with the settings changed; what has a name is left to `turning_off.py`, in the child."""
        repro = replace(repro, compiler=with_options(repro.compiler, self.options))
        if not self.configs:
            return repro
        former = repro.ambient.configs
        changed = {name: {**former.get(name, {}), **values} for name, values in self.configs.items()}
        return replace(repro, ambient=replace(repro.ambient, configs={**former, **changed}))

    def names(self) -> dict[str, list[str]]:
        """What is left out, by its kind, for the child."""
        found = {
            "passes": self.passes,
            "patterns": self.patterns,
            "decompositions": self.decompositions,
            "lowerings": self.lowerings,
        }
        return {kind: sorted(names) for kind, names in found.items() if names}


def with_options(compiler: Compiler, options: Mapping[str, Any]) -> Compiler:
    """The compiler with more options. `torch.compile` takes a mode or options, so a mode is spelt out.

    Checked on torch 2.11 and 2.13 (`torch._inductor.list_mode_options`).
    """
    if not options:
        return compiler
    spelt: Mapping[str, Any] = {}
    if compiler.mode:
        from torchrepro.torch_api.inductor import list_mode_options

        spelt = list_mode_options(compiler.mode, compiler.dynamic)
    return replace(compiler, mode=None, options={**spelt, **compiler.options, **options})
