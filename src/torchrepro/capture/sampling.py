"""Which calls are checked at level 4: every n-th, the first n, or what a share of the run time allows."""

from __future__ import annotations

import time

from torchrepro.capture.session import Session


class Sampler:
    """Decides for the calls of one graph."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._settings = session.settings
        self._calls = 0
        self._checked = 0
        self._last_cost = 0.0

    def take(self) -> bool:
        """Whether to check this call."""
        settings = self._settings
        due = self._calls % settings.every == 0
        self._calls += 1
        if not due or (settings.first is not None and self._checked >= settings.first):
            return False
        if settings.budget is not None:
            elapsed = time.monotonic() - self._session.started
            if self._session.checking_seconds + self._last_cost > settings.budget * elapsed:
                return False
        self._checked += 1
        return True

    def spent(self, seconds: float) -> None:
        self._last_cost = seconds
        self._session.checking_seconds += seconds
