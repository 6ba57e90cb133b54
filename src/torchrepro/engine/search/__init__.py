"""A long search in its own process: how it is started, followed, stopped and kept warm."""
