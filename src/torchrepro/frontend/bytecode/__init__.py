"""A code object as a program: read, analysed, entered midway. Knows nothing of torch."""
