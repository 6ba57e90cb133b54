"""When may a captured region be used again? A readable function, and the reason of every miss."""
