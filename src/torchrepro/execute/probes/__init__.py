"""Failures that need no reference: what must not matter is varied. A file for each, a row in `table.py`."""
