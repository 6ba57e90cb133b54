"""Programs that a capture is easily wrong about: played by Python and by the front end, they are the same."""

from __future__ import annotations

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
