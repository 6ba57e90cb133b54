"""A long search in a process of its own: how it is started, followed, stopped and kept warm."""
