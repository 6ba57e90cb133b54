"""What is exported of a stranger's bundle: only what loading lets through, whatever its text says."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path

import pytest

from tests.bundle.hostile import CORPUS
from torchrepro.graph_text.literals import plain_text
from torchrepro.interchange.export import Form, export_bundle
from torchrepro.nouns.errors import TorchReproError

_MODULES = {"torch", "json", "math", "os", "sys", "pathlib", "operator", "subprocess", "unittest"}
_WITH_CODE = ("source_without_trust", "operators_without_trust", "library_of_an_operator")

_WITH_TEXT = (
    *("message_of_an_assertion", "march_in_the_environment", "cxx_in_the_environment", "text_as_an_input"),
    *("march_in_the_settings", "march_in_the_options", "libraries_in_the_settings", "mode_that_is_code"),
    *("graph_that_calls_the_system", "graph_that_writes_a_file", "symbol_that_is_code"),
    *("escapes_in_every_text", "results_that_are_verified", "best_in_a_run_directory"),
)


def _exported(name: str, tmp_path: Path, **more: tuple[str, ...]) -> ast.Module | None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    bundle = CORPUS[name](scratch / "bundle", tmp_path / "canary")
    with suppress(TorchReproError):
        done = export_bundle(bundle, Form.FX_GRAPH_RUNNABLE, tmp_path / "out" / "exported.py", **more)
        assert done.stranger
        return ast.parse(done.script.read_text())
    return None


def _code_of(tree: ast.Module) -> list[str]:
    """Return what of a script is no plain words: modules, names, and strings that could be code elsewhere."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [one.name for one in names if one.name.partition(".")[0] not in _MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] not in _MODULES:
                found.append(module)
            case ast.Attribute(attr="system" | "load_library" | "from_file" as name):
                found.append(name)
            case ast.Constant(value=str(text)) if "canary" in text and text != plain_text(text):
                found.append(text)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*_WITH_CODE, *_WITH_TEXT])
def test_nothing_of_a_stranger_becomes_code(name: str, tmp_path: Path) -> None:
    tree = _exported(name, tmp_path)
    if tree is not None:
        tree.body = [one for one in tree.body if ast.get_docstring(tree) is None or one is not tree.body[0]]
        assert _code_of(tree) == []
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", _WITH_CODE)
def test_code_is_exported_for_trust_alone(name: str, tmp_path: Path) -> None:
    assert _exported(name, tmp_path) is None
    again = tmp_path / "trusted"
    again.mkdir()
    tree = _exported(name, again, trusted=("bundle",))
    assert tree is not None
    assert not (again / "canary").exists()
