"""A repro as data on disk: `manifest.json`, `graph.py`, `tensors.safetensors` and a standalone `repro.py`.

Opening a bundle runs none of the code in it: the graph is parsed, never executed, and nothing is a pickle.
"""
