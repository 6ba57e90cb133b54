"""Sizes: which dimensions belong together, the smallest that run, and how tensors are sliced to them."""
