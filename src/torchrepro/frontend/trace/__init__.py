"""The symbolic executor: steps real Python values, records what happens to tensors."""
