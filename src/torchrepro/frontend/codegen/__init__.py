"""Code that makes values and side effects of a captured region happen on a later call."""
