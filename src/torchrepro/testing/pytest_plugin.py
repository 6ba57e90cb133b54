"""The pytest plugin: options, the fixture `compiled_same`, and what `--torchrepro-watch` registers.

pytest imports this module in every suite on the machine: it imports neither torch nor most of torchrepro, and
without its options and its fixture it does nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_OUT = "torchrepro-out"
WATCH = "torchrepro-watch"
"""The name under which the plugin that watches is registered."""
BUNDLE, BUCKET = "torchrepro_bundle", "torchrepro_bucket"
"""Properties of a test in JUnit's file; each bundle is followed by its bucket."""
GRAPHS = "torchrepro_graphs"
"""What a worker of pytest-xdist tells its controller: how many graphs it has watched."""
_FROM_CONTROLLER = "torchrepro"
"""What the controller of pytest-xdist tells its workers: the directory and the run id."""


@dataclass(frozen=True, slots=True)
class Suite:
    """The options of a run, the same in all of its processes."""

    out: Path
    """Where each test has its directory."""
    level: int | None
    """Of the watch; None: only `compiled_same` compares."""
    minify: bool
    warn: bool
    """A mismatch that the watch finds does not fail the test."""
    run_id: str
    """What the names of the bundles of the watch begin with."""


SUITE = pytest.StashKey[Suite]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torchrepro", "torchrepro: failures of torch.compile become bundles")
    group.addoption(
        "--torchrepro-watch",
        nargs="?",
        type=_level,
        const=2,
        metavar="LEVEL",
        help="Watch every torch.compile of the suite; at level 1 and 2 (the default) an exception leaves a "
        "bundle, at 3 a crash or a hang too, at 4 each compiled call is compared with eager. "
        "Write --torchrepro-watch=LEVEL, or put it after the paths.",
    )
    group.addoption(
        "--torchrepro-out",
        type=Path,
        metavar="DIR",
        default=Path(_OUT),
        help=f"Where bundles go, in a directory for each test (default: {_OUT}).",
    )
    group.addoption(
        "--torchrepro-minify",
        action="store_true",
        help="Minify the first failure of a test at once; its report names the script.",
    )
    group.addoption(
        "--torchrepro-warn",
        action="store_true",
        help="A mismatch that only the watch finds is reported, and the test passes.",
    )


def _level(text: str) -> int:
    if text not in ("1", "2", "3", "4"):
        # argparse takes the word after an option for its value.
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a level from 1 to 4; write --torchrepro-watch=2 {text}, or put the option last"
        )
    return int(text)


def pytest_configure(config: pytest.Config) -> None:
    told = getattr(config, "workerinput", {}).get(_FROM_CONTROLLER)
    config.stash[SUITE] = suite = _suite(config, told)
    if told is None:
        from torchrepro.testing.suite_summary import SuiteSummary

        config.pluginmanager.register(SuiteSummary(config, suite), "torchrepro-summary")
    distributed = told is None and config.getoption("numprocesses", None)
    if suite.level is not None and not distributed:
        from torchrepro.testing.watched_tests import WatchedTests

        config.pluginmanager.register(WatchedTests(config, suite), WATCH)


def _suite(config: pytest.Config, told: Any) -> Suite:
    level = config.getoption("torchrepro_watch")
    if told is None:
        out = (config.invocation_params.dir / config.getoption("torchrepro_out")).absolute()
        told = {"out": out, "run_id": _run_id() if level is not None else ""}
    return Suite(
        out=Path(told["out"]),
        level=level,
        minify=config.getoption("torchrepro_minify"),
        warn=config.getoption("torchrepro_warn"),
        run_id=told["run_id"],
    )


def _run_id() -> str:
    from torchrepro.bundle.archive import new_run_id

    return new_run_id()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of pytest-xdist, which may run in another directory, where bundles go."""
    suite = node.config.stash[SUITE]
    node.workerinput[_FROM_CONTROLLER] = {"out": str(suite.out), "run_id": suite.run_id}


@pytest.fixture
def compiled_same(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`compiled_same(model, inputs, ...)` fails the test unless the compiled model gives what eager does.

    Arguments as for `torchrepro.testing.assert_same_models`; bundles go to the directory of the test.
    """
    from torchrepro.testing.artefacts import bucket_of, directory_for
    from torchrepro.testing.same_models import ModelsDiffer, assert_same_models

    suite, node = request.config.stash[SUITE], request.node

    def compare(model: Callable[..., Any], inputs: Any = (), *args: Any, **options: Any) -> None:
        __tracebackhide__ = True
        usual = {"out": directory_for(suite.out, node.nodeid), "minify": suite.minify}
        try:
            assert_same_models(model, inputs, *args, **{**usual, **options})
        except ModelsDiffer as exc:
            if exc.bundle is not None:
                node.user_properties.append((BUNDLE, str(exc.bundle)))
                node.user_properties.append((BUCKET, bucket_of(exc.bundle)))
            raise

    return compare
