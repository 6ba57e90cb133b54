"""A script as a failing unit test, for pytest or unittest: the same lines, in a test instead of at the end.

A failure that ends or blocks its process is tested from outside: the test runs its own file. Needs no torch.
"""

from __future__ import annotations

import ast
import re
import textwrap

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind

_OUTSIDE = (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
_MAIN = 'if __name__ == "__main__":'
_DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
_OF_A_SCRIPT = ("Plain torch, nothing of torchrepro:", "Exits with ")
"""Lines of a script's docstring that say how it is run."""
_LIMIT = 300
"""Seconds after which a test counts as a hang."""


def pytest_form(script: str, kind: Kind | None, name: str) -> str:
    """Return a module with one test function, which fails as long as the script does."""
    return _Parts(script, kind).text([f"def test_{name}():"], indent=1)


def unittest_form(script: str, kind: Kind | None, name: str) -> str:
    """Return a module with one `unittest.TestCase`, which fails as long as the script does."""
    parts = _Parts(script, kind, modules=("unittest",))
    head = ["class TestRepro(unittest.TestCase):", f"    def test_{name}(self):"]
    return parts.text(head, indent=2, end="unittest.main()")


class _Parts:
    """A script in two parts: what defines something, and the statements that show the failure."""

    def __init__(self, script: str, kind: Kind | None, modules: tuple[str, ...] = ()) -> None:
        self._lines = script.rstrip("\n").split("\n")
        try:
            body = ast.parse(script).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise TorchReproError(
                "the script of the bundle is no Python", next_step="take the bundle again"
            ) from None
        # A script has its definitions above its statements; code of the user is among the definitions.
        last = max((number for number, one in enumerate(body) if isinstance(one, _DEFINITIONS)), default=-1)
        first = next((one for one in body[last + 1 :] if not self._defines(one)), None)
        if first is None or (isinstance(first, ast.Raise) and len(body) <= 2):
            raise TorchReproError(
                "the bundle has no script that could be a test", next_step="torchrepro check says why"
            )
        self._first = first.lineno - 1
        self._outside = kind in _OUTSIDE
        self._imports = [*modules, *(("subprocess", "sys") if self._outside else ())]

    def _defines(self, statement: ast.stmt) -> bool:
        """Return whether a statement stays outside of the test: imports, definitions, settings, constants."""
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.ClassDef() | ast.With():
                return not (isinstance(statement, ast.With) and "open(" not in ast.unparse(statement))
            case ast.Expr(value=ast.Constant(value=str())):
                return True
            case ast.Assign(targets=[target]):
                text = ast.unparse(target)
                constants = text.isupper() or text == "(inf, nan)" or text == "source"
                return constants or text.startswith(("os.environ[", "torch._"))
            case ast.Expr(value=ast.Call(func=function)):
                return bool(
                    re.match(r"torch\.(set_|use_|ops\.load|_|distributed)|sys\.path", ast.unparse(function))
                )
        return False

    def text(self, head: list[str], *, indent: int, end: str = "") -> str:
        """Return the module: definitions, the test, and what runs it as a script."""
        above, shown = self._lines[: self._first], self._lines[self._first :]
        if shown[0] == _MAIN:
            shown = textwrap.dedent("\n".join(shown[1:])).split("\n")
            shown = [line for line in shown if not line.startswith(("sys.exit(", 'print("reproduced"'))]
            if not self._outside:
                shown.append('assert not reproduced, "it fails as recorded"')
        above = self._with_imports([line for line in above if not line.startswith(_OF_A_SCRIPT)])
        margin = "    " * indent
        if not self._outside:
            told = [f"{margin}{line}" if line else "" for line in shown]
            tail = ["", "", _MAIN, f"    {end}"] if end else []
            return "\n".join([*above, *([] if above[-1:] == [""] else ["", ""]), *head, *told, *tail]) + "\n"
        command = 'subprocess.run([sys.executable, __file__, "fails"], timeout=' + f"{_LIMIT})"
        asked = [f"{margin}done = {command}", f"{margin}assert done.returncode == 0, done.returncode"]
        main = ["def fails():", *(f"    {line}" if line else "" for line in shown)]
        run = [_MAIN, '    if sys.argv[1:] == ["fails"]:', "        fails()", "    else:"]
        started = end or f"{head[-1].split()[1].removesuffix(':')}"
        return "\n".join([*above, *main, "", "", *head, *asked, "", "", *run, f"        {started}"]) + "\n"

    def _with_imports(self, above: list[str]) -> list[str]:
        """Return the lines with the imports that the test needs, in front of `import torch`."""
        missing = [f"import {name}" for name in sorted(self._imports) if f"import {name}" not in above]
        place = above.index("import torch") if "import torch" in above else 0
        return [*above[:place], *missing, *([""] if missing else []), *above[place:]]
