"""`make bench-locate`: who `torchrepro locate` finds guilty, against who is known to be."""
