"""`--torchrepro-watch` in a process that runs tests: one session, which keeps each test's failures apart.

The watch begins when the suite imports Dynamo: a suite that compiles nothing does not even import torch.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from torchrepro.catch.autoload import when_imported
from torchrepro.testing.pytest_plugin import BUCKET, BUNDLE, GRAPHS, Suite
from torchrepro.torch_api.names import OUTPUT_GRAPH

if TYPE_CHECKING:
    from torchrepro.catch.caught import Caught
    from torchrepro.catch.session import Session


class WatchedTests:
    """Hooks around each test: where its bundles go, whether it fails, and what its report says."""

    def __init__(self, config: pytest.Config, suite: Suite) -> None:
        self._config = config
        self._suite = suite
        self._session: Session | None = None
        self._is_over = False
        self._directory = suite.out
        self._failed_for: set[Path] = set()
        """Bundles for which a test was made to fail."""
        when_imported(OUTPUT_GRAPH, self._enable)

    def _enable(self, module: ModuleType) -> None:
        from torchrepro.catch.settings import WatchSettings
        from torchrepro.catch.torch_hooks import enable

        if self._is_over:  # the process goes on after `pytest.main`
            return
        suite = self._suite
        settings = WatchSettings.from_environ().changed(
            level=suite.level, out=self._directory, minify=suite.minify or None, run_id=suite.run_id
        )
        self._session = enable(settings)

    @property
    def graphs(self) -> int:
        return 0 if self._session is None else self._session.graphs

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        from torchrepro.testing.artefacts import directory_for

        self._continue_in(directory_for(self._suite.out, item.nodeid))
        try:
            return (yield)
        finally:
            self._continue_in(self._suite.out)

    def _continue_in(self, directory: Path) -> None:
        former, self._directory = self._directory, directory
        if self._session is not None:
            self._session.continue_in(directory)
            with suppress(OSError):  # it is not empty, or was never made
                former.rmdir()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        self._fail_if_wrong()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        self._fail_if_wrong()

    def _fail_if_wrong(self) -> None:
        """Fail the test that has just passed if the watch has found wrong numbers in it."""
        from torchrepro.testing.artefacts import SILENT

        wrong = [one for one in self._caught() if one.verdict in SILENT and one.path not in self._failed_for]
        if wrong and not self._suite.warn:
            self._failed_for.update(one.path for one in wrong)
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            pytest.fail(f"torchrepro: {wrong[0].verdict}: {wrong[0].summary}{more}", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        caught = self._caught()
        if not caught:
            return report
        from torchrepro.testing.artefacts import bucket_of, text_of

        known = {value for name, value in item.user_properties if name == BUNDLE}
        for one in caught:
            if str(one.path) not in known:
                told = [(BUNDLE, str(one.path)), (BUCKET, bucket_of(one.path))]
                item.user_properties += told
                report.user_properties += told
        if report.failed:
            self._failed_for.update(one.path for one in caught)
            report.sections.append(("torchrepro", text_of(caught)))
        return report

    def _caught(self) -> list[Caught]:
        """Return the failures of the current test."""
        session = self._session
        if session is None or not session.kept:
            return []
        from torchrepro.catch.caught import caught_in

        return [one for one in caught_in(session.directory, session.run_id) if one.path in session.kept]

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output[GRAPHS] = self.graphs

    def pytest_unconfigure(self) -> None:
        self._is_over = True
        if self._session is not None:
            from torchrepro.catch.session import disable

            disable(self._session)
