"""The data that every other room speaks: repros, verdicts, signatures, comparisons, results. All frozen."""

__version__ = "0.2.0"
"""Of torchrepro: bundles, results and reports carry it."""
