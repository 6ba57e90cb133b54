"""Compile a repro with the compiler under test, run it, judge it."""
