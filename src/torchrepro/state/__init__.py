"""Snapshot what a call can reach, put it back in place, and describe it for a comparison."""
