"""Catching: from a running program to a bundle, without a rerun.

`seams.py` says where torch is hooked, `hook.py` what happens there, `session.py` where the bundles go. The
ways in are `launcher.py` (`torchrepro run`), `backend.py`, `watching.py` (`enable`, `watch`) and
`on_demand.py`.
"""
