"""The configuration modules of torch's compilers: values that the user has changed, and temporary values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

CONFIG_MODULES = {
    "dynamo": "torch._dynamo.config",
    "inductor": "torch._inductor.config",
    "functorch": "torch._functorch.config",
}


def changed_config(short: str) -> dict[str, Any]:
    """Return the config values that the user has changed from torch's defaults.

    Torch sets some configs to their defaults while it starts, for which `_is_default` is false.
    Checked on torch 2.11 to 2.15 (`get_config_copy`, `_is_default`, `_config`).
    """
    module: Any = import_module(CONFIG_MODULES[short])
    return {
        name: value
        for name, value in module.get_config_copy().items()
        if not module._is_default(name) and value != module._config[name].default
    }


@contextmanager
def patched_config(short: str, values: dict[str, Any]) -> Iterator[None]:
    """Set config values in the body; names that this version of torch does not have are ignored.

    Checked on torch 2.11 to 2.15 (`patch`).
    """
    module: Any = import_module(CONFIG_MODULES[short])
    known = module.get_config_copy()
    with module.patch({name: value for name, value in values.items() if name in known}):
        yield
