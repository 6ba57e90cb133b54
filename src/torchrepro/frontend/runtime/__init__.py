"""What runs when a captured function is called: cache, regions, breaks."""
