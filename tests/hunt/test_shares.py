"""A hunt in shares: what they find is what a hunt here would have found, and lies in its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import cluster_of

from torchrepro import Kind, Repro, Signature, Verdict, save_bundle
from torchrepro.bundle.provenance import CONFIG_DIR, is_own
from torchrepro.corpus.index import Corpus
from torchrepro.engine.remote.messages import Blob
from torchrepro.engine.remote.ray_cluster import ray_cluster
from torchrepro.hunt import shares
from torchrepro.hunt.directory import SORTED, About, HuntDirectory, Judged
from torchrepro.hunt.hunt import Hunting, OtherTorch, Searched, hunt
from torchrepro.hunt.settings import Hunted, HuntSettings
from torchrepro.hunt.shares import Harvest, Share, hunt_in_shares, hunt_share, packed
from torchrepro.nouns.errors import TorchReproError


class AtOnce(Executor):
    """Runs each call when it is submitted."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as exc:
            future.set_exception(exc)
        return future


class Here:
    """What the process of the hunt on this machine was asked."""

    def __init__(self) -> None:
        self.sorted: list[str] = []

    def search(self, hunting: Hunting, settings: HuntSettings, on_message: Any = None) -> Searched:
        assert settings.programs == 0
        directory = hunting.directory
        directory.belong_to("2.13.0", "aaaa", "python")
        directory.sources.mkdir(exist_ok=True)
        if settings.sort_seconds:
            judged = list(directory.judged())
            known = {each.seed for each in judged if each.kind == SORTED}
            new = [each.seed for each in judged if each.fails and each.seed not in known]
            directory.append([Judged(seed, SORTED, bucket=f"bucket of {seed}") for seed in new])
            self.sorted += new
        return Searched("", 0.0)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    found = Here()
    monkeypatch.setattr(
        Hunting, "search", lambda hunting, settings, *more: found.search(hunting, settings, *more)
    )
    return found


def failing(directory: Path, seed: str) -> Judged:
    """Save a program that fails, as a share does on its machine."""
    graph = torch.fx.symbolic_trace(lambda x: (x + int(seed[-1], 16),))
    signature = Signature(Kind.MISMATCH)
    bundle = directory / seed
    save_bundle(Repro(graph, (torch.ones(3),), expected=signature), bundle, verdict=Verdict(Kind.MISMATCH))
    return Judged(seed, "mismatch", "it differs", str(signature), str(bundle))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Share]:
    """Let shares judge nothing: every fourth program fails, on a machine of another user."""
    taken: list[Share] = []

    def judge(share: Share, sources: Blob) -> Harvest:
        taken.append(share)
        place = tmp_path / f"share-{len(taken)}"
        with pytest.MonkeyPatch.context() as there:
            there.setenv(CONFIG_DIR, str(tmp_path / "other user"))
            judged = [
                failing(place, seed) if seed[-1] in "37bf" else Judged(seed, "pass")
                for seed in share.settings.seeds or ()
            ]
        files = packed(place)
        return Harvest(tuple(judged), str(place), files)

    monkeypatch.setattr(shares, "hunt_share", judge)
    return taken


SETTINGS = HuntSettings(generators=("operators",), batch=1, jobs=2)


def test_what_shares_find_lies_in_the_directory_and_is_the_users_own(
    tmp_path: Path, here: Here, elsewhere: list[Share]
) -> None:
    out = tmp_path / "hunt"
    found = hunt_in_shares(out, replace(SETTINGS, programs=16), AtOnce(), seed=0xB0)
    assert (found.programs, found.kinds) == (16, {"mismatch": 4, "pass": 12})
    assert sorted(seed for share in elsewhere for seed in share.settings.seeds or ()) == [
        f"operators-b0{number:06x}" for number in range(16)
    ]
    assert {share.about.torch for share in elsewhere} == {"2.13.0"}
    failures = [failure.seed for failure in found.failures]
    assert sorted(here.sorted) == sorted(failures)
    assert {failure.bucket for failure in found.failures} == {f"bucket of {seed}" for seed in failures}
    for failure in found.failures:
        assert Path(failure.bundle) == out / "failing" / failure.seed
        assert is_own(Path(failure.bundle))
    with Corpus(out / "corpus") as corpus:
        assert corpus.count() == 4


def test_a_hunt_ends_with_enough_new_buckets_and_goes_on_with_other_seeds(
    tmp_path: Path, here: Here, elsewhere: list[Share]
) -> None:
    out = tmp_path / "hunt"
    first = hunt_in_shares(out, replace(SETTINGS, until_new=3), AtOnce(), seed=0xB0)
    assert len(first.buckets) >= 3
    before = set(elsewhere[0].settings.seeds or ())
    elsewhere.clear()
    hunt_in_shares(out, replace(SETTINGS, programs=8), AtOnce())
    assert not before & {seed for share in elsewhere for seed in share.settings.seeds or ()}


def test_a_share_that_cannot_run_ends_the_hunt_and_what_was_found_stays(
    tmp_path: Path, here: Here, elsewhere: list[Share], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, judge = tmp_path / "hunt", shares.hunt_share

    def refuse(share: Share, sources: Blob) -> Harvest:
        if elsewhere:
            raise TorchReproError("on node7: torch is 2.12.0", next_step="install the same version")
        return judge(share, sources)

    monkeypatch.setattr(shares, "hunt_share", refuse)
    with pytest.raises(TorchReproError, match="on node7"):
        hunt_in_shares(out, replace(SETTINGS, seconds=600.0), AtOnce(), seed=0xB0)
    assert {each.seed for each in HuntDirectory(out).judged()} == set(elsewhere[0].settings.seeds or ())


def test_a_name_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    directory = HuntDirectory(tmp_path)
    directory.failing.mkdir()
    harvest = Harvest((Judged("operators-1", "pass"),), "/there", {"operators-1/../../evil": b""})
    with pytest.raises(TorchReproError, match="is not a name"):
        shares.take(harvest, directory)
    assert not directory.log.exists()


def test_a_machine_with_other_versions_says_so(tmp_path: Path) -> None:
    share = Share(SETTINGS, About("b0"), OtherTorch(), {"torchrepro": "0.0.1"})
    with pytest.raises(TorchReproError, match=r"on .*: torchrepro is .*, and 0\.0\.1 where the search runs"):
        hunt_share(share, Blob("", b"\x80"))


# With real processes: the same programs here and elsewhere.

REAL = HuntSettings(
    seeds=tuple(
        f"{name}-8b6f19{number:06x}" for name in ("operators", "windows") for number in range(92, 102)
    ),
    batch=10,
    sort_seconds=0,
)
"""One of these, a `std` of very large numbers, fails with torch 2.13."""


@pytest.fixture(scope="module")
def found_here(tmp_path_factory: pytest.TempPathFactory) -> Hunted:
    return hunt(tmp_path_factory.mktemp("here"), REAL, seed=0xB0)


@pytest.fixture(scope="module", params=["threads", "ray"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
        return
    with cluster_of(2), ray_cluster("ray") as connected:
        yield connected.executor("a hunt")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_same_programs_fail_elsewhere(executor: Executor, found_here: Hunted, tmp_path: Path) -> None:
    found = hunt_in_shares(tmp_path / "hunt", REAL, executor, seed=0xB0)
    assert (found.programs, found.kinds) == (found_here.programs, found_here.kinds)
    told = {failure.seed: failure.signature for failure in found.failures}
    assert told == {failure.seed: failure.signature for failure in found_here.failures}
    assert told or not torch.__version__.startswith("2.13.")
    for failure in found.failures:
        assert is_own(Path(failure.bundle))
        assert Path(failure.bundle).is_relative_to(tmp_path)
    about = json.loads((tmp_path / "hunt" / "hunt.json").read_text())
    assert about["torch"] == torch.__version__
