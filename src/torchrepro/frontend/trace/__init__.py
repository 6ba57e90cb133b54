"""The symbolic executor: runs Python on real values and records what happens to tensors."""
