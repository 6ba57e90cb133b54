"""Fuzz what reads a stranger's bytes: `python -m benchmarks.fuzz_parsers --minutes 60`.

Mutated manifests, graph texts, headers of storages, archives, provenance tables, verdicts and symbolic sizes.
Each input must be read or refused with a TorchReproError, within a second, in less than 512 MiB.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 1.0
MEBIBYTES = 512

Parse = Callable[[bytes, Path], object]


def _newer(manifest: bytes) -> Iterator[bytes]:
    """Yield manifests with the kinds of values and entries that few bundles have."""
    tensor = json.loads(manifest)["values"]["input.0"]
    two = {"kind": "subclass", "type": "torch.testing._internal.two_tensor.TwoTensor", "number": 7}
    two |= {
        "inner": {"a": tensor, "b": tensor},
        "context": {"kind": "none"},
        "size": [4, 4],
        "stride": [4, 1],
    }
    mesh = {"kind": "mesh", "number": 8, "device": "cpu", "shape": [2], "ranks": [0, 1], "groups": ["0"]}
    placements = [["torch.distributed.tensor.Shard", 0]]
    spread = {"kind": "dtensor", "number": 9, "local": tensor, "mesh": mesh, "placements": placements}
    spread |= {"size": [8, 4], "stride": [4, 1]}
    recipe = {"kind": "random_integers", "itemsize": 4, "low": 0, "high": 9, "seed": 1}
    drawn = {**tensor, "storage": {**tensor["storage"], "recipe": recipe}}
    setting = {"table": "inductor", "name": "post_grad_custom_post_pass", "reference": "mylib:function"}
    for value, moved in ((two, tensor), (spread, tensor), (drawn, drawn)):
        changed = json.loads(manifest)
        changed["values"] |= {"input.0": value, "collective.0.given": moved, "collective.0.returned": moved}
        changed["groups"] = {"rank": 0, "size": 2, "groups": {"0": [0, 1]}}
        changed["collectives"] = [{"op": "all_reduce", "arguments": ["sum"]}]
        yield json.dumps(changed).encode()
    yield json.dumps({**json.loads(manifest), "user_settings": [setting]}).encode()


def parsers() -> dict[str, tuple[Parse, list[bytes]]]:
    """Return each parser with the inputs that mutation starts from."""
    import torch

    from torchrepro.bundle.describe import describe_bundle
    from torchrepro.bundle.load import load_verified
    from torchrepro.bundle.manifest import decode_manifest
    from torchrepro.bundle.provenance import is_own
    from torchrepro.bundle.read import open_bundle_files
    from torchrepro.bundle.storage_file import open_storages
    from torchrepro.graph_text.parser import read_graph
    from torchrepro.nouns.repro import Repro
    from torchrepro.report.graph_picture import picture_of
    from torchrepro.report.run_files import located_at, minified_in, verdict_in
    from torchrepro.script.save_bundle import save_bundle

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.nn.functional.gelu(x @ y, approximate="tanh")
        return torch.einsum("ij,jk->ik", z, x).to(torch.float64), z[:, 1:3].sum(-1)

    repro = Repro(torch.fx.symbolic_trace(function), (torch.ones(4, 4), torch.arange(16.0).view(4, 4).t()))
    with tempfile.TemporaryDirectory() as scratch:
        bundle = save_bundle(repro, Path(scratch, "bundle"))
        zipped = save_bundle(repro, Path(scratch, "bundle.zip")).read_bytes()
        members = {path.name: path.read_bytes() for path in bundle.iterdir()}
    verdict = {
        "kind": "mismatch",
        "stage": "backend",
        "summary": "x",
        "comparison": {"differing": [{"path": "out[0]", "error": "inf", "count": 3}], "notes": []},
    }

    def whole(name: str, action: Callable[[Path], object]) -> Parse:
        """Parse a bundle with one member replaced."""

        def parse(data: bytes, scratch: Path) -> object:
            target = scratch / "bundle"
            target.mkdir(exist_ok=True)
            for other, content in members.items():
                (target / other).write_bytes(content)
            (target / "provenance.json").unlink()
            (target / name).write_bytes(data)
            return action(target)

        return parse

    def in_file(name: str, action: Callable[[Path], object]) -> Parse:
        def parse(data: bytes, scratch: Path) -> object:
            (scratch / name).write_bytes(data)
            return action(scratch / name)

        return parse

    def load(path: Path) -> object:
        return load_verified(path, trusted=(), stranger=True)

    def archive(path: Path) -> object:
        with open_bundle_files(path) as files:
            return [len(files.read_bytes(name)) for name in files.names], files.span("tensors.safetensors")

    def symbols(data: bytes, scratch: Path) -> object:
        """Parse an expression over sizes, inside a graph."""
        text = " ".join(data.decode("utf-8", "replace").split())
        line = f"y = torch.add(x, sym({text}, s0=4, s1=7))"
        graph = f"class Graph:\n    def forward(self, x):\n        {line}\n        return y\n"
        return read_graph(graph, {}, stranger=True)

    def results(data: bytes, scratch: Path) -> object:
        (scratch / "located").mkdir(exist_ok=True)
        for place in (scratch / "result.json", scratch / "located" / "result.json"):
            place.write_bytes(data)
        return minified_in(scratch), located_at(scratch)

    def verdicts(data: bytes, scratch: Path) -> object:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return verdict_in(found if isinstance(found, dict) else None)

    expressions = [
        "2*s0 + 1",
        "(s0 + 3)//4",
        "Mod(s0, 8)",
        "Max(s0, 2)**3",
        "u0*(s1 - 1) < 5",
        "Max(s0, -s1)",
    ]
    return {
        "manifest": (
            whole("manifest.json", load),
            [members["manifest.json"], *_newer(members["manifest.json"])],
        ),
        "description": (
            lambda data, scratch: describe_bundle(decode_manifest(data, "fuzz")).to_dict(),
            [members["manifest.json"]],
        ),
        "graph text": (whole("graph.py", load), [members["graph.py"]]),
        "picture": (
            lambda data, scratch: picture_of("t", data.decode("utf-8", "replace")),
            [members["graph.py"]],
        ),
        "storages": (
            in_file("s", lambda path: [value.sum() for value in open_storages(path).values()]),
            [members["tensors.safetensors"]],
        ),
        "archive": (in_file("a.zip", archive), [zipped]),
        "provenance": (whole("provenance.json", is_own), [members["provenance.json"]]),
        "verdict": (verdicts, [json.dumps(verdict).encode()]),
        "results": (results, [json.dumps({"kind": "pass", "bundle": "x", "op": {"node": "a"}}).encode()]),
        "symbols": (symbols, [text.encode() for text in expressions]),
    }


_TOKENS = [
    *(b"0", b"-1", b"9" * 30, b"1e999", b"null", b"true", b"[]", b"{}", b'""', b"1.5", b"s0", b"Max("),
    *(b"[" * 500, b"(" * 300, b"-" * 400, b"**", b"9**9**9", b"<<9999999", b"nan", b"inf", b"PK\x05\x06"),
    *(b"\x00", b"\xff\xfe", b"\r", b"\x1b[2J", b"../", b"\\u0000", b"\n        ", b"lambda: 0"),
    *(b"__class__", b"torch.os.system", b"sym(", b"const(", b"user(", b"named("),
    *(b"18446744073709551616", b"9223372036854775807", b"-9223372036854775808"),
]
_NUMBERS = (b"-1", b"0", b"7", b"1e9", b"2147483648", b"4611686018427387904", b"18446744073709551617")


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return data with a few places changed: bytes, tokens, numbers, pieces repeated or removed."""
    content = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(7):
            case 0 if content:
                content[at % len(content)] ^= 1 << chance.randrange(8)
            case 1:
                content[at:at] = chance.choice(_TOKENS)
            case 2:
                del content[at : at + chance.choice((1, 2, 8, 64))]
            case 3:
                content[at : at + chance.choice((1, 4, 16))] = chance.choice(_TOKENS)
            case 4:
                piece = bytes(content[at : at + chance.choice((4, 32, 256))])
                content[at:at] = piece * chance.choice((1, 2, 50))
            case 5:
                other = chance.randrange(len(content) + 1)
                content[at:at] = content[other : other + chance.choice((4, 32, 256))]
            case _:
                content[:] = _with_another_number(bytes(content), chance)
        del content[1 << 20 :]
    return bytes(content)


def _with_another_number(data: bytes, chance: random.Random) -> bytes:
    """Replace one of the numbers in a text by another one."""
    numbers = list(re.finditer(rb"-?\d+", data))
    if not numbers:
        return data
    found = chance.choice(numbers)
    new = chance.choice(
        (b"-1", b"0", b"7", b"4611686018427387904", b"18446744073709551617", b"1e9", b"2147483648")
    )
    return data[: found.start()] + new + data[found.end() :]


def fuzz(minutes: float, seed: int, only: str = "") -> tuple[Counter[str], list[str]]:
    """Return how often each parser was tried, and what went wrong."""
    from torchrepro.nouns.errors import TorchReproError

    warnings.simplefilter("ignore")
    chance = random.Random(seed)
    tried: Counter[str] = Counter()
    problems: dict[str, str] = {}
    chosen = {name: found for name, found in parsers().items() if not only or name == only}
    deadline = time.monotonic() + 60 * minutes
    # The first use of a parser imports what it needs; that is not counted.
    with tempfile.TemporaryDirectory(prefix="torchrepro-fuzz-") as scratch:
        for parse, seeds in chosen.values():
            _outcome(parse, seeds[0], Path(scratch))
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        while time.monotonic() < deadline:
            for name, (parse, seeds) in chosen.items():
                data = mutated(chance.choice(seeds), chance)
                began = time.process_time()
                raised = _outcome(parse, data, Path(scratch))
                seconds = time.process_time() - began
                tried[name] += 1
                grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
                kind = ""
                if raised is not None and not isinstance(raised, TorchReproError):
                    where = traceback.extract_tb(raised.__traceback__)[-1]
                    kind = (
                        f"{name}: {type(raised).__name__} in {where.name}:{where.lineno}: {str(raised)[:80]}"
                    )
                elif seconds > SECONDS:
                    kind = f"{name}: took {seconds:.1f} s of processor time"
                elif grown > MEBIBYTES:
                    kind = f"{name}: needed {grown:.0f} MiB"
                    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                if kind and kind.rpartition(":")[0] not in problems:
                    problems[kind.rpartition(":")[0]] = f"{kind}\n    {data[:2000]!r}"
    return tried, list(problems.values())


def _outcome(parse: Parse, data: bytes, scratch: Path) -> BaseException | None:
    try:
        parse(data, scratch)
    except Exception as exc:
        return exc
    return None


def main() -> Any:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="")
    chosen = options.parse_args()
    tried, problems = fuzz(chosen.minutes, chosen.seed, chosen.only)
    for name, count in tried.items():
        print(f"{name:<12} {count:>8} inputs")
    for problem in problems:
        print(problem)
    print(f"{sum(tried.values())} inputs, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
