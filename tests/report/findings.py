"""Bundles with results around them, and contents full of somebody else's text, for the tests of a report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from torchrepro import Repro, save_bundle
from torchrepro.engine.search.run_directory import Identity, RunDirectory
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.results import (
    Adoption,
    Confidence,
    Growth,
    GuiltyOp,
    Kernel,
    Located,
    Minified,
    Part,
    Rung,
    Sensitivity,
    Way,
    Workaround,
)
from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Raised,
    Signature,
    Stage,
    Verdict,
)
from torchrepro.report.contents import Contents, ErrorMap, Node, Picture
from torchrepro.report.contents import Difference as Line

LEAF = LeafComparison(
    "out[0]",
    Difference.VALUE,
    "80 of 120 elements differ",
    Blame.COMPILED,
    index=(0, 3),
    ref_value="1.5",
    res_value="7.25",
    truth_value="1.5000001",
    elements=120,
    mismatched=80,
    max_abs=5.75,
    max_rel=3.8,
    rmse_ref=1e-7,
    rmse_res=2.0,
)
MISMATCH = Verdict(Kind.MISMATCH, summary="out[0] differs", comparison=Comparison((LEAF,)))
RAISED = Verdict(
    Kind.COMPILE_ERROR,
    Stage.BACKEND,
    summary="CppCompileError: C++ compile error",
    raised=Raised(
        "torch._inductor.exc.CppCompileError",
        "C++ compile error\n/home/ada/kernel.cpp:3: error: no erf",
        'File "/home/ada/secret project/train.py", line 3, in main\n    step()\n'
        "CppCompileError: C++ compile error",
    ),
)


def model(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.tanh(torch.erf(x) + w), x.relu())


def failing_bundle(path: Path, verdict: Verdict | None = MISMATCH) -> Path:
    """A bundle of four ops that was found to fail in this way. Nothing is compiled."""
    repro = Repro(torch.fx.symbolic_trace(model), (torch.ones(3, 4), torch.ones(4)))
    if verdict is not None:
        repro = replace(repro, expected=Signature.of(verdict))
    return save_bundle(repro, path, verdict=verdict)


def run_of_user(path: Path, bundle: Path) -> Path:
    """A run directory about a bundle, with the mark of this user."""
    path.mkdir()
    RunDirectory(path).begin(Identity.of(bundle), fresh=False)
    return path


def minified_beside(bundle: Path, *, history: bool = True) -> Path:
    """The directory that `minify` would have left beside a bundle."""
    run = run_of_user(bundle.with_name(f"{bundle.name.removesuffix('.zip')}.minified"), bundle)
    graph = torch.fx.symbolic_trace(lambda x: torch.erf(x))
    minimal = save_bundle(Repro(graph, (torch.ones(2),)), run / "minimal", verdict=MISMATCH)
    (minimal / "repro.py").write_text("import torch\nprint(torch.erf(torch.ones(2)))\n")
    (minimal / "provenance.json").unlink()
    steps = (Adoption(3, 1.5, 2, 1, 12, "windows"), Adoption(9, 4.0, 1, 1, 2, "shapes"))
    found = Minified(
        original=f"/somewhere/else/{bundle.name}",
        directory=str(run),
        bundle=str(minimal),
        script="/etc/repro.py",
        start_ops=4,
        start_inputs=2,
        start_elements=16,
        ops=1,
        inputs=1,
        elements=2,
        queries=12,
        original_runs=3,
        seconds=9.0,
        signature="mismatch",
        reproduces=True,
        explained=("any value of x fails (9 tried)",),
        history=steps if history else (),
    )
    data = found.to_dict()
    if not history:
        del data["history"]
    (run / "result.json").write_text(json.dumps(data))
    return run


def located_in(bundle: Path, located: Located | None = None) -> Located:
    """The answer that `locate` would have left in a bundle."""
    found = located or GUILTY
    (run_of_user(bundle / "located", bundle) / "result.json").write_text(json.dumps(found.to_dict()))
    return found


GUILTY = Located(
    bundle="/home/ada/failing",
    kind=Kind.MISMATCH,
    stage=Stage.BACKEND,
    part=Part("lowering", "aten.erf"),
    op=GuiltyOp("erf", "torch.erf", Way.OUTPUTS, "encoder.norm", "model.py:12 in forward: erf(x)", 1e-8, 0.5),
    sensitivity=Sensitivity("erf", 1.0, "well-conditioned: a wrong kernel"),
    workaround=Workaround({"cpp.simdlen": 1}, 'torch.compile(f, options={"cpp.simdlen": 1})', verified=True),
    kernel=Kernel("cpp_fused_erf_0", "cpp", "tmp1 = tmp0.erf();", "kernel.cpp"),
    rungs=(
        Rung("aot_eager", Stage.AOT, Kind.PASS),
        Rung("inductor", Stage.BACKEND, Kind.MISMATCH, "out[0] differs"),
    ),
    growth=(Growth("erf", "torch.erf", eager=1e-8, compiled=float("inf")), Growth("add", "operator.add")),
    compiles=7,
    confidence=Confidence.VERIFIED,
)


def contents_of(foreign: str) -> Contents:
    """Contents in which every text that a bundle can bring along is this one."""
    node = Node(foreign, foreign, "op", (foreign,), foreign, foreign, foreign, guilty=True)
    leaf = replace(
        LEAF, path=foreign, detail=foreign, ref_value=foreign, res_value=foreign, truth_value=foreign
    )
    located = replace(
        GUILTY,
        bundle=foreign,
        part=Part(foreign, foreign, foreign),
        op=GuiltyOp(foreign, foreign, Way.WINDOW, foreign, foreign),
        sensitivity=Sensitivity(foreign, 2.0, foreign),
        workaround=Workaround({}, foreign, verified=True),
        kernel=Kernel(foreign, foreign, foreign, foreign),
        rungs=(Rung(foreign, Stage.AOT, Kind.MISMATCH, foreign),),
        growth=(Growth(foreign, foreign, foreign, foreign, 1.0, 2.0),),
        notes=(foreign,),
    )
    return Contents(
        title="torch.compile: wrong result on CPU",
        sentence=f"The result is wrong: {foreign}",
        bundle=foreign,
        verdict=Verdict(
            Kind.MISMATCH,
            summary=foreign,
            raised=Raised(foreign, foreign, foreign),
            comparison=Comparison((leaf,)),
            stderr_tail=foreign,
        ),
        script=foreign,
        script_is_minimal=True,
        guilt=f"The failing stage is {foreign}",
        located=located,
        minimal=Picture("minimal graph", (node,)),
        original=Picture("original graph", (node,)),
        errors=(ErrorMap(foreign, (2,), edges=(-1.0, 0.0), eager=(1,), compiled=(2,), rows=((1.0, None),)),),
        steps=(Adoption(1, 0.5, 3, 2, 1, foreign),),
        explained=(f"any {foreign}",),
        environment=Environment(torch="2.13.0", python="3.11", cpu=foreign),
        differences=(Line(foreign, foreign, foreign),),
        against=foreign,
        settings={foreign: foreign},
        traceback=foreign,
        next_steps=(f"torchrepro locate {foreign} finds the culprit",),
        notes=(foreign,),
    )
