"""MinifySettings: what the user asked the search to do, as plain data that crosses processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MinifySettings:
    """How to search. Nothing here changes what counts as the failure, except `oracle`."""

    jobs: int | None = None
    """Candidates at a time; None: one for each core."""
    time_limit: float | None = None
    """Seconds for the search, once the original has been seen to fail; None: until it is minimal."""
    passes: tuple[str, ...] = ()
    """The passes to run, by name; empty: all."""
    skip: tuple[str, ...] = ()
    oracle: str = ""
    """A command that is asked in place of the judge (`minify/command_oracle.py`)."""
    explain: bool = True
    """Find out as well which parts of the result do not matter."""
    trusted: tuple[str, ...] = ()
    own: bool = False
    """The bundle was made from the user's own program: what it names may be run."""

    @property
    def scope(self) -> dict[str, object]:
        """What a finished result depends on. The number of jobs and the time given are not part of it."""
        return {"passes": sorted(self.passes), "skip": sorted(self.skip), "explain": self.explain}
