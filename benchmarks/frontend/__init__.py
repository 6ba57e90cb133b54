"""`make bench-frontend`: the front end against torch's own capture, on models, on small functions, in seconds."""
