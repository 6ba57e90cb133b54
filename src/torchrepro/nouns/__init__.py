"""The data that every other room speaks: repros, verdicts, signatures, comparisons, results. All frozen."""
