"""The bucket of a failure: its signature, then its minimal graph and the failing pass where they are known.

The fingerprint is a digest of these texts alone, without dates, hosts, paths and names of variables, so that
every shard and every machine gives a failure the same one. Needs no torch.
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.read import read_graph_text, read_manifest, read_source_text
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place
from torchrepro.nouns.results import Located
from torchrepro.nouns.verdict import Signature
from torchrepro.report.run_files import Surroundings, surroundings_of, verdict_in

_LONGEST_GRAPH = 1 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """What the failures in a bucket have in common."""

    signature: str
    graph: str = ""
    """The canonical text of the minimal graph; empty where nothing was minified."""
    culprit: str = ""
    """The failing pass, or the stage and op; empty where nothing was located."""

    @property
    def fingerprint(self) -> str:
        text = "\0".join(("torchrepro bucket 1", self.signature, self.graph, self.culprit))
        return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def bucket_of(target: Path) -> Bucket:
    """Return the bucket of a bundle, or of the directory that `minify` made, by the results around it."""
    return bucket_in(surroundings_of(target))


def bucket_in(around: Surroundings) -> Bucket:
    """Return the bucket of a bundle whose surroundings have been read."""
    located = around.located_in_minimal or around.located
    graph = canonical_graph(around.minimal) if around.minimal is not None else ""
    return Bucket(recorded_signature(around.bundle), graph, _culprit(located))


def recorded_signature(bundle: Path) -> str:
    """Return the signature of the failure that a bundle was saved for; empty where none is recorded."""
    manifest = read_manifest(bundle)
    verdict = verdict_in(manifest.verdict)
    found = manifest.expected or (Signature.of(verdict) if verdict is not None else None)
    return "" if found is None else str(found)


def canonical_graph(bundle: Path) -> str:
    """Return the text of a bundle's graph with its variables renamed in their order; empty if unreadable.

    For a whole call, the user's code is part of it: the graph is that one call.
    """
    try:
        text = read_graph_text(bundle)
        if read_manifest(bundle).place is Place.BEFORE_CAPTURE:
            text = f"{text}\n{read_source_text(bundle)}"
        if len(text) > _LONGEST_GRAPH:
            return hashlib.sha256(text.encode(errors="replace")).hexdigest()
        return ast.unparse(_Renamed().visit(ast.parse(text)))
    except (TorchReproError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


class _Renamed(ast.NodeTransformer):
    """Renames what the graph binds; annotations and texts on their own, which are for readers, go."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for each in ast.walk(node):
            if isinstance(each, ast.arg):
                self._bind(each.arg)
            elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                self._bind(each.id)
        return self.generic_visit(node)

    def _bind(self, name: str) -> None:
        if name != "self":
            self._names.setdefault(name, f"v{len(self._names)}")

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._names.get(node.arg, node.arg))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        plain = ast.Assign([node.target], node.value)
        return self.generic_visit(ast.copy_location(plain, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else self.generic_visit(node)


def _culprit(located: Located | None) -> str:
    if located is None or not located.found:
        return ""
    if located.blamed:
        return located.blamed
    if located.part is not None and located.part.verified:
        return f"{located.stage.value} {located.part.kind} {located.part.name}"
    return f"{located.stage.value} {located.op.op if located.op is not None else ''}".strip()
