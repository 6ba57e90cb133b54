"""The bundle's own standalone script, for what cannot be written by hand or does not fail then.

It keeps every value in files and hands the graph over as it was captured (`bundle/script.py`).
"""

from __future__ import annotations

from dataclasses import replace

from torchrepro.bundle.archive import Content
from torchrepro.bundle.graph_source import write_with_source
from torchrepro.bundle.read import OPERATORS, TENSORS, VALUES
from torchrepro.bundle.save import manifest_of, values_of
from torchrepro.bundle.script import standalone_script, values_for_script
from torchrepro.bundle.storage_file import write_storages
from torchrepro.bundle.values import pack_values
from torchrepro.minify.polish.document import Entry, Script
from torchrepro.repro import Repro
from torchrepro.signature import Signature
from torchrepro.verdict import Verdict


def bundle_script(repro: Repro, verdict: Verdict, reason: str = "") -> Script:
    """The standalone script of the bundle of this repro, with its files; `reason` is why it is needed."""
    written, compiler = write_with_source(repro)
    repro = replace(repro, compiler=compiler, expected=repro.expected or Signature.of(verdict))
    values = values_of(repro, written)
    packed = pack_values(values, size_cap=1 << 62)
    manifest = manifest_of(repro, written, packed, verdict)
    files: dict[str, Content] = {TENSORS: lambda path: write_storages(path, packed.storages)}
    beside = values_for_script(manifest, values)
    if beside is not None:
        files[VALUES] = beside
    if written.operators.text:
        files[OPERATORS] = written.operators.text.encode()
    text = standalone_script(manifest, written.text, verdict, written.source)
    remark = "the graph as it was captured, with its values in files"
    return Script(text, Entry.INTERNAL, f"{remark}: {reason}" if reason else remark, files)
