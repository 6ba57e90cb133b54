"""The data that all other rooms share: repros, verdicts, signatures, comparisons, results. All frozen."""

__version__ = "0.2.0"
"""Of torchrepro: bundles, results and reports carry it."""
