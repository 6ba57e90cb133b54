"""Scene: a program told once and played twice, by Python and by the front end. It yields what can be seen."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.frontend.backends import scenes
from tests.frontend.corpus.facts import Facts, facts_of

Capture = Callable[[Any], Any]
Scene = Callable[[Capture], Iterator[Any]]

_SCENES: list[Scene] = []


def scene(function: Scene) -> Scene:
    _SCENES.append(function)
    return function


def all_scenes() -> list[Scene]:
    for theme in sorted(info.name for info in pkgutil.iter_modules(scenes.__path__)):
        importlib.import_module(f"{scenes.__name__}.{theme}")
    return list(_SCENES)


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape or (3, 4), generator=torch.Generator().manual_seed(seed))


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or what it raises."""
    try:
        return "gives", call(*args, **kwargs)
    except Exception as error:
        return "raises", error


def played(play: Scene, capture: Capture) -> list[Facts]:
    """What each step gave, as facts; a step that raises is the last."""
    torch.manual_seed(0)
    random.seed(0)
    told = []
    try:
        for result in play(capture):
            told.append(facts_of({"result": result}))
    except Exception as error:
        told.append(facts_of({"error": error}))
    told.append(facts_of({"generators": (int(torch.get_rng_state().sum()), random.getstate()[1][-1])}))
    return told
