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
    """Return the config values that the user has changed from torch's defaults, the live objects.

    Not by `get_config_copy`, which copies values deeply: a pass must stay the user's own, and one that holds
    a lock cannot be copied. Torch sets some configs to their defaults while it starts, for which
    `_is_default` is false. Checked on torch 2.11 to 2.15 (`_is_default`, `_config`, `alias`).
    """
    module: Any = import_module(CONFIG_MODULES[short])
    changed = [
        name for name, entry in module._config.items() if entry.alias is None and not module._is_default(name)
    ]
    values = {name: getattr(module, name) for name in changed}
    return {name: value for name, value in values.items() if value != module._config[name].default}


def default_of(short: str, name: str) -> Any:
    """Return torch's own value of a setting. Checked on torch 2.11 to 2.15 (`_config`)."""
    module: Any = import_module(CONFIG_MODULES[short])
    return module._config[name].default


def reset_config(short: str, name: str) -> None:
    """Give a setting torch's own value. Checked on torch 2.11 to 2.15 (`_config`)."""
    setattr(import_module(CONFIG_MODULES[short]), name, default_of(short, name))


@contextmanager
def patched_config(short: str, values: dict[str, Any]) -> Iterator[None]:
    """Set config values in the body; names that this version of torch does not have are ignored.

    Checked on torch 2.11 to 2.15 (`patch`, `_config`).
    """
    module: Any = import_module(CONFIG_MODULES[short])
    with module.patch({name: value for name, value in values.items() if name in module._config}):
        yield
