"""Measure how often the judge is wrong: alarms about healthy programs, planted errors that it misses."""
