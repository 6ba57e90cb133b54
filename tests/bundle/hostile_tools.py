"""What a corpus of hostile bundles is made of: a healthy bundle, and ways to change its parts."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Stage, Verdict
from torchrepro.script.save_bundle import save_bundle

Attack = Callable[[Path, Path], Path]
CORPUS: dict[str, Attack] = {}
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31m\r\x9b[bold red]x[/]</script><script>alert(1)</script>`|@someone #1"


def attack(function: Attack) -> Attack:
    CORPUS[function.__name__] = function
    return function


def healthy(bundle: Path) -> Path:
    """Save a bundle of three ops, with a verdict, as a stranger would have written it."""
    if bundle.exists():
        return bundle

    def function(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.relu(x).sin() + 1,)

    repro = Repro(torch.fx.symbolic_trace(function), (torch.arange(64.0) - 30,))
    save_bundle(repro, bundle, verdict=Verdict(Kind.MISMATCH, Stage.BACKEND, summary="1 of 64 is wrong"))
    (bundle / "provenance.json").unlink()
    return bundle


def with_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = healthy(bundle) / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))
    return bundle


def with_environ(bundle: Path, **variables: str) -> Path:
    return with_manifest(bundle, lambda manifest: manifest["ambient"].update(environ=variables))


def with_settings(bundle: Path, module: str, settings: dict[str, Any]) -> Path:
    return with_manifest(bundle, lambda manifest: manifest["ambient"].update(configs={module: settings}))


def with_options(bundle: Path, options: dict[str, Any]) -> Path:
    return with_manifest(bundle, lambda manifest: manifest["compiler"].update(options=options))


def with_compiler(bundle: Path, name: str) -> Path:
    return with_manifest(bundle, lambda manifest: manifest["compiler"].update(name=name))


def with_lines(bundle: Path, *lines: str) -> Path:
    body = "\n".join(f"        {line}" for line in lines)
    (healthy(bundle) / "graph.py").write_text(f"class Graph:\n    def forward(self, x):\n{body}\n")
    return bundle


def with_zip(path: Path, *members: tuple[zipfile.ZipInfo | str, bytes]) -> Path:
    whole = healthy(path.with_name("whole"))
    path = path.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(whole.iterdir()):
            if file.name not in {getattr(name, "filename", name) for name, _ in members}:
                archive.write(file, file.name)
        for name, content in members:
            archive.writestr(name, content)
    return path


def planted_script(canary: Path) -> str:
    return f"import os\nos.system('touch {canary}')\n"


class Bomb:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)
