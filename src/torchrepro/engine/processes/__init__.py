"""Run code that may crash, hang or exhaust the memory in its own process."""
