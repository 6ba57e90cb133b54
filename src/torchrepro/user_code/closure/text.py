"""The text under construction: names given out once each, imports, and blocks in the order they must run."""

from __future__ import annotations

import builtins
import keyword
import re

from torchrepro.graph_text.syntax import unused_name

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
    Path inf nan file source HERE HEADER DATA MAKERS MADE OPERATORS torchrepro_operators storage strided
    generated kept value_of reach attach Graph compiled_from weights run_backward tensors_in plain
    python_state run run_in_copy observe call_method named_tuple set_item comparable fails hangs
    eager compiled raised reproduced _tensor
    """,
)
_IMPORTS_OF_THE_SCRIPT = frozenset({"os", "json", "math", "operator", "sys", "torch"})


class ModuleText:
    """Collects the parts of one module."""

    def __init__(self) -> None:
        self._taken = {*keyword.kwlist, *dir(builtins), *_HELPERS, *RESERVED, *_IMPORTS_OF_THE_SCRIPT}
        self._imports: dict[str, None] = {}
        self._modules: dict[str, str] = {}
        self._attributes: dict[tuple[str, str], str] = {}
        self._helpers: dict[str, None] = {}
        self.blocks: list[str] = []

    def take(self, wanted: str) -> str:
        """Return a name that nothing else in the text has, the wanted one if possible."""
        wanted = re.sub(r"\W", "_", wanted) or "value"
        wanted = f"_{wanted}" if wanted[0].isdigit() else wanted
        name = unused_name(wanted, self._taken)
        self._taken.add(name)
        return name

    def import_module(self, module: str, wanted: str | None = None) -> str:
        """Return the expression for an installed module; it is imported once, however many refer to it."""
        if module not in self._modules:
            root, dot, _ = module.partition(".")
            if wanted not in (None, root) or (dot and self.import_module(root) != root):
                name = self.take(wanted or module.rpartition(".")[2])
            elif dot:  # `import a.b` binds a: one name for the package, whichever submodule is used
                name = module
            else:
                name = root if root in _IMPORTS_OF_THE_SCRIPT else self.take(root)
            self._imports[f"import {module}" if name == module else f"import {module} as {name}"] = None
            self._modules[module] = name
        return self._modules[module]

    def also_import(self, module: str) -> None:
        """Import a submodule that is reached through its package."""
        self._imports[f"import {module}"] = None

    def import_from(self, module: str, attribute: str, wanted: str) -> str:
        """Return the name of something that an installed module defines."""
        key = (module, attribute)
        if key not in self._attributes:
            name = self._attributes[key] = self.take(wanted)
            renamed = "" if name == attribute else f" as {name}"
            self._imports[f"from {module} import {attribute}{renamed}"] = None
        return self._attributes[key]

    def helper(self, name: str) -> str:
        """Return the name of a helper, and include it in the text."""
        self._helpers[name] = None
        if name == "_module":
            self.import_module("torch")
        return name

    def finished(self) -> str:
        """Return the whole text."""
        plain = [line for line in self._imports if line.startswith("import ")]
        parts = ["\n".join([*sorted(plain), *sorted(set(self._imports) - set(plain))])]
        parts += [_HELPERS[name].rstrip() for name in self._helpers]
        for block in self.blocks:
            if len(parts) > 1 and _is_line(block) and _is_line(parts[-1].splitlines()[-1]):
                parts[-1] += f"\n{block}"  # lines of assignments are not separated
            else:
                parts.append(block)
        body = "\n\n\n".join(part for part in parts if part)
        return f"{_HEADER}{body}\n"


def _is_line(block: str) -> bool:
    return "\n" not in block and not block.startswith((" ", "def ", "class ", "@"))
