"""The user's own code in a repro: source of functions, custom operators, Triton kernels."""
