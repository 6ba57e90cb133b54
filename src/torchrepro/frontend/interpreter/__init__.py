"""Interpret CPython bytecode in Python. Knows nothing of torch."""
