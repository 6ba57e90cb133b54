"""Who is known to be guilty: the first backend of the ladder that fails, as people have found it by hand."""

from __future__ import annotations

from benchmarks.minify.cases import Case

NOBODY = "nobody"
_OF_THE_REAL = {
    "191499": "backend",
    "191499b": "backend",
    "191499_big": "backend",
    "196570": "backend",
    "196570_big": "backend",
    "198131": "backend",
    "198131_big": "backend",
    "197067": "aot",
    "194706": "backend",
    "195422": "aot",
    "179804": "aot",
    "188217": "backend",
    "fuzz_acosh": "backend",
    "fuzz_softshrink_nan": "backend",
    "185246": "decomposition",
    "192985": "capture",
    "197896": "capture",
    "fuzz_gelu": NOBODY,
    "174078": NOBODY,
}


def known_stage(case: Case) -> str:
    """The stage. What is injected is injected into inductor."""
    return "backend" if case.injected else _OF_THE_REAL[case.name]
