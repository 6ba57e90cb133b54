"""The text under construction: names given out once each, imports, and blocks in the order they must run.

Functions that a source closure brings along where it makes objects without their constructors.
"""

from __future__ import annotations

import builtins
import keyword
import re

from torchrepro.user_code.closure.origin import top_level_package

HELPERS = {
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
"""Text by name. `_tensor`, which finds a tensor that is kept beside the text, is bound by who runs it."""

NAMES = (*HELPERS, "_tensor")


_HEADER = """\
# Code of the user that a torchrepro bundle calls: what it needs, and nothing else. Running it runs this code.
"""

# What the standalone script of a bundle defines around this text, see templates/repro.py.j2.
_NAMES_OF_THE_SCRIPT = frozenset(
    {
        "ExitStack",
        "Path",
        "inf",
        "nan",
        "HERE",
        "storage",
        "strided",
        "generated",
        "kept",
        "value",
        "reach",
        "attach",
    }
    | {"MAKERS", "Graph", "main", "run"}
    | {"compiled_from", "weights", "leaves", "observe", "differs", "LIMITS", "TYPE", "WORDS", "file", "plain"}
    | {"python_state", "reproduced", "SOURCE_NAMES", "_header", "_data", "_values"}
)

_IMPORTS_OF_THE_SCRIPT = frozenset({"os", "json", "math", "operator", "sys", "torch"})


class ModuleText:
    """Collects the parts of one module."""

    def __init__(self) -> None:
        self._taken = {*keyword.kwlist, *dir(builtins), *NAMES, *_NAMES_OF_THE_SCRIPT}
        self._taken |= _IMPORTS_OF_THE_SCRIPT
        self._imports: dict[str, None] = {}
        self._packages: dict[str, None] = {}
        self._modules: dict[str, str] = {}
        self._attributes: dict[tuple[str, str], str] = {}
        self._helpers: dict[str, None] = {}
        self.blocks: list[str] = []

    def take(self, wanted: str) -> str:
        """A name that nothing else in the text has, the wanted one if possible."""
        wanted = re.sub(r"\W", "_", wanted) or "value"
        wanted = f"_{wanted}" if wanted[0].isdigit() else wanted
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def import_module(self, module: str, wanted: str | None = None) -> str:
        """The expression for an installed module; one import, however many refer to it."""
        if module in self._modules:
            return self._modules[module]
        self._note_package(module)
        root, dot, rest = module.partition(".")
        if wanted is None or wanted == root:
            # `import a.b` binds a: one name for the package, whatever of it is used.
            base = self._modules.get(root) or self._import_root(root)
            if dot and base == root:
                self._imports[f"import {module}"] = None
                self._modules[module] = f"{base}.{rest}"
                return self._modules[module]
            if not dot:
                return base
        name = self.take(wanted or module.rpartition(".")[2])
        self._imports[f"import {module} as {name}"] = None
        self._modules[module] = name
        return name

    def also_import(self, module: str) -> None:
        """A submodule that is reached through its package."""
        self._imports[f"import {module}"] = None

    def import_from(self, module: str, attribute: str, wanted: str) -> str:
        """The name of something that an installed module defines."""
        key = (module, attribute)
        if key not in self._attributes:
            self._note_package(module)
            name = self._attributes[key] = self.take(wanted)
            renamed = "" if name == attribute else f" as {name}"
            self._imports[f"from {module} import {attribute}{renamed}"] = None
        return self._attributes[key]

    def helper(self, name: str) -> str:
        """The name of a helper, which the text then brings along."""
        self._helpers[name] = None
        if name == "_module":
            self.import_module("torch")
        return name

    def finished(self) -> tuple[str, tuple[str, ...]]:
        """The whole text, and the packages that must be installed to run it."""
        plain = [line for line in self._imports if line.startswith("import ")]
        parts = ["\n".join([*sorted(plain), *sorted(set(self._imports) - set(plain))])]
        parts += [HELPERS[name].rstrip() for name in self._helpers if name in HELPERS]
        body = "\n\n\n".join(part for part in [*parts, *self._grouped()] if part)
        return f"{_HEADER}{body}\n", tuple(sorted(self._packages))

    def _grouped(self) -> list[str]:
        """Blocks, lines of assignments next to one another."""
        grouped: list[str] = []
        for block in self.blocks:
            if grouped and _is_line(block) and _is_line(grouped[-1].splitlines()[-1]):
                grouped[-1] += f"\n{block}"
            else:
                grouped.append(block)
        return grouped

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
