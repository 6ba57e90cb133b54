"""LocateSettings: what the user asked for, as plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LocateSettings:
    """How to look. Nothing here changes what is found, only how much of it in the time given."""

    jobs: int | None = None
    """Runs at a time; None: one for each core."""
    time_limit: float | None = None
    """Seconds to look, once the original has been seen to fail; None: until all is found out."""
    trusted: tuple[str, ...] = ()
    own: bool = False
    """The bundle was made from the user's own program: what it names may be run."""
