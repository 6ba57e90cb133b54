"""Rewrite a graph: splice, inline, open, replace arguments and outputs, without touching the original."""
