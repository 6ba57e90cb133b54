"""Several ranks: each tells the others how it fared before anyone raises (`exchange.py`, `watch.py`)."""
