"""The failing programs: bugs injected into inductor, and bugs that torch 2.13 has by itself."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = HERE.parents[1] / "tests" / "cases"
INJECTED, REAL = CASES / "injected", CASES / "real"
WARM = HERE.parents[1] / ".cache" / "bench-minify" / "torchrepro"
"""What torchrepro keeps between runs: the probes of the machine that inductor compiles first, 15 s of work.

Torch's own tool finds them in its cache, where the program that was caught has left them.
"""

DIFFERENT_NUMBERS = "AccuracyError"
"""How a program's `match` says that its failure is wrong numbers; the words are those of torch's own tool."""
ANY_FAILURE = ""


@dataclass(frozen=True, slots=True)
class Case:
    """A failing program, how torch's own tool is to be set up for it, and the smallest known repro."""

    name: str
    path: Path
    """`model.py` of an injected bug; the file with `build()` of a real one."""
    kind: str
    level: int
    match: str
    """The text, signal or `timeout` by which the failure shows."""
    ideal: int | None
    """Operations in the smallest repro; None where nobody knows."""
    after: str = "aot"
    fails: bool = True
    """False for the traps: programs that look broken and are not the compiler's fault."""
    of_capture: bool = False
    """Whether only a whole call shows it: no graph is to blame."""

    @property
    def injected(self) -> bool:
        return self.path.is_relative_to(INJECTED)

    @property
    def flaky(self) -> bool:
        return "flaky" in self.kind

    @property
    def hangs(self) -> bool:
        return self.match == "timeout"

    @property
    def warm_cache(self) -> bool:
        return "warm cache" in self.kind

    @property
    def program(self) -> list[str]:
        """The words after `python` that run it as a user's program."""
        return [str(self.path)] if self.injected else [str(HERE / "real_program.py"), str(self.path)]

    def environment(self, cache: Path, counted: Path | None = None) -> dict[str, str]:
        """The bug in the compiler, caches that nobody else uses, and where compilations are counted."""
        ours = ("TORCHREPRO_", "TORCHDYNAMO_REPRO_", "FXBUG")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = [str(HERE / "counting"), str(INJECTED / "_site"), os.environ.get("PYTHONPATH", "")]
        found = {
            **kept,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TORCHREPRO_CACHE_DIR": str(WARM),
        }
        if self.injected:
            found["FXBUG"] = str(self.path.parent / "inject.py")
        # A bundle that was not written here runs in a sandbox: the bug has to get in.
        found["TORCHREPRO_SANDBOX_ENV"] = "FXBUG"
        found["TORCHREPRO_SANDBOX_READ"] = str(INJECTED)
        if counted is not None:
            found["COMPILES_COUNTED"] = str(counted)
        return found


def _wrong(name: str, ideal: int | None, *, after: str = "aot", of_capture: bool = False) -> Case:
    path = REAL / f"case_{name}.py"
    return Case(name, path, "wrong values", 4, DIFFERENT_NUMBERS, ideal, after, of_capture=of_capture)


def _raises(name: str, match: str, ideal: int | None) -> Case:
    return Case(name, REAL / f"case_{name}.py", "compile error", 2, match, ideal)


def _trap(name: str) -> Case:
    return Case(name, REAL / f"case_{name}.py", "trap: not the compiler", 4, "", None, fails=False)


# What goes wrong before or in AOT is the same in both graphs that are compared after AOT: torch's own tool
# has to stand after capture ("dynamo") to see it.
_REAL = (
    _wrong("191499", 1),
    _wrong("191499b", 1),
    _wrong("191499_big", 1),
    _raises("196570", "KeyError", None),
    _raises("196570_big", "KeyError", None),
    _wrong("198131", None),
    _wrong("198131_big", None),
    Case("197067", REAL / "case_197067.py", "segfault", 3, "SIGSEGV", 1),
    _raises("194706", "CppCompileError", None),
    _wrong("195422", None, after="dynamo"),
    _wrong("179804", None, after="dynamo"),
    _raises("188217", "reduce() of empty iterable", None),
    _wrong("fuzz_acosh", 1),
    _wrong("fuzz_softshrink_nan", None),
    Case("185246", REAL / "case_185246.py", "missing error", 4, ANY_FAILURE, 1, "dynamo"),
    _wrong("192985", None, after="dynamo", of_capture=True),
    _wrong("197896", None, after="dynamo", of_capture=True),
    _trap("fuzz_gelu"),
    _trap("174078"),
)


def _read(path: Path) -> Case:
    known = json.loads(path.read_text())
    return Case(
        name=known["name"].partition("_")[0],
        path=path.parent / "model.py",
        kind=known["kind"],
        level=known["level"],
        match=known["match"],
        ideal=known["min_nodes"],
        after=known["after"],
    )


def all_cases() -> list[Case]:
    return [*map(_read, sorted(INJECTED.glob("c*/case.json"))), *_REAL]


def chosen(words: Sequence[str]) -> list[Case]:
    """All cases, or those that are named, in the order of the table."""
    found = all_cases()
    unknown = set(words) - {case.name for case in found}
    if unknown:
        known = ", ".join(case.name for case in found)
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are: {known}")
    return [case for case in found if case.name in words] if words else found
