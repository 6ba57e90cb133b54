"""`make bench-locate`: the culprits that `torchrepro locate` finds, against the known ones."""
