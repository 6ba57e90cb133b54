"""Whatever bytes a stranger sends: read, or refused. `benchmarks/fuzz_parsers.py` takes longer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_parsers import Parse, mutated, parsers
from torchrepro.nouns.errors import BundleError, TorchReproError

NAMES = (
    *("manifest", "description", "graph text", "picture", "storages", "archive", "provenance"),
    *("verdict", "results", "symbols"),
)
_all = cache(parsers)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("fuzz")


def _parsed(parse: Parse, data: bytes, scratch: Path) -> None:
    began = time.process_time()
    with suppress(TorchReproError):
        parse(data, scratch)
    assert time.process_time() - began < 1.0


def test_every_parser_is_fuzzed() -> None:
    assert set(_all()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_seeds_are_read(name: str, scratch: Path) -> None:
    parse, seeds = _all()[name]
    for seed in seeds:
        if b"mylib:function" in seed:
            with pytest.raises(BundleError, match="--trust mylib"):
                parse(seed, scratch)
        else:
            parse(seed, scratch)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, suppress_health_check=[*HealthCheck])
@given(seed=st.integers(0, 1 << 32), raw=st.none() | st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(name: str, seed: int, raw: bytes | None, scratch: Path) -> None:
    parse, seeds = _all()[name]
    chance = random.Random(seed)
    _parsed(parse, mutated(chance.choice(seeds), chance) if raw is None else raw, scratch)
