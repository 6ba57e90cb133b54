"""Explaining a capture to a person: which graphs a call became, what ended each, and why."""
