"""One run of `torchrepro minify`: the search process, its directory, stopping, resuming, the result."""
