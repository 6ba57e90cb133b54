"""Cut a graph anywhere: recorded values, pieces, single-op windows, and hints about which one to try."""
