"""Generators of programs, a file each; `hunt/registry.py` lists them."""
