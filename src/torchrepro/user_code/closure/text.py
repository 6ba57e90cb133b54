"""The text under construction: names given out once each, imports, and blocks in the order they must run."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.origin import top_level_package

_HELPERS = {
    "_instance": '''\
def _instance(class_, attributes):
    """An object as it was: its constructor does not run."""
    made = class_.__new__(class_)
    made.__dict__.update(attributes)
    return made
''',
    "_module": '''\
def _module(class_, attributes, parameters={}, buffers={}, modules={}, temporary=()):
    """A torch module as it was: the constructor of its class does not run."""
    made = class_.__new__(class_)
    torch.nn.Module.__init__(made)
    made.__dict__.update(attributes)
    made._parameters.update(parameters)
    made._buffers.update(buffers)
    made._modules.update(modules)
    made._non_persistent_buffers_set.update(temporary)
    return made
''',
}
"""Functions that a text brings along where it makes objects without their constructors, by name."""

_HEADER = """\
# Code of the user that a torchrepro bundle calls: what it needs, and nothing else. Running it runs this code.
"""

# What the standalone script of a bundle (`script/standalone.py`) defines around this text.
RESERVED = re.findall(
    r"\w+",
    """
    Path inf nan file HERE HEADER DATA MADE MAKERS SOURCE_NAMES OPERATORS torchrepro_operators
    storage strided generated kept value reach attach Graph compiled_from weights run_backward leaves plain
    python_state run observe only_runs crashes hangs raises misses_error differs mismatches reproduced _tensor
    """,
)
_IMPORTS_OF_THE_SCRIPT = frozenset({"os", "json", "math", "operator", "sys", "torch"})

Key = TypeVar("Key", bound=Hashable)


class ModuleText:
    """Collects the parts of one module."""

    def __init__(self) -> None:
        self._taken = {*keyword.kwlist, *dir(builtins), *_HELPERS, *RESERVED, *_IMPORTS_OF_THE_SCRIPT}
        self._imports: dict[str, None] = {}
        self._packages: dict[str, None] = {}
        self._modules: dict[str, str] = {}
        self._attributes: dict[tuple[str, str], str] = {}
        self._helpers: dict[str, None] = {}
        self.blocks: list[str] = []

    def take(self, wanted: str) -> str:
        """Return a name that nothing else in the text has, the wanted one if possible."""
        wanted = re.sub(r"\W", "_", wanted) or "value"
        wanted = f"_{wanted}" if wanted[0].isdigit() else wanted
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def import_module(self, module: str, wanted: str | None = None) -> str:
        """Return the expression for an installed module; one import, however many refer to it."""
        if module in self._modules:
            return self._modules[module]
        self._note_package(module)
        root, dot, rest = module.partition(".")
        if wanted is None or wanted == root:
            # `import a.b` binds a: one name for the package, whatever of it is used.
            base = self._modules.get(root) or self._import_root(root)
            if dot and base == root:
                self.also_import(module)
                self._modules[module] = f"{base}.{rest}"
                return self._modules[module]
            if not dot:
                return base
        name = self.take(wanted or module.rpartition(".")[2])
        self._imports[f"import {module} as {name}"] = None
        self._modules[module] = name
        return name

    def also_import(self, module: str) -> None:
        """Import a submodule that is reached through its package."""
        self._imports[f"import {module}"] = None

    def import_from(self, module: str, attribute: str, wanted: str) -> str:
        """Return the name of something that an installed module defines."""
        key = (module, attribute)
        if key not in self._attributes:
            self._note_package(module)
            name = self._attributes[key] = self.take(wanted)
            renamed = "" if name == attribute else f" as {name}"
            self._imports[f"from {module} import {attribute}{renamed}"] = None
        return self._attributes[key]

    def helper(self, name: str) -> str:
        """Return the name of a helper, which the text then brings along."""
        self._helpers[name] = None
        if name == "_module":
            self.import_module("torch")
        return name

    def finished(self) -> tuple[str, tuple[str, ...]]:
        """Return the whole text, and the packages that must be installed to run it."""
        plain = [line for line in self._imports if line.startswith("import ")]
        parts = ["\n".join([*sorted(plain), *sorted(set(self._imports) - set(plain))])]
        parts += [_HELPERS[name].rstrip() for name in self._helpers]
        for block in self.blocks:
            if len(parts) > 1 and _is_line(block) and _is_line(parts[-1].splitlines()[-1]):
                parts[-1] += f"\n{block}"  # lines of assignments stand next to one another
            else:
                parts.append(block)
        body = "\n\n\n".join(part for part in parts if part)
        return f"{_HEADER}{body}\n", tuple(sorted(self._packages))

    def _import_root(self, root: str) -> str:
        name = root if root in _IMPORTS_OF_THE_SCRIPT else self.take(root)
        self._imports[f"import {root}" if name == root else f"import {root} as {name}"] = None
        self._modules[root] = name
        return name

    def _note_package(self, module: str) -> None:
        package = top_level_package(module)
        if package is not None:
            self._packages[package] = None


def _is_line(block: str) -> bool:
    return "\n" not in block and not block.startswith((" ", "def ", "class ", "@"))


class Definitions(Generic[Key]):
    """Calls `define` once for each key: at once where something needs it, else after everything else."""

    def __init__(self, define: Callable[[Key], None]) -> None:
        self._define = define
        self._waiting: dict[Key, None] = {}
        self._started: set[Key] = set()
        self._done: set[Key] = set()

    def later(self, key: Key) -> None:
        """Define it anywhere in the text: it is needed when functions are called."""
        if key not in self._done and key not in self._started:
            self._waiting[key] = None

    def now(self, key: Key) -> None:
        """Define it before the next statement, which may call it, with all that it needs in its turn."""
        if key not in self._done:
            others = set(self._waiting) - {key}
            try:
                self._begin(key)
            except _StillBeingDefined:
                if self._started:
                    raise
                raise _need_one_another([key]) from None  # nothing is left that could be defined first
            self.those_waiting(except_for=others)

    def _begin(self, key: Key) -> None:
        if key in self._started:
            raise _StillBeingDefined(key)
        self._started.add(key)
        self._waiting.pop(key, None)
        try:
            self._define(key)
        except _StillBeingDefined:
            self._waiting[key] = None
            raise
        finally:
            self._started.discard(key)
        self._done.add(key)

    def those_waiting(self, except_for: Iterable[Key] = ()) -> None:
        """Define everything that waits, except what needs a definition that has only begun."""
        passed_over = set(except_for)
        while ready := [key for key in self._waiting if key not in passed_over]:
            try:
                self._begin(ready[0])
            except _StillBeingDefined:
                passed_over.add(ready[0])

    def all(self) -> None:
        """Define everything, to the last."""
        while self._waiting:
            before = set(self._waiting)
            self.those_waiting()
            if set(self._waiting) == before:
                raise _need_one_another(before)


class _StillBeingDefined(Exception):
    """A definition needs another one that is waiting for it; it is tried again later."""


def _need_one_another(keys: Iterable[Hashable]) -> CannotSerialise:
    return CannotSerialise(
        f"the definitions of {', '.join(map(str, keys))} need one another before they exist",
        next_step="define one of them inside a function",
    )
