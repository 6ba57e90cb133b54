"""Replace an attribute of torch temporarily: a worker that is reused must not keep the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set `owner.name` to `value` for the body; afterwards restore the raw attribute (descriptors too)."""
    own = vars(owner)
    inherited = name not in own
    before = None if inherited else own[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def closed_over(function: Any, name: str) -> Any:
    """Return the value of a variable in a function's closure; None if it has none of that name."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents
