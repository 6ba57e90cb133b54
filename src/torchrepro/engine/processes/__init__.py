"""Run what may crash, hang or exhaust the memory in a process of its own."""
