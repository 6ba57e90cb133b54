"""A minimal repro as a script that looks hand-written, and the proof that it still fails."""
