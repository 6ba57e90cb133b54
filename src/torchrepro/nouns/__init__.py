"""The data that every other room speaks: repros, verdicts, signatures, comparisons, results. All frozen."""

__version__ = "0.1.0"
"""Of torchrepro: bundles, results and reports carry it."""
