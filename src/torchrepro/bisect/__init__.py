"""Which version broke it: run a bundle or a script under a series of settings, and find where it changes."""
