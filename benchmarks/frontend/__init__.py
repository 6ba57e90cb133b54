"""`make bench-frontend`: the front end against torch's own capture: models, small functions, seconds."""
