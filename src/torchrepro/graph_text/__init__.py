"""Graphs as readable text: a small subset of Python that is parsed and never executed."""
