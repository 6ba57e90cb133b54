"""torchrepro: from "my compiled model is broken" to a small, verified reproduction and a verdict."""

__version__ = "0.1.0"
