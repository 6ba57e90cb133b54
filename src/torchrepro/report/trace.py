"""The trace of a minimal repro, for an issue: the code that inductor generates for it, as one text file.

It is what `TORCH_LOGS=output_code` prints. The repro is judged as `torchrepro check` does it, so a stranger's
runs in the sandbox, and its code comes out as data. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

from torchrepro.engine.check_bundle import OnPhase, check_bundle
from torchrepro.nouns.errors import visible
from torchrepro.report.privacy import without_paths
from torchrepro.report.run_files import surroundings_of

LARGEST = 1 << 20
"""Maximum characters of a trace: an issue takes attachments of a few megabytes."""
_SHOWN_LINES = 200


def trace_of(
    target: Path,
    *,
    trusted: tuple[str, ...] = (),
    time_limit: float | None = None,
    on_phase: OnPhase = lambda phase: None,
) -> str:
    """Return the trace of a bundle, or of the minimal one where it was minified; it says what is missing."""
    around = surroundings_of(target)
    codes: list[str] = []
    checked = check_bundle(
        around.minimal or around.bundle,
        trusted=trusted,
        time_limit=time_limit,
        on_phase=on_phase,
        on_code=codes.append,
    )
    verdict = checked.verdict
    what = "minimal repro" if around.minimal is not None else "bundle"
    parts = [
        f"# Trace of the {what}: what TORCH_LOGS=output_code prints.",
        f"# It ends with: {checked.signature}",
    ]
    for number, code in enumerate(codes):
        parts.append(f"# Graph {number} of {len(codes)}, as inductor generates it.\n\n{code.strip()}")
    if not codes:
        parts.append("# Inductor generated no code: it failed before, or another compiler is under test.")
    if verdict.raised is not None and verdict.raised.traceback:
        lines = verdict.raised.traceback.strip().splitlines()
        parts.append("# Traceback\n\n" + "\n".join(lines[-_SHOWN_LINES:]))
    return _limited(without_paths(visible("\n\n".join(parts))))


def _limited(text: str) -> str:
    if len(text) <= LARGEST:
        return text + "\n"
    return f"{text[:LARGEST]}\n\n# {len(text) - LARGEST:,} more characters are left out.\n"
