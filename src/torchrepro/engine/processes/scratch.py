"""A directory for the temporary files of one task: whoever is killed at any time cannot clear up."""

from __future__ import annotations

import os
import tempfile


def use_scratch(directory: str) -> None:
    """Put temporary files here from now on, those of g++ as well; the parent removes it after the task."""
    os.mkdir(directory)
    os.environ["TMPDIR"] = tempfile.tempdir = directory
