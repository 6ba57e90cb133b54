"""The configuration modules of torch's compilers: what the user has changed, and values set for a while."""

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
    """Return the config values that the user has set to something else than torch would.

    Torch sets some configs to their defaults while it starts, which `_is_default` takes for a choice.
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
    """Set config values for a while; names that this version of torch does not have are ignored.

    Checked on torch 2.11 to 2.15 (`patch`).
    """
    module: Any = import_module(CONFIG_MODULES[short])
    known = module.get_config_copy()
    with module.patch({name: value for name, value in values.items() if name in known}):
        yield
