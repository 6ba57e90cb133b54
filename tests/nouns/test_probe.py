"""A probe is data: it survives a bundle, and a wrong kind is refused by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from torchrepro.bundle.load import load_bundle
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.sentences import sentence_of, title_of
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.script.save_bundle import save_bundle

REPRO = Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (torch.ones(2),))
PROBE = Probe(Kind.SLOW, tries=("17",), threshold=2.5, against=Compiler("aot_eager", dynamic=True))


def test_a_bundle_keeps_it(tmp_path: Path) -> None:
    save_bundle(replace(REPRO, probe=PROBE), tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").probe == PROBE
    save_bundle(REPRO, tmp_path / "plain")
    assert load_bundle(tmp_path / "plain").probe is None


def test_verdicts_of_a_probe_are_not_those_of_the_plain_repro() -> None:
    others = [replace(REPRO, probe=probe) for probe in (PROBE, replace(PROBE, tries=()), Probe(Kind.SIZES))]
    assert len({canonical_key(repro) for repro in (REPRO, *others)}) == 4


def test_a_kind_that_no_probe_has_is_refused() -> None:
    with pytest.raises(BundleError, match="mismatch is not what a probe looks for"):
        Probe(Kind.MISMATCH)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_of_verdict_has_a_sentence_and_a_title(kind: Kind) -> None:
    verdict = Verdict(kind, summary="something was seen")
    assert "inductor" in sentence_of(verdict, compiler="inductor") or not kind.fails
    assert "torch.compile: " in title_of(verdict, compiler="inductor", op="", devices=frozenset())


def test_a_strangers_baseline_runs_no_program(tmp_path: Path) -> None:
    against = Compiler(options={"cpp.cxx": "/bin/evil", "max_autotune": True})
    path = save_bundle(replace(REPRO, probe=replace(PROBE, against=against)), tmp_path / "bundle")
    (path / "provenance.json").unlink(missing_ok=True)
    with pytest.warns(UserWarning, match=r"cpp\.cxx is not applied"):
        loaded = load_bundle(path)
    assert loaded.probe is not None
    assert loaded.probe.against is not None
    assert loaded.probe.against.options == {"max_autotune": True}
