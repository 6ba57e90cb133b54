"""Another value for an attribute of torch for a while. A worker that is used again must not remember it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` in the body; what stood there comes back as it was, descriptor or not."""
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
    """Return the value of a variable that a function has from where it was defined; None if it has none."""
    code = getattr(function, "__code__", None)
    if code is None or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents
