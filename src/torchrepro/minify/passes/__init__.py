"""The passes: one file each, listed in `minify/registry.py`."""
