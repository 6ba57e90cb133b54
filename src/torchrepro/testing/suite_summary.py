"""What pytest prints at the end of a run: the failures of all tests of all workers, by bucket.

A worker that died cannot report: what the watch left on disk in its last test is found there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchrepro.testing.pytest_plugin import BUNDLE, GRAPHS, WATCH, Suite


class SuiteSummary:
    """Collects the reports of all processes."""

    def __init__(self, config: pytest.Config, suite: Suite) -> None:
        self._config = config
        self._suite = suite
        self._tests: dict[Path, str] = {}
        """The test of each bundle."""
        self._passed: set[str] = set()
        self._ids: dict[str, None] = {}
        self._graphs = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ids[report.nodeid] = None
        for name, value in report.user_properties:
            if name == BUNDLE:
                self._tests[Path(str(value))] = report.nodeid
        if report.failed:
            self._passed.discard(report.nodeid)
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        self._graphs += getattr(node, "workeroutput", {}).get(GRAPHS, 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        watched = ""
        if self._suite.level is not None:
            from torchrepro.nouns.sections import counted

            self._find_leftovers()
            here = self._config.pluginmanager.get_plugin(WATCH)
            graphs = self._graphs + (here.graphs if here is not None else 0)
            watched = f"{counted(graphs, 'compiled graph')} watched at level {self._suite.level}"
        if self._tests:
            terminalreporter.section("torchrepro")
            for line in self._lines(watched):
                terminalreporter.write_line(line)
        elif watched:
            terminalreporter.write_line(f"torchrepro: {watched}, none failed")

    def _find_leftovers(self) -> None:
        """Finish the bundles of workers that have died, and take in what no report has named."""
        from torchrepro.catch.caught import Death, caught_in, finish_unfinished
        from torchrepro.testing.artefacts import directory_for

        out, run_id = self._suite.out, self._suite.run_id
        tests = {directory_for(out, test): test for test in self._ids}
        directories = [entry for entry in out.iterdir() if entry.is_dir()] if out.is_dir() else []
        for directory in (*directories, out):
            finish_unfinished(directory, run_id, Death(pid=0, exit_code=1))
            for one in caught_in(directory, run_id):
                self._tests.setdefault(one.path, tests.get(directory, ""))

    def _lines(self, watched: str) -> list[str]:
        from torchrepro.nouns.sections import counted
        from torchrepro.testing.artefacts import bucket_of, script_of

        buckets: dict[str, list[Path]] = {}
        for bundle in self._tests:
            buckets.setdefault(bucket_of(bundle), []).append(bundle)
        lines = []
        for bucket, bundles in sorted(buckets.items(), key=lambda entry: -len(entry[1])):
            lines.append(f"{len(bundles)} x {bucket or 'unknown: the bundle cannot be read'}")
            for bundle in bundles:
                test = self._tests[bundle] or "unknown test"
                lines.append(f"  {test}{' (passed)' if test in self._passed else ''}")
                lines.append(f"    bundle  {bundle}")
                if (script := script_of(bundle)) is not None:
                    lines.append(f"    script  {script}")
        total = f"{counted(len(self._tests), 'failure')} in {counted(len(buckets), 'bucket')}"
        return [*lines, f"torchrepro: {', '.join(filter(None, [total, watched]))}"]
