"""`with`: contextlib, context managers of the user, and those of torch."""

from __future__ import annotations

import contextlib
from contextlib import ExitStack, contextmanager, nullcontext, suppress

import torch

from tests.frontend.corpus.registry import case


def with_gradient(size):
    return torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


@contextmanager
def logged(log, name):
    log.append(f"start {name}")
    try:
        yield name
    finally:
        log.append(f"end {name}")


class Doubled(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


@case
def manager_of_the_user(a, b):
    log = []
    with Manager(log) as manager:
        log.append("body")
        a = a + b
    return a, log, manager.swallow


@case
def several_managers_at_once(a, b):
    log = []
    with Manager(log) as x, Manager(log) as y:
        a = a * 2
    return a, log, x is y


@case
def manager_that_swallows(a, b):
    log = []
    with Manager(log, swallow=True):
        raise ValueError("gone")
    return a, log


@case
def manager_that_sees_an_error(a, b):
    log = []
    try:
        with Manager(log):
            raise KeyError("k")
    except KeyError:
        log.append("caught")
    return a, log


@case
def manager_by_generator(a, b):
    log = []
    with logged(log, "x") as name:
        a = a + len(name)
    return a, log


@case
def manager_by_generator_with_an_error(a, b):
    log = []
    try:
        with logged(log, "x"):
            raise ValueError("v")
    except ValueError:
        pass
    return a, log


@case
def null_context(a, b):
    with nullcontext(3) as n, nullcontext():
        return a * n


@case
def suppressed(a, b):
    with suppress(KeyError, ValueError):
        {}["x"]
        a = a * 0
    return a


@case
def exit_stack(a, b):
    log = []
    with ExitStack() as stack:
        for name in ("x", "y"):
            stack.enter_context(logged(log, name))
        stack.callback(log.append, "callback")
        a = a + 1
    return a, log


@case
def return_inside_a_with(a, b):
    log = []

    def inner():
        with Manager(log):
            return a + b

    return inner(), log


@case
def with_in_a_loop_and_break(a, b):
    log = []
    for i in range(3):
        with Manager(log):
            if i == 1:
                break
            a = a + i
    return a, log


@case
def context_decorator(a, b):
    @Doubled()
    def inner(x):
        return x * 2

    return inner(a)


@case
def context_manager_as_decorator(a, b):
    log = []

    @logged(log, "d")
    def inner(x):
        return x + 1

    return inner(a), log


@case(make=with_gradient)
def no_grad(a, b):
    with torch.no_grad():
        c = a * b
        inside = torch.is_grad_enabled()
    d = a + b
    return c, d, c.requires_grad, d.requires_grad, inside, torch.is_grad_enabled()


@case(make=with_gradient)
def no_grad_as_decorator(a, b):
    @torch.no_grad()
    def inner(x):
        return x * 2

    return inner(a), inner(a).requires_grad


@case(make=with_gradient)
def enable_grad_inside_no_grad(a, b):
    with torch.no_grad():
        c = a * 2
        with torch.enable_grad():
            d = a * b
        e = a + 1
    return c, d, e, d.requires_grad, e.requires_grad


@case(make=with_gradient)
def set_grad_enabled_as_context(a, b):
    with torch.set_grad_enabled(False):
        c = a * b
    with torch.set_grad_enabled(True):
        d = a * b
    return c.requires_grad, d.requires_grad, c, d


@case(make=with_gradient)
def set_grad_enabled_as_function(a, b):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    c = a * b
    torch.set_grad_enabled(before)
    return c, a + b


@case(make=with_gradient, hits=False)
def grad_mode_stays_changed(a, b):
    torch.set_grad_enabled(False)
    return a * b


@case(make=with_gradient, breaks=None)
def inference_mode(a, b):
    with torch.inference_mode():
        c = b * 2
    return c.is_inference(), a + 1


@case
def autocast(a, b):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        c = a @ b.t()
        d = a + b
        enabled = torch.is_autocast_enabled("cpu")
    return c, d, c.dtype, enabled, a @ b.t()


@case
def autocast_off_inside_autocast(a, b):
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        with torch.autocast(device_type="cpu", enabled=False):
            c = a @ b.t()
        d = a @ b.t()
    return c, d


@case(make=with_gradient)
def no_grad_with_an_error_inside(a, b):
    try:
        with torch.no_grad():
            c = a * 2
            raise ValueError
    except ValueError:
        return c, (a * b).requires_grad


@case(breaks=None)
def device_context(a, b):
    with torch.device("cpu"):
        return torch.zeros(3) + a.sum(), b


@case
def a_manager_chosen_by_a_flag(a, b):
    training = False
    with torch.no_grad() if not training else nullcontext():
        return a * b


@case(breaks=None)
def scaled_dot_product_backend(a, b):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(a[None], b[None], b[None])


@case(breaks=None)
def profiler_annotation(a, b):
    with torch.profiler.record_function("forward"):
        return a + b


@case
def closing_and_redirecting(a, b):
    log = []

    class Closable:
        def close(self):
            log.append("closed")

    with contextlib.closing(Closable()):
        a = a + 1
    return a, log
