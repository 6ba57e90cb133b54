"""What is turned off for one question is on again for the next: a spawned worker answers many."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.compiler_bisector import CompilerBisector
from torch._inductor.graph import GraphLowering
from torch._inductor.pattern_matcher import PatternMatcherPass
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

from torchrepro.engine.jobs import ending_before_code
from torchrepro.locate.kernels import generate
from torchrepro.locate.switches import turned_off
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.torch_api.patching import replaced

HOOKED: tuple[tuple[Any, str], ...] = (
    (CompilerBisector, "disable_subsystem"),
    (GraphTransformObserver, "apply_gm_pass"),
    (GraphTransformObserver, "apply_graph_pass"),
    (PatternMatcherPass, "apply"),
    (GraphLowering, "save_output_code"),
    (GraphLowering, "_compile_to_module_lines"),
    (CppScheduling, "define_kernel"),
)


def hooks() -> list[object]:
    return [vars(owner).get(name) for owner, name in HOOKED]


def test_everything_is_as_it_was_afterwards(tmp_path: Any) -> None:
    before = hooks()
    with turned_off({"lowerings": ["aten.relu.default"]}, lambda kind, name: None):
        assert hooks() != before
        assert CompilerBisector.disable_subsystem("inductor", "post_grad_passes", lambda: "any") is False
    with ending_before_code():
        assert hooks() != before
    repro = Repro(torch.fx.symbolic_trace(lambda x: x + 1), (torch.ones(2),), compiler=Compiler("eager"))
    generate(repro, {"path": str(tmp_path / "generated"), "run": False}, lambda phase: None)
    assert hooks() == before


def test_a_rewrite_has_its_own_check_again() -> None:
    class Entry:
        extra_check = staticmethod(lambda match: True)
        pattern_name = "a rewrite"

    entry, matcher = Entry(), PatternMatcherPass()
    matcher.patterns[("call_function", torch.relu)] = [entry]  # type: ignore[index]
    usual = entry.extra_check
    with turned_off({"patterns": ["a rewrite"]}, lambda kind, name: None):
        matcher.apply(torch.fx.symbolic_trace(lambda x: x + 1).graph)
        assert entry.extra_check(None) is False
    assert entry.extra_check is usual


def test_what_was_inherited_is_inherited_again() -> None:
    class Base:
        value = 1

    class Derived(Base):
        pass

    with replaced(Derived, "value", 2):
        assert Derived.value == 2
    Base.value = 3
    assert Derived.value == 3
