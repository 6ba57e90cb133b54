"""Programs that a capture is easily wrong about: played by Python and by the front end, they are the same."""

from __future__ import annotations

import pytest

from tests.frontend.backends.scene import Scene, all_scenes, played
from tests.frontend.corpus.facts import first_difference
from torchrepro.frontend.api import trace


@pytest.mark.parametrize("play", all_scenes(), ids=lambda play: play.__name__)
@pytest.mark.filterwarnings("ignore::torchrepro.frontend.runtime.cache.CaptureLimitWarning")
def test_a_scene_is_the_same_captured(play: Scene) -> None:
    expected = played(play, lambda target: target)
    found = played(play, lambda target: trace(target, backend="eager"))
    for number, (right, got) in enumerate(zip(expected, found, strict=False), start=1):
        assert first_difference(right, got) is None, f"step {number}"
    assert len(found) == len(expected)
