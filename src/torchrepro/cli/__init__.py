"""The command line: one file a verb. Nothing here imports torch until a verb needs it, so help is instant."""

from torchrepro.cli.app import main

__all__ = ["main"]
