"""Whole compiled calls compared with plain Python, for what capture itself gets wrong (`calls.py`)."""
