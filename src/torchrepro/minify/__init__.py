"""From a failing repro to the smallest one that fails in the same way."""
