"""Programs that a capture is easily wrong about: played by Python and by the front end, they are the same."""

from __future__ import annotations

import pytest

from tests.frontend.backends.scene import Scene, all_scenes, played
from tests.frontend.corpus.facts import first_difference
from torchrepro.second_opinion.api import trace

LIMITS_OF_AOT = {
    "gradients_asked_for_inside": "AOTAutograd has no backward of a backward",
    "a_write_that_breaks_backward": "AOTAutograd traces backward, and fails, when the forward is compiled",
    "recurrent_and_attention_layers": "AOTAutograd cannot save what torch.lstm needs for backward",
}

scenes = pytest.mark.parametrize("play", all_scenes(), ids=lambda play: play.__name__)
quiet = pytest.mark.filterwarnings("ignore::torchrepro.frontend.runtime.cache.CaptureLimitWarning")


def assert_the_same(play: Scene, backend: str) -> None:
    expected = played(play, lambda target: target)
    found = played(play, lambda target: trace(target, backend=backend))
    for number, (right, got) in enumerate(zip(expected, found, strict=False), start=1):
        assert first_difference(right, got) is None, f"step {number}"
    assert len(found) == len(expected)


@quiet
@scenes
def test_a_scene_is_the_same_captured(play: Scene) -> None:
    assert_the_same(play, "eager")


@quiet
@scenes
@pytest.mark.thorough
def test_a_scene_is_the_same_with_functional_graphs(play: Scene) -> None:
    if play.__name__ in LIMITS_OF_AOT:
        pytest.skip(LIMITS_OF_AOT[play.__name__])
    assert_the_same(play, "aot_eager")
