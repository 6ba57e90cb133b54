"""Files of an imaginary user, imported as modules and taken along in a source closure."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from torchrepro.user_code.closure import SourceClosure, fresh_source, source_closure

_NUMBERS = itertools.count()

WriteModule = Callable[..., ModuleType]


def write_module(directory: Path, text: str, name: str | None = None) -> ModuleType:
    """A file with this text, imported."""
    name = name or f"user_file_{next(_NUMBERS)}"
    (directory / f"{name}.py").write_text(textwrap.dedent(text))
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    importlib.invalidate_caches()
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def taken_along(*objects: Any) -> tuple[Any, ...]:
    """The objects as a reader of their source closure gets them."""
    closure = source_closure(objects)
    namespace = loaded(closure)
    return tuple(namespace[name] for name in closure.names)


def loaded(closure: SourceClosure) -> dict[str, Any]:
    return vars(fresh_source(closure.text, closure.tensors))
