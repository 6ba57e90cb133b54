"""Suites as users have them, run by a real pytest in a directory of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

BACKENDS = str(Path(__file__).resolve().parent.parent / "catch")


@dataclass(frozen=True)
class SuiteRun:
    """What pytest printed, its exit code and its JUnit file."""

    directory: Path
    exit_code: int
    text: str
    outcomes: dict[str, str]
    """By the name of the test: passed, failure or error."""
    properties: dict[str, dict[str, str]]

    @property
    def bundles(self) -> list[Path]:
        return [path.parent for path in sorted(self.directory.glob("torchrepro-out/*/*/manifest.json"))]


def run_suite(directory: Path, source: str, *options: str) -> SuiteRun:
    directory.mkdir(exist_ok=True)
    (directory / "test_suite.py").write_text(source)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    plain = ("-p", "no:cacheprovider", "-p", "no:logging", "--junitxml=junit.xml")
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "test_suite.py", *options],
        cwd=directory,
        env={**inherited, "PYTHONPATH": BACKENDS, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    outcomes, properties = {}, {}
    junit = directory / "junit.xml"
    for case in ElementTree.parse(junit).getroot().iter("testcase") if junit.exists() else ():
        name = case.get("name", "")
        outcomes[name] = next((child.tag for child in case if child.tag in ("failure", "error")), "passed")
        properties[name] = {each.get("name", ""): each.get("value", "") for each in case.iter("property")}
    return SuiteRun(directory, finished.returncode, finished.stdout + finished.stderr, outcomes, properties)
