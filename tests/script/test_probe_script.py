"""The scripts of findings: plain torch that a person would write, or an honest reason why there is none."""

from __future__ import annotations

import pytest
import torch

from torchrepro.nouns.probe import COSTS, Probe
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.script.candidates import first_script


def script_of(kind: Kind, *tries: str, against: Compiler | None = None) -> str:
    leaf = LeafComparison("out[0]", Difference.VALUE, "wrong", ref_value="1.0", res_value="2.0", max_abs=1.0)
    verdict = Verdict(kind, summary="seen", comparison=None if kind in COSTS else Comparison((leaf,)))
    graph = torch.fx.symbolic_trace(lambda x: (torch.sin(x),))
    repro = Repro(
        graph, (torch.ones(2, 3),), compiler=Compiler("inductor"), probe=Probe(kind, tries, against=against)
    )
    return first_script(repro, verdict).text


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (Kind.SIZES, "17", ("dynamic=True", "x_17 = ", "compiled(x_17)")),
        (Kind.REPEAT, "again", ("first = compiled(x)", "rtol=0, atol=0")),
        (Kind.RECOMPILE, "unfused", ("options={'max_fusion_size': 1",)),
        (Kind.RECOMPILE, "again", ("torch._dynamo.reset()",)),
        (Kind.HOLD, "kept", ("before = kept.clone()", "compiled(0.5 - x)")),
        (Kind.THREADS, "3", ("torch.set_num_threads(3)",)),
        (Kind.BATCH, "last", ("x_row = x[1:2].clone()", "compiled(x_row)")),
        (Kind.CACHE, "warm", ("fresh_cache():", "# fills the cache", "torch._dynamo.reset()")),
        (Kind.SLOW, "", ("min(repeat(", "max(1.5 * baseline, baseline + 0.0001)")),
        (Kind.FAT, "", ("peak(lambda: compiled(x))", "baseline + 262144")),
        (Kind.SLOW_COMPILE, "", ('work(backend="aot_eager")', "max(20 * baseline, baseline + 0.05)")),
    ],
)
def test_a_finding_is_written_in_plain_torch(kind: Kind, name: str, words: tuple[str, ...]) -> None:
    text = script_of(kind, *filter(None, [name]))
    compile(text, "repro.py", "exec")
    assert [word for word in words if word not in text] == [], text


def test_the_other_compiler_of_a_cost_is_written_too() -> None:
    against = Compiler("inductor", options={"pattern_matcher": False})
    text = script_of(Kind.SLOW, against=against)
    assert 'other = torch.compile(f, options={"pattern_matcher": False})' in text, text


def test_what_cannot_be_written_says_so() -> None:
    assert script_of(Kind.THREADS, "run-__import__").startswith("raise SystemExit('no standalone script")
