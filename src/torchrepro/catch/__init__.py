"""Catch failures of a running program as bundles, without a rerun.

`torch_hooks.py` hooks torch, `hook.py` is what a hook does, and `session.py` writes the bundles.
The entry points are `launcher.py` (`torchrepro run`), `backend.py`, `enable` and `watch` in `torch_hooks.py`,
and `save_repro.py`.
"""
