"""A second frontend for capture: trace, explain, verify, record a failing frame, trace ranks in lock step."""
