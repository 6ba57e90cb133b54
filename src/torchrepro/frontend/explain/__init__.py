"""Explaining a capture to a person: which graphs a call became, what ended them, and what to write instead."""
