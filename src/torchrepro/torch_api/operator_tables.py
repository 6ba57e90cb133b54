"""The tables of inductor that a user can add to: lowerings and decompositions, by operator.

Checked on torch 2.11 to 2.15 (`lowerings`, `register_lowering`, `decompositions`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from torchrepro.nouns.repro import Registered
from torchrepro.torch_api.patching import closed_over

LOWERINGS, DECOMPOSITIONS = "lowerings", "decompositions"
TABLES = {LOWERINGS: "torch._inductor.lowering", DECOMPOSITIONS: "torch._inductor.decomposition"}
"""The module of each table; the table has the same name there."""
PROMOTION = "type_promotion_kind"
PROMOTION_KINDS = "torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND"
_FLAGS = ("broadcast", "convert_input_to_bool")
ARGUMENTS = frozenset({*_FLAGS, PROMOTION})
"""What is kept of the arguments of a registration."""


def registration_line(table: str, operator: str, function: str, arguments: Mapping[str, Any]) -> str:
    """Return the statement with which a user registers a function, given the expressions for it."""
    if table == DECOMPOSITIONS:
        return f"{TABLES[table]}.decompositions[torch.ops.{operator}] = {function}"
    given = {**arguments}
    if given.get(PROMOTION) is not None:
        given[PROMOTION] = f"{PROMOTION_KINDS}.{given[PROMOTION]}"
    words = "".join(f", {name}={value}" for name, value in given.items())
    return f"{TABLES[table]}.register_lowering(torch.ops.{operator}{words})({function})"


def registered_in(table: str) -> dict[str, Registered]:
    """Return the functions in a table by the names of their operators; empty if nothing has loaded it.

    A lowering is the function that was registered, out of the wrapper that torch puts around it.
    """
    if TABLES[table] not in sys.modules:
        return {}
    found = {}
    for operator, function in _entries(table).items():
        # Most of some two thousand entries are torch's own.
        if isinstance(operator, torch._ops.OpOverload) and not _is_torchs(function):
            found[str(operator)] = _as_registered(table, function)
    return found


@contextmanager
def registered_as(table: str, operator: str, registered: Registered) -> Iterator[None]:
    """Register a function for an operator in the body, and restore the table after it."""
    entries, key = _entries(table, load=True), _operator(operator)
    if key is None:  # not registered in this process, so no graph calls it
        yield
        return
    missing = object()
    before = entries.get(key, missing)
    if before is missing or _as_registered(table, before).function is not registered.function:
        _register(table, key, registered)
    try:
        yield
    finally:
        if before is missing:
            entries.pop(key, None)
        else:
            entries[key] = before


def _register(table: str, key: Any, registered: Registered) -> None:
    if table == DECOMPOSITIONS:
        _entries(table)[key] = registered.function  # without torch's warning that there was another
        return
    from torch._inductor.lowering import register_lowering
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND

    arguments = dict(registered.arguments)
    if arguments.get(PROMOTION) is not None:
        arguments[PROMOTION] = ELEMENTWISE_TYPE_PROMOTION_KIND[arguments[PROMOTION]]
    register_lowering(key, **arguments)(registered.function)


def _as_registered(table: str, function: Callable[..., Any]) -> Registered:
    if table == DECOMPOSITIONS:
        return Registered(function)
    inner = closed_over(function, "decomp_fn")
    if inner is None:
        return Registered(inspect.unwrap(function))
    arguments = {name: closed_over(function, name) for name in _FLAGS if closed_over(function, name)}
    kind = closed_over(function, PROMOTION)
    if kind is None or kind.name != "DEFAULT":
        arguments[PROMOTION] = None if kind is None else kind.name
    return Registered(inner, arguments)


def _is_torchs(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == "torch"


def _entries(table: str, *, load: bool = False) -> MutableMapping[Any, Any]:
    if load:
        __import__(TABLES[table])
    entries: MutableMapping[Any, Any] = getattr(sys.modules[TABLES[table]], table)
    return entries


def _operator(name: str) -> Any:
    """Return the operator of a name such as `aten.gelu.default`; None if there is none."""
    try:
        return functools.reduce(getattr, name.split("."), torch.ops)
    except AttributeError:
        return None
