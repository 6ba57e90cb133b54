"""Values: what a repro holds, what is plain, and what it costs to write it down."""
