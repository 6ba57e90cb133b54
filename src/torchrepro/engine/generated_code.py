"""The text of generated code, without what differs between two compilations. Needs no torch.

Two texts are equal here if the compiler decided the same: kernels, their order, buffers, calls of libraries.
Masked are names of cache files, hashes, paths, addresses, times, and the numbers in the names of kernels.
Left out are comments (they quote the user's source), the imports at the top, and the benchmark at the end,
which change from release to release and do not change what is computed.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import partial

from torchrepro.nouns.sections import counted

_BOILERPLATE = re.compile(
    r"(?:from \S+ import |import |\w+ = torch\.[\w.]+$|async_compile = |del async_compile)"
)
_BENCHMARK = re.compile(r"def (?:get_args|benchmark_compiled_module)\(|if __name__ == ")
_COMMENT = re.compile(r"\s*(?:#(?:\s|$)|//)")
_TRAILING_COMMENT = re.compile(r"\s+# (?:reuse|alias|Source).*$")
_KERNEL = re.compile(r"\b((?:cpp|triton|cutlass|cutedsl|pallas|mps)_\w*?)_?(\d+)\b")
_LITERAL = re.compile(r"r?'''(.*?)'''", re.DOTALL)
_FUSED = re.compile(r"\b(?:cpp|triton)_\w*(?:fused|poi|red|per)\w*")
_SIZE = re.compile(r"\b\d+L?\b")
# In order: what contains others comes first.
_VOLATILE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?"), "<time>"),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[/\\][\w.+\-@]+){2,}"), "<path>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "<address>"),
    (re.compile(r"\b(?=\w*\d)[0-9a-f]{32,}\b|\b[0-9A-F]{40,}\b|\bc[a-z2-7]{51}\b"), "<hash>"),
    (re.compile(r"\bnum_threads\(\d+\)"), "num_threads(<cores>)"),
    (re.compile(r"'(?:backend|kernel)_hash': '[^']*'"), "'backend_hash': <hash>"),
)


def normalise_code(code: str) -> str:
    """Return the code of a graph without what differs between two compilations of the same graph."""
    kept = []
    for line in code.splitlines():
        if _BENCHMARK.match(line):
            break
        if line.strip() and not _COMMENT.match(line) and not _BOILERPLATE.match(line):
            kept.append(_TRAILING_COMMENT.sub("", line.rstrip()))
    text = "\n".join(kept)
    for pattern, placeholder in _VOLATILE:
        text = pattern.sub(placeholder, text)
    numbers: dict[str, int] = {}

    def renumbered(match: re.Match[str]) -> str:
        return f"{match[1]}_{numbers.setdefault(match.group(), len(numbers))}"

    return _KERNEL.sub(renumbered, text) + "\n"


def diff_of_code(before: Sequence[str], after: Sequence[str], names: tuple[str, str]) -> list[str]:
    """Return the lines of a unified diff of two texts of generated code; none if they are equal."""
    return list(difflib.unified_diff(before, after, *names, lineterm=""))


def join_code(codes: Iterable[str]) -> str:
    """Return the normalised code of all graphs of a compilation, in their order; empty if there is none."""
    return "\n".join(map(normalise_code, codes))


def digest_code(text: str) -> str:
    """Return a short digest of normalised code; empty if there is none."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:24] if text else ""


def compare_kernels(original: Iterable[str], minimal: Iterable[str]) -> str:
    """Say whether a kernel of the minimal repro is one of the original's: exactly, or but for its sizes."""
    theirs, ours = kernels_in(original), kernels_in(minimal)
    if not theirs or not ours:
        return "unknown: inductor generated no code"
    for change, words in ((str, "yes"), (partial(_SIZE.sub, "<n>"), "yes, but for sizes")):
        mine, others = ({digest_code(change(one)) for one in kernels} for kernels in (ours, theirs))
        if shared := sorted(mine & others):
            return f"{words}: {shared[0][:12]} is one of {counted(len(others), 'kernel')} of the original"
    mine, others = ({digest_code(one) for one in kernels} for kernels in (ours, theirs))
    return f"no: {_shown(mine)} in the minimal repro, {_shown(others)} in the original"


def kernels_in(codes: Iterable[str]) -> list[str]:
    """Return the normalised text of each kernel, without its name, which lists the ops fused around it.

    Code that only calls libraries has no kernel: then the calls are compared.
    """
    texts = list(codes)
    found = [kernel for text in texts for kernel in _LITERAL.findall(text)]
    return [_FUSED.sub("<kernel>", normalise_code(text)) for text in found or texts]


def _shown(digests: set[str]) -> str:
    return ", ".join(one[:12] for one in sorted(digests)[:2]) + (", ..." if len(digests) > 2 else "")
