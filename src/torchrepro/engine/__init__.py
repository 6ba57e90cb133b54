"""Judge whether repros fail, and how: each candidate runs in its own process."""
