"""A graph that ends midway leaves this process as it was, whatever its nodes have opened."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchrepro.torch_api.modes import modes_kept

OPENED: dict[str, Callable[[], object]] = {
    "a vmap": lambda: torch._C._functorch._vmap_increment_nesting(3, "error"),
    "a jvp": torch._C._functorch._jvp_increment_nesting,
    "a level of duals": torch._C._enter_dual_level,
    "forward mode": lambda: torch._C._set_fwd_grad_enabled(False),
    "grad mode": lambda: torch._C._set_grad_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "nothing": lambda: None,
}


def state() -> tuple[object, ...]:
    with torch.autograd.forward_ad.dual_level():  # raises while another one is open
        pass
    return (
        torch._C._functorch.get_dynamic_layer_stack_depth(),
        torch.is_grad_enabled(),
        torch._C._is_fwd_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.ones(2).tolist(),
    )


@pytest.mark.parametrize("what", OPENED)
def test_what_was_opened_is_closed(what: str) -> None:
    before = state()

    def end_midway() -> None:
        with modes_kept():
            OPENED[what]()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        end_midway()
    assert state() == before


def test_levels_of_the_caller_stay() -> None:
    with torch.autograd.forward_ad.dual_level() as level:
        with modes_kept():
            torch._C._set_grad_enabled(False)
        dual = torch.autograd.forward_ad.make_dual(torch.ones(1), torch.ones(1), level=level)
        assert torch.autograd.forward_ad.unpack_dual(dual, level=level).tangent is not None
