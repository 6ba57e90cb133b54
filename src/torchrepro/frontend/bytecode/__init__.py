"""A code object as a program: read, analysed, entered midway. Does not depend on torch."""
