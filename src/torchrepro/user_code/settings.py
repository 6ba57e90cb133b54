"""Settings of the compilers that are code of the user: passes, partitioners, options, lowerings.

In a repro they are live objects among the settings that are data. A bundle has a `UserSetting` for each: a
reference for those who have the user's modules, and a name in the source text of the bundle for all others.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from types import MethodType, ModuleType
from typing import Any

from torchrepro.graph_text.resolver import covers, require_part_of
from torchrepro.nouns.errors import BundleError, CannotSerialise
from torchrepro.nouns.repro import Registered, Repro, UserSetting, is_data, shown_setting
from torchrepro.torch_api.configs import CONFIG_MODULES
from torchrepro.torch_api.operator_tables import ARGUMENTS, TABLES
from torchrepro.user_code.closure import is_source_module, source_closure

OPTIONS = "options"
"""The table of the options of `torch.compile`; the others are those of `Ambient`."""
_SETTING = re.compile(r"\w+(?:\.\w+)*")
_REFERENCE = re.compile(r"\w+(?:\.\w+)*:\w+(?:\.\w+)*")
BACKEND = "backend"
"""The entry that says where a backend comes from; the compiler of the bundle names it in the source text."""


def code_settings(repro: Repro) -> dict[tuple[str, str], Any]:
    """Return the live objects among the settings of a repro, by table and name."""
    found = {
        (table, name): value
        for table, values in (*repro.ambient.configs.items(), (OPTIONS, repro.compiler.options))
        for name, value in values.items()
        if not is_data(value)
    }
    for table, entries in repro.ambient.registered.items():
        found |= {(table, name): entry for name, entry in entries.items()}
    return found


def without_settings(repro: Repro, places: Collection[tuple[str, str]]) -> Repro:
    """Return the repro without the settings at these places."""
    ambient, compiler = repro.ambient, repro.compiler

    def kept(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if (table, name) not in places}

    configs = {table: kept(table, values) for table, values in ambient.configs.items()}
    registered = {table: kept(table, entries) for table, entries in ambient.registered.items()}
    return replace(
        repro,
        compiler=replace(compiler, options=kept(OPTIONS, compiler.options)),
        ambient=replace(
            ambient,
            configs={table: values for table, values in configs.items() if values},
            registered={table: entries for table, entries in registered.items() if entries},
        ),
    )


def with_settings(repro: Repro, values: Mapping[tuple[str, str], Any]) -> Repro:
    """Return the repro with these settings in addition to its own."""
    options = dict(repro.compiler.options)
    configs = {table: dict(held) for table, held in repro.ambient.configs.items()}
    registered = {table: dict(held) for table, held in repro.ambient.registered.items()}
    for (table, name), value in values.items():
        if table == OPTIONS:
            options[name] = value
        else:
            (registered if isinstance(value, Registered) else configs).setdefault(table, {})[name] = value
    return replace(
        repro,
        compiler=replace(repro.compiler, options=options),
        ambient=replace(repro.ambient, configs=configs, registered=registered),
    )


def code_of(value: Any) -> Any:
    """Return the object of a setting for which the source text needs a name."""
    return value.function if isinstance(value, Registered) else value


def describe_setting(place: tuple[str, str], value: Any, source: str = "") -> UserSetting:
    """Describe a setting that is code; `source` is its name in the source text."""
    arguments = dict(value.arguments) if isinstance(value, Registered) else {}
    shown, reference = str(shown_setting(value)), reference_to(code_of(value))
    return UserSetting(*place, shown=shown, reference=reference, source=source, arguments=arguments)


def why_no_source(value: Any) -> str:
    """Return why the source of a value cannot be kept; empty if it can."""
    try:
        source_closure([value])
    except CannotSerialise as failure:
        return failure.fact
    return ""


def reference_to(value: Any) -> str:
    """Return `package.module:name` if an import in another process finds this very object, else nothing."""
    owner = value.__self__ if isinstance(value, MethodType) else None
    home = getattr(value, "__module__", None)
    if not isinstance(home, str) or home == "__main__" or is_source_module(home):
        return ""
    module = sys.modules.get(home)
    name = getattr(value, "__qualname__", None)
    if owner is not None or name is None:  # an object, or a method of one: a global of its module may hold it
        held, ending = (value, "") if owner is None else (owner, f".{value.__name__}")
        names = (key for key, item in vars(module).items() if item is held) if module else iter(())
        name = "".join(f"{key}{ending}" for key in itertools.islice(names, 1))
    try:
        found: Any = functools.reduce(getattr, name.split("."), module) if name else None
    except AttributeError:
        return ""
    return f"{home}:{name}" if found is value or (owner is not None and found == value) else ""


def load_settings(
    entries: Collection[UserSetting], source: ModuleType | None, trusted: Collection[str], bundle: Path
) -> tuple[dict[tuple[str, str], Any], dict[str, str]]:
    """Return the live settings of a bundle, and the names of those that are missing with the reasons.

    Imports the user's modules where the bundle has no source; BundleError if they are not trusted.
    """
    found: dict[tuple[str, str], Any] = {}
    missing: dict[str, str] = {}
    for entry in entries:
        _require_plain(entry, bundle)
        if entry.table == BACKEND:
            continue
        try:
            value = getattr(source, entry.source) if entry.source else _imported(entry, trusted, bundle)
        except (ImportError, AttributeError, ValueError) as exc:
            missing[str(entry)] = f"{entry.shown or entry.reference} cannot be imported here ({exc})"
            continue
        registered = Registered(value, entry.arguments)
        found[entry.table, entry.name] = registered if entry.table in TABLES else value
    return found, missing


def _require_plain(entry: UserSetting, bundle: Path) -> None:
    """Raise if an entry does not name a setting: its words end up in scripts."""
    plain = entry.table in (*CONFIG_MODULES, *TABLES, OPTIONS) and bool(_SETTING.fullmatch(entry.name))
    plain |= entry.table == BACKEND
    plain &= not entry.source or entry.source.isidentifier()
    plain &= bool(entry.source) if not entry.reference else bool(_REFERENCE.fullmatch(entry.reference))
    plain &= entry.arguments.keys() <= ARGUMENTS
    plain &= all(
        value is None or type(value) is bool or _is_word(value) for value in entry.arguments.values()
    )
    if not plain:
        raise BundleError(
            f"{bundle} describes a setting {str(entry)!r} that no compiler has", next_step="do not trust it"
        )


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _imported(entry: UserSetting, trusted: Collection[str], bundle: Path) -> Any:
    module, _, name = entry.reference.partition(":")
    if not covers(trusted, module):
        raise BundleError(
            f"the setting {entry} is {entry.reference}, which would be imported and run",
            next_step="if you trust it, allow it with "
            f"torchrepro check {shlex.quote(str(bundle))} --trust {module}",
        )
    found = resolve_name(entry.reference)
    require_part_of(module, name, found, trusted)
    return found
