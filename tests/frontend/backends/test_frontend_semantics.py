"""Programs that a capture is easily wrong about: played by Python and by the front end, they are the same."""

from __future__ import annotations

import itertools

import pytest

from tests.frontend.backends.scenes.changes import LIST, Settings
from tests.frontend.harness import Counting, Scene, all_scenes, assert_same, played, tensor, under_test
from torchrepro.second_opinion.api import trace

LIMITS_OF_AOT = {
    "gradients_asked_for_inside": "AOTAutograd has no backward of a backward",
    "a_write_that_breaks_backward": "AOTAutograd traces backward, and fails, when the forward is compiled",
    "recurrent_and_attention_layers": "AOTAutograd cannot save what torch.lstm needs for backward",
}

scenes = pytest.mark.parametrize("play", all_scenes(), ids=lambda play: play.__name__)
quiet = pytest.mark.filterwarnings("ignore::torchrepro.frontend.runtime.cache.CaptureLimitWarning")


def assert_plays_the_same(play: Scene, backend: str) -> None:
    expected = played(play, lambda target: target)
    assert_same(expected, played(play, lambda target: trace(target, backend=backend)))


@quiet
@scenes
def test_a_scene_is_the_same_captured(play: Scene) -> None:
    assert_plays_the_same(play, "eager")


@quiet
@scenes
@pytest.mark.thorough
def test_a_scene_is_the_same_with_functional_graphs(play: Scene) -> None:
    if play.__name__ in LIMITS_OF_AOT:
        pytest.skip(LIMITS_OF_AOT[play.__name__])
    assert_plays_the_same(play, "aot_eager")


def test_going_back_finds_what_was_captured_before() -> None:
    counting = Counting()
    settings = Settings()
    call = under_test()(lambda x: settings.forward(x), counting, False)
    for settings.scale in (2, 3):
        call(tensor())
    assert len(counting.graphs) == 2
    for settings.scale in (2, 3, 2):
        call(tensor(seed=5))
    assert len(counting.graphs) == 2


def test_what_does_not_matter_is_not_guarded() -> None:
    counting = Counting()
    settings = Settings()
    call = under_test()(lambda x: x * settings.scale, counting, False)
    call(tensor())
    settings.names.append("more")
    settings.other = 1  # type: ignore[attr-defined]
    Settings.depth = 1
    LIST.append(3)
    LIST.pop()
    call(tensor(seed=1))
    assert len(counting.graphs) == 1


FOLDING = {"case": False}


class Name:
    """Its hash and its equality read what changes between calls."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def key(self) -> str:
        return self.text.lower() if FOLDING["case"] else self.text

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and self.key == other.key


NAMES = [Name("a"), Name("A")]
HASHED = {
    "a set of a generator": lambda: set(each for each in NAMES),  # noqa: C401
    "a frozen set of a map": lambda: frozenset(map(lambda each: each, NAMES)),  # noqa: C417
    "a dict of a generator": lambda: dict((each, 1) for each in NAMES),  # noqa: C402
    "keys of a generator": lambda: dict.fromkeys(each for each in NAMES),
    "a union with a generator": lambda: set().union(each for each in NAMES),
    "a set that is updated": lambda: [known := set(), known.update(each for each in NAMES)][0],
    "a dict that is updated": lambda: [known := {}, known.update((each, 1) for each in NAMES)][0],
    "groups": lambda: [key for key, _ in itertools.groupby(NAMES)],
}


@pytest.mark.parametrize("way", HASHED)
def test_a_hash_that_reads_what_changes_is_asked_on_each_call(way: str) -> None:
    make = HASHED[way]
    call = trace(lambda x: x * len(make()), backend="eager")
    for FOLDING["case"], expected in ((False, 2), (True, 1), (False, 2)):
        assert call(tensor(1)).item() == (tensor(1) * expected).item()
