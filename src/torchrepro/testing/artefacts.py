"""What a test leaves behind: a directory named after the test, its bundles, and the lines that name them.

Needs no torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchrepro.bundle.read import SCRIPT
from torchrepro.catch.caught import Caught
from torchrepro.engine.search.run_directory import minified_beside
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.sections import Facts, Section
from torchrepro.nouns.verdict import Kind
from torchrepro.report.bucket import bucket_of as report_bucket_of
from torchrepro.report.text import lines_of_sections

_LONGEST_NAME = 100
"""Characters of a directory's name; with bundles and minified scripts below it, paths stay below 255."""
SILENT = frozenset({Kind.MISMATCH, Kind.NON_FINITE, Kind.MISSING_ERROR})
"""Failures that raise nothing in the program: without the watch the test would pass."""


def directory_for(out: Path, test_id: str) -> Path:
    """Return the directory of a test; different ids have different ones, whatever characters they have."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", test_id).strip("-.")
    digest = hashlib.sha256(test_id.encode(errors="surrogatepass")).hexdigest()[:8]
    return out / f"{plain[-_LONGEST_NAME:].strip('-.')}-{digest}"


def bucket_of(bundle: Path) -> str:
    """Return the fingerprint and the signature of a failure's bucket; empty if the bundle is gone."""
    try:
        bucket = report_bucket_of(bundle)
    except TorchReproError:
        return ""
    return f"{bucket.fingerprint} {bucket.signature}"


def script_of(bundle: Path) -> Path | None:
    """Return the minimal script that `minify` has written for a bundle; None if there is none."""
    script = minified_beside(bundle) / "minimal" / SCRIPT
    return script if script.is_file() else None


def facts_of(bundle: Path) -> Iterator[tuple[str, object]]:
    """Yield the bucket and the bundle of a failure, and its script or the command that makes one."""
    yield "bucket", bucket_of(bundle)
    yield "bundle", bundle
    script = script_of(bundle)
    if script is not None:
        yield "script", script
    else:
        yield "minify", f"torchrepro minify {bundle}"


def text_of(caught: Iterable[Caught]) -> str:
    """Return the failures of a test as text, for its report."""
    sections = [Section(f"{one.verdict}: {one.summary}", (Facts.of(facts_of(one.path)),)) for one in caught]
    return "\n".join(line.text for line in lines_of_sections(sections, None))
