"""Running a case: three calls in one way, and everything that can be observed after each."""

from __future__ import annotations

import contextlib
import copy
import io
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.frontend.corpus.counting import Counting
from tests.frontend.corpus.facts import Facts, facts_of
from tests.frontend.corpus.registry import Case
from tests.frontend.corpus.ways import Way

SIZES = (3, 3, 5)
"""Of the first dimension: twice the same with other values, then another."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One call, as facts: the result or the error, the arguments and globals after it, what was printed."""

    facts: Facts
    graphs: int
    """Captured for this call."""
    ops: int
    breaks: int
    """Met while it was captured."""


def observe(case: Case, way: Way, *, whole: bool = False, sizes: tuple[int, ...] = SIZES) -> list[Observed]:
    """Run a case. Whatever it changes in its module is put back at the end."""
    counting = Counting()
    with _restored(case):
        call = way(case.function, counting, whole)
        torch.manual_seed(0)
        kept = case.keep()
        return [
            _one_call(case, call, counting, kept, number, size) for number, size in enumerate(sizes, start=1)
        ]


def _one_call(
    case: Case,
    call: Callable[..., Any],
    counting: Counting,
    kept: tuple[Any, ...],
    number: int,
    size: int,
) -> Observed:
    torch.manual_seed(number)
    args, keywords = (*kept, *case.make(size)), case.keywords(size)
    random.seed(number)
    torch.manual_seed(number)
    graphs, ops, breaks = len(counting.graphs), counting.ops, len(counting.breaks())
    outcome: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome["result"] = call(*args, **keywords)
        except Exception as error:
            outcome["error"] = error
        # Gradients of arguments and modules are facts too.
        backward(outcome.get("result"))
    facts = facts_of(
        {
            "argument": args,
            "keyword": dict(keywords),
            "global": {name: case.function.__globals__.get(name) for name in case.state},
            "printed": printed.getvalue(),
            "modes": (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
                torch.get_default_dtype(),
                torch.get_default_device(),
            ),
            "random": (random.getstate()[1][-1], int(torch.get_rng_state().sum())),
            **outcome,
        }
    )
    torch.set_autocast_enabled("cpu", False)  # one `autocast` that is entered twice leaves it on
    return Observed(facts, len(counting.graphs) - graphs, counting.ops - ops, len(counting.breaks()) - breaks)


def backward(result: Any) -> None:
    """Train on whatever of a result can be trained on; the same weights each time."""
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    wanted = [tensor for tensor in tensors if tensor.requires_grad and tensor.grad_fn is not None]
    if wanted:
        weights = [torch.linspace(1, 2, max(tensor.numel(), 1)).reshape(tensor.shape) for tensor in wanted]
        torch.autograd.backward(
            wanted, [weight.to(tensor) for weight, tensor in zip(weights, wanted, strict=True)]
        )


@contextlib.contextmanager
def _restored(case: Case) -> Iterator[None]:
    globals_ = case.function.__globals__
    before = {name: globals_[name] for name in case.state if name in globals_}
    for name, value in before.items():
        globals_[name] = copy.deepcopy(value)
    try:
        yield
    finally:
        for name in case.state:
            globals_.pop(name, None)
        globals_.update(before)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
