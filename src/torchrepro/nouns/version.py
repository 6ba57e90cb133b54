"""The version of torchrepro, which bundles, results and reports carry."""

__version__ = "0.1.0"
