"""Catching: from a running program to a bundle, without a rerun.

`torch_hooks.py` says where torch is hooked, `hook.py` what happens there, `session.py` where the bundles go.
The ways in are `launcher.py` (`torchrepro run`), `backend.py`, `enable` and `watch` in `torch_hooks.py`, and
`save_repro.py`.
"""
