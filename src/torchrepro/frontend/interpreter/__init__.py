"""Interpret CPython bytecode in Python. Does not depend on torch."""
