"""Contents of every sort for the tests; `python tests/report/page_samples.py DIR` writes pages to look at.

With `--pictures`, Chromium takes a screenshot of each: light, dark, and as wide as a phone.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from pathlib import Path

from torchrepro.nouns.environment import Environment
from torchrepro.nouns.results import (
    Adoption,
    Birth,
    Confidence,
    Growth,
    GuiltyGraph,
    GuiltyOp,
    Kernel,
    Located,
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
    Stage,
    Verdict,
)
from torchrepro.report import contents as report

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">"

SCRIPT = '''import torch


def model(x, y):
    """The largest of each row, as inductor computes it for bytes."""
    z = x.to(torch.uint8) + 3
    return z.amin(dim=1), torch.erf(y) * 0.5


torch.manual_seed(0)
inputs = (torch.randint(0, 255, (8, 64)), torch.randn(8, 64))  # 8 rows are enough
expected = model(*inputs)
actual = torch.compile(model)(*inputs)
for want, got in zip(expected, actual, strict=True):
    torch.testing.assert_close(got, want)
'''

KERNEL = """#include "cpp_prefix.h"
extern "C" void kernel(const float* in_ptr0, float* out_ptr0)
{
    // 16 lanes at once
    for (int64_t x0 = 0; x0 < 512; x0 += 16) {
        auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + x0, 16);
        auto tmp1 = tmp0.erf();
        tmp1.store(out_ptr0 + x0);
    }
}
"""


def transformer(layers: int, *, guilty_layer: int | None, parameters: bool = True) -> tuple[report.Node, ...]:
    """A graph like that of a captured encoder: about 25 nodes a layer, parameters as inputs."""
    nodes = [report.Node("input_ids", "placeholder", "input", shape="int64[8, 128]")]
    nodes.append(report.Node("mask", "placeholder", "input", shape="bool[8, 128]"))
    order = iter(range(1_000_000))

    def parameter(name: str) -> str:
        nodes.append(report.Node(f"p_{name}", "placeholder", "input", shape="float32[768, 768]"))
        return nodes[-1].name

    def op(kind: str, module: str, *inputs: str, guilty: bool = False) -> str:
        name = f"{kind.split('.')[1]}_{next(order)}"
        source = (
            f"modeling.py:{hash_of(module + kind)} in forward: hidden = self.{kind.split('.')[1]}(hidden)"
        )
        nodes.append(
            report.Node(
                name, kind, "op", tuple(inputs), module, source, "float32[8, 128, 768]", guilty=guilty
            )
        )
        return name

    x = op("aten.embedding.default", "encoder.embeddings.word", "input_ids")
    for layer in range(layers):
        at = f"encoder.layers.{layer}"
        heads = []
        for part in ("query", "key", "value"):
            weight = [parameter(f"{layer}_{part}_w"), parameter(f"{layer}_{part}_b")] if parameters else []
            y = op("aten.addmm.default", f"{at}.attention.{part}", x, *weight)
            y = op("aten.view.default", f"{at}.attention", y)
            heads.append(op("aten.transpose.int", f"{at}.attention", y))
        scores = op("aten.bmm.default", f"{at}.attention", heads[0], heads[1])
        scores = op("aten.masked_fill.Scalar", f"{at}.attention", scores, "mask")
        scores = op("aten._softmax.default", f"{at}.attention", scores)
        y = op("aten.bmm.default", f"{at}.attention", scores, heads[2])
        y = op("aten.addmm.default", f"{at}.attention.out", y)
        x = op("aten.add.Tensor", at, x, y)
        x = op("aten.native_layer_norm.default", f"{at}.norm1", x)
        y = op("aten.addmm.default", f"{at}.mlp.up", x)
        y = op("aten.mul.Tensor", f"{at}.mlp.act", y)
        y = op("aten.erf.default", f"{at}.mlp.act", y, guilty=layer == guilty_layer)
        y = op("aten.mul.Tensor", f"{at}.mlp.act", y)
        y = op("aten.addmm.default", f"{at}.mlp.down", y)
        x = op("aten.add.Tensor", at, x, y)
        x = op("aten.native_layer_norm.default", f"{at}.norm2", x)
    nodes.append(report.Node("output", "output", "output", (x,)))
    return tuple(nodes)


def hash_of(text: str) -> int:
    return sum(map(ord, text)) % 400


def growth_of(nodes: tuple[report.Node, ...]) -> tuple[Growth, ...]:
    """Rounding that grows slowly, and a jump on the compiled side at the guilty op."""
    chance = random.Random(0)
    eager = compiled = 1e-8
    points = []
    for node in nodes:
        if node.kind != "op":
            continue
        eager = min(eager * math.exp(chance.uniform(-0.2, 0.22)), 4e-6)
        compiled = min(compiled * math.exp(chance.uniform(-0.2, 0.22)), 4e-6 if compiled < 1e-3 else 5e-2)
        if node.guilty:
            compiled = 3e-3
        unseen = chance.random() < 0.02
        points.append(
            Growth(
                node.name,
                node.op,
                node.module,
                node.source,
                eager=0.0 if "view" in node.op and chance.random() < 0.1 else eager,
                compiled=None if unseen else compiled,
            )
        )
    return tuple(points)


def error_map(path: str, rows: int = 64, columns: int = 64) -> report.ErrorMap:
    chance = random.Random(1)
    edges = tuple(-12 + 0.25 * place for place in range(45))
    bell = [int(4e5 * math.exp(-(((place - 18) / 4) ** 2))) for place in range(44)]
    tail = [count + (int(900 * math.exp(-(((place - 36) / 3) ** 2)))) for place, count in enumerate(bell)]
    heat = tuple(
        tuple(
            10 ** chance.uniform(-3, -2)
            if row % 16 == 15
            else 10 ** chance.uniform(-8, -6.5)
            if chance.random() < 0.8
            else 0.0
            for _ in range(columns)
        )
        for row in range(rows)
    )
    return report.ErrorMap(
        path,
        (8, 128, 768),
        edges=edges,
        eager=tuple(bell),
        compiled=tuple(tail),
        rows=heat,
        dims=("dims 0 to 1 (1,024)", "dim 2 (768)"),
    )


def steps() -> tuple[Adoption, ...]:
    sizes = [
        (1, 612, 201, 85_000_000),
        (4, 301, 99, 41_000_000),
        (9, 150, 48, 9_000_000),
        (14, 40, 12, 800_000),
    ]
    sizes += [(22, 12, 4, 98_304), (31, 5, 2, 98_304), (40, 2, 1, 98_304), (55, 1, 1, 4_096), (71, 1, 1, 17)]
    return tuple(
        Adoption(query, query * 0.31, ops, inputs, elements, "windows" if ops > 10 else "shrink_dimensions")
        for query, ops, inputs, elements in sizes
    )


ENVIRONMENT = Environment(
    torchrepro="0.1.0",
    torch="2.13.0+cpu",
    python="3.11.9",
    platform="Linux-6.1.0-x86_64-with-glibc2.36",
    cpu="AMD EPYC 9554 64-Core Processor",
    cpu_capability="AVX512",
    cores=16,
    gpus=("NVIDIA H200",),
    cuda="12.8",
    triton="3.5.0",
    cxx="g++ (Debian 12.2.0-14) 12.2.0",
)

MINIMAL = (
    report.Node("x", "placeholder", "input", shape="float32[17]"),
    report.Node("half", "get_attr", "constant", shape="float32[]"),
    report.Node(
        "mul", "aten.mul.Tensor", "op", ("x", "half"), "mlp.act", "modeling.py:88 in forward", "float32[17]"
    ),
    report.Node(
        "erf",
        "aten.erf.default",
        "op",
        ("mul",),
        "mlp.act",
        "modeling.py:89 in forward",
        "float32[17]",
        guilty=True,
    ),
    report.Node("output", "output", "output", ("erf",)),
)


def mismatch(layers: int = 24) -> report.Contents:
    """All that a report can have."""
    nodes = transformer(layers, guilty_layer=layers // 2)
    guilty = next(node for node in nodes if node.guilty)
    leaf = LeafComparison(
        "out[0]",
        Difference.VALUE,
        "compiled is 4,200 times further from float64 than eager",
        Blame.COMPILED,
        (3, 127, 5),
        "0.84270",
        "0.84018",
        "0.84270079",
        786_432,
        49_152,
        2.5e-3,
        3.0e-3,
        40_000.0,
        6e-8,
        2.6e-4,
        0.9999,
    )
    located = Located(
        bundle="runs/encoder-mismatch",
        kind=Kind.MISMATCH,
        stage=Stage.BACKEND,
        part=Part("lowering", "aten.erf", "vectorised by the C++ backend with 16 lanes"),
        graph=GuiltyGraph(1, 3, "graph_1", "forward of graph 1", "modeling.py:12 in forward"),
        op=GuiltyOp(guilty.name, guilty.op, Way.WINDOW, guilty.module, guilty.source, 6.1e-8, 2.6e-4),
        birth=Birth(),
        sensitivity=Sensitivity(guilty.name, 0.9, "well-conditioned: a wrong kernel"),
        workaround=Workaround(
            {"cpp.simdlen": 0}, 'torch.compile(model, options={"cpp.simdlen": 0})', verified=True
        ),
        kernel=Kernel("cpp_fused_erf_mul_3", "cpp", KERNEL, "kernel.cpp"),
        rungs=(
            Rung("eager", Stage.CAPTURE, Kind.PASS, "same (1 leaves)"),
            Rung("aot_eager", Stage.AOT, Kind.PASS, "same (1 leaves)"),
            Rung("aot_eager_decomp_partition", Stage.DECOMPOSITION, Kind.PASS, "same (1 leaves)"),
            Rung(
                "inductor",
                Stage.BACKEND,
                Kind.MISMATCH,
                "out[0] at [3, 127, 5]: compiled is 4,200 times further from float64",
            ),
        ),
        growth=growth_of(nodes),
        compiles=19,
        seconds=41.3,
        confidence=Confidence.VERIFIED,
        notes=(
            "returned from the graph, the value of the op is right: fusion changes it, so windows were used",
        ),
    )
    return report.Contents(
        title="torch.compile: wrong result of aten.erf on CPU",
        sentence=(
            "The compiled model is wrong: out[0] is 4,200 times further from float64 than eager is, because "
            "the C++ backend computes aten.erf wrongly in encoder.layers.12.mlp.act."
        ),
        bundle="runs/2026-11-15-encoder-mismatch",
        verdict=Verdict(
            Kind.MISMATCH,
            Stage.BACKEND,
            "wrong values",
            comparison=Comparison((leaf, replace(leaf, path="grads[2]"))),
        ),
        script=SCRIPT,
        script_is_minimal=True,
        script_verified=True,
        guilt="The lowering of aten.erf in inductor's C++ backend; verified: it is right without vectors.",
        located=located,
        minimal=report.Picture("The minimal graph", MINIMAL),
        original=report.Picture("The original graph", nodes),
        errors=(error_map("out[0]"), error_map("grads[2]", 8, 32)),
        steps=steps(),
        explained=(
            "fails for float32, not for float64 or bfloat16",
            "fails for 17 elements and more, not for 16",
            "the values do not matter",
        ),
        environment=ENVIRONMENT,
        differences=(
            report.Difference("torch", "2.13.0+cpu", "2.12.1+cpu"),
            report.Difference("cpu_capability", "AVX512", "AVX2"),
        ),
        against="ci-runner",
        settings={"config": {"cpp.threads": 8, "epilogue_fusion": False}, "TORCHINDUCTOR_FREEZING": "1"},
        notes=("tensors of more than 1 GiB were kept as recipes",),
        created="2026-11-15 17:40",
    )


def compile_error() -> report.Contents:
    """No values, so no plots; nothing was minified."""
    trace = 'Traceback (most recent call last):\n  File "model.py", line 3, in <module>\n    model(x)\n' * 12
    return report.Contents(
        title="torch.compile: KeyError: 'buf7' while compiling",
        sentence="The compiler fails with KeyError: 'buf7' on a graph that runs in eager mode.",
        bundle="runs/keyerror.zip",
        verdict=Verdict(
            Kind.COMPILE_ERROR,
            Stage.BACKEND,
            "KeyError: 'buf7'",
            raised=Raised("KeyError", "'buf7'", trace),
            stderr_tail="W1115 inductor: fallback\n",
        ),
        script=SCRIPT,
        located=Located(
            bundle="runs/keyerror.zip",
            kind=Kind.COMPILE_ERROR,
            stage=Stage.BACKEND,
            op=GuiltyOp("cat_3", "aten.cat.default", Way.ERROR),
            rungs=(
                Rung("eager", Stage.CAPTURE, Kind.PASS),
                Rung("aot_eager", Stage.AOT, Kind.PASS),
                Rung("inductor", Stage.BACKEND, Kind.COMPILE_ERROR, "KeyError: 'buf7'"),
            ),
            compiles=6,
            seconds=75.0,
            confidence=Confidence.LIKELY,
        ),
        next_steps=("torchrepro minify runs/keyerror.zip makes it smaller",),
        environment=replace(ENVIRONMENT, gpus=(), cuda=""),
        traceback=trace,
        created="2026-11-15 17:40",
    )


def bare() -> report.Contents:
    """The least that a report can be made of."""
    return report.Contents(title="A bundle", sentence="Nothing is known about it yet.", bundle="b")


def tiny() -> report.Contents:
    """One op, and nothing located."""
    nodes = (
        report.Node("x", "placeholder", "input", shape="uint8[2]"),
        report.Node("amin", "aten.amin.default", "op", ("x",), shape="uint8[]", guilty=True),
        report.Node("output", "output", "output", ("amin",)),
    )
    return replace(
        bare(),
        title="torch.compile: wrong minimum of bytes",
        verdict=Verdict(Kind.MISMATCH),
        script=SCRIPT,
        script_is_minimal=True,
        minimal=report.Picture("The minimal graph", nodes),
    )


def hostile(text: str = HOSTILE) -> report.Contents:
    """The same text wherever a stranger can put one."""
    full = mismatch(1)
    located = full.located
    assert located is not None
    assert located.op is not None
    nodes = (
        report.Node("x", text, "input", shape=text),
        report.Node(text, text, "op", ("x",), f"{text}.{text}", text, text, guilty=True),
        report.Node("second", text, text, (text,), text, text, text),
        report.Node("output", "output", "output", ("second",)),
    )
    picture = report.Picture(text, nodes)
    return replace(
        full,
        title=text,
        sentence=text,
        bundle=text,
        verdict=Verdict(
            Kind.MISMATCH,
            stderr_tail=text,
            comparison=Comparison(
                (
                    LeafComparison(
                        text, Difference.VALUE, text, ref_value=text, res_value=text, truth_value=text
                    ),
                )
            ),
        ),
        script=text,
        located=replace(
            located,
            bundle=text,
            part=Part(text, text, text),
            graph=GuiltyGraph(0, 1, text, text, text),
            op=replace(located.op, node=text, op=text, module=text, source=text),
            birth=Birth(text, text),
            sensitivity=Sensitivity(text, 1.0, text),
            workaround=Workaround({}, text),
            kernel=Kernel(text, "cpp", text, text),
            rungs=(Rung(text, Stage.BACKEND, Kind.MISMATCH, text),),
            growth=tuple(Growth(text, text, text, text, 1e-8, 1e-3) for _ in range(3)),
            notes=(text,),
            stopped=text,
        ),
        minimal=picture,
        original=picture,
        errors=(replace(error_map(text, 2, 2), against=text, dims=(text, text)),),
        steps=tuple(replace(step, pass_name=text) for step in steps()),
        explained=(text,),
        environment=replace(ENVIRONMENT, cpu=text, gpus=(text,)),
        differences=(report.Difference(text, text, text),),
        against=text,
        settings={text: {text: text}},
        guilt=text,
        next_steps=(text,),
        traceback=text,
        notes=(text,),
        created=text,
    )


def tangled() -> report.Contents:
    """Modules that read each other, values that are read everywhere, inputs that are not there."""
    chance = random.Random(3)
    paths = ["", "a", "a.b", "a.b.0", "a.b.1", "c", "c.d", "c.d.e"]
    nodes = tuple(
        report.Node(
            f"n{place}",
            "aten.add.Tensor",
            "op",
            (*(f"n{chance.randrange(max(place, 1))}" for _ in range(3)), "gone", f"n{place}"),
            chance.choice(paths),
            guilty=place == 90,
        )
        for place in range(120)
    )
    return replace(bare(), original=report.Picture("A tangle", nodes))


def large() -> report.Contents:
    """A graph of 3,000 nodes."""
    contents = mismatch(104)
    assert contents.original is not None
    assert len(contents.original.nodes) >= 3000
    return contents


SAMPLES = {
    "mismatch": mismatch,
    "large": large,
    "compile_error": compile_error,
    "tiny": tiny,
    "bare": bare,
    "hostile": hostile,
    "tangled": tangled,
}


def write_samples(directory: Path) -> dict[str, Path]:
    from torchrepro.report.page.html import page_of

    directory.mkdir(parents=True, exist_ok=True)
    written = {name: directory / f"{name}.html" for name in SAMPLES}
    for name, path in written.items():
        path.write_text(page_of(SAMPLES[name]()), encoding="utf-8")
    return written


def main(directory: str, *options: str) -> None:
    written = write_samples(Path(directory))
    for path in written.values():
        print(path)
    if "--pictures" in options:
        from page_browser import browser, screenshots

        with browser() as driver:
            for path in written.values():
                for picture in screenshots(driver, path):
                    print(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
