"""The cases, a file for each part of the language or of torch."""
