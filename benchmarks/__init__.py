"""What docs/benchmarks.md quotes: `make bench` prints all of it."""
