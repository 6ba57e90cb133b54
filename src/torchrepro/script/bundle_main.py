"""The part of `repro.py` that decides: a `main()` that returns whether the recorded failure shows again."""

from __future__ import annotations

from torchrepro.nouns.comparison import Difference, LeafComparison
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Kind, Verdict

_PLAIN = """\
def main():
    run(compile_it=False)
    run(compile_it=True)
    return False
"""

_CRASH = """\
def main():
    run(compile_it=False)
    print("if the next line is missing, the process has crashed: reproduced", flush=True)
    run(compile_it=True)
    return False
"""

_HANG = """\
def main():
    import threading

    def give_up():
        print("reproduced: no end after {limit:g} s", flush=True)
        os._exit(1)

    run(compile_it=False)
    watch = threading.Timer({limit!r}, give_up)
    watch.daemon = True
    watch.start()
    run(compile_it=True)
    watch.cancel()
    return False
"""

_RAISES = '''\
TYPE = {type!r}
WORDS = {words!r}
"""In the message of the exception; what varies from run to run is left out."""


def main():
    run(compile_it=False)
    try:
        run(compile_it=True)
    except Exception as error:
        while isinstance(getattr(error, "inner_exception", None), BaseException):
            error = error.inner_exception
        message = str(error)
        print(f"{{type(error).__name__}}: {{message[:2000]}}")
        if type(error).__name__ == TYPE and all(word in message for word in WORDS):
            return True
        print("it fails, but in another way than recorded")
    return False
'''

_MISSING = """\
def main():
    try:
        run(compile_it=False)
    except Exception as error:
        print(f"eager raises {type(error).__name__}: {error}")
    else:
        print("eager does not raise any more")
        return False
    try:
        run(compile_it=True)
    except Exception as error:
        print(f"compiled raises as well: {type(error).__name__}")
        return False
    print("compiled does not raise")
    return True
"""

_DIFFERS = """\
# What was found to differ, and half of the error that was seen there.
LIMITS = {limits}


def differs(eager, compiled, limit):
    if not (isinstance(eager, torch.Tensor) and isinstance(compiled, torch.Tensor)):
        return eager is not compiled and eager != compiled
    if eager.shape != compiled.shape or eager.dtype != compiled.dtype or eager.device != compiled.device:
        return True
    if eager.layout != torch.strided:
        eager, compiled = eager.to_dense(), compiled.to_dense()
    if eager.is_quantized:
        eager, compiled = eager.dequantize(), compiled.dequantize()
    if not (eager.is_floating_point() or eager.is_complex()):
        return not torch.equal(eager, compiled)
    wide = torch.complex128 if eager.is_complex() else torch.float64
    eager, compiled = eager.detach().to(wide), compiled.detach().to(wide)
    return not torch.allclose(compiled, eager, rtol=0.0, atol=limit, equal_nan=True)


def main():
    eager = run(compile_it=False)
    compiled = run(compile_it=True)
    found = False
    for path, limit in LIMITS.items():
        if differs(eager.get(path), compiled.get(path), limit):
            found = True
            print(f"{{path}} differs")
            print("  eager   ", str(eager.get(path))[:500])
            print("  compiled", str(compiled.get(path))[:500])
    return found
"""


def main_function(expected: Signature | None, verdict: Verdict | None) -> str:
    """`main()` for the recorded failure."""
    if expected is None:
        return _PLAIN
    match expected.kind:
        case Kind.CRASH | Kind.OUT_OF_MEMORY:
            return _CRASH
        case Kind.HANG:
            seconds = verdict.seconds if verdict is not None else 60.0
            return _HANG.format(limit=max(60.0, round(seconds)))
        case Kind.COMPILE_ERROR | Kind.RUN_ERROR:
            return _RAISES.format(type=expected.exception, words=_fixed_words(expected.message))
        case Kind.MISSING_ERROR:
            return _MISSING
        case Kind.MISMATCH | Kind.NON_FINITE:
            comparison = None if verdict is None else verdict.comparison
            leaves = () if comparison is None else comparison.differing
            lines = [f"    {leaf.path!r}: {_limit(leaf)!r}," for leaf in leaves]
            return _DIFFERS.format(limits="{\n" + "\n".join(lines) + "\n}")
    return _PLAIN


def _limit(leaf: LeafComparison) -> float:
    """Half of the error that was seen, so that rounding of another machine does not count."""
    by_value = leaf.difference in (Difference.VALUE, Difference.NON_FINITE)
    finite = leaf.max_abs == leaf.max_abs and leaf.max_abs != float("inf")
    return leaf.max_abs / 2 if by_value and finite else 0.0 if not by_value else 1e300


def _fixed_words(message: str) -> list[str]:
    """The pieces of a normalised message between its placeholders."""
    import re

    pieces = re.split(r"<\w+>(?:, \.\.\.)?", message)
    return [piece.strip() for piece in pieces if len(piece.strip()) > 3][:5]
