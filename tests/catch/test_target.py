"""What a user may give to `minify` and `locate`, and which bundle it stands for the second time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchrepro.bundle.archive import write_bundle_files
from torchrepro.catch.target import Target
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import ModelRequest


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("def build(): ...")
    return path


@pytest.mark.parametrize(
    ("text", "is_bundle", "file", "function", "path"),
    [
        ("runs/failing", True, None, "", None),
        ("failing.zip", True, None, "", None),
        ("train.py", False, Path("train.py"), "", "train"),
        ("train.py:build", False, Path("train.py"), "build", "train-build"),
        ("train:build", False, Path("train.py"), "build", "train-build"),
        ("installed.models:build", False, None, "build", "installed-models-build-build"),
    ],
)
def test_bundles_programs_and_functions_are_told_apart(
    text: str, is_bundle: bool, file: Path | None, function: str, path: str | None
) -> None:
    target = Target.parse(text)
    assert (target.is_bundle, target.file, target.function) == (is_bundle, file, function)
    if path is not None:
        assert target.path == Path(path)


def test_a_program_that_does_not_exist_is_an_error_with_a_next_step() -> None:
    with pytest.raises(TorchReproError, match=r"missing\.py does not exist; give a bundle"):
        Target.parse("missing.py:build")


def test_what_was_caught_is_found_again_until_the_program_changes(tmp_path: Path, program: Path) -> None:
    target, directory = Target.parse("train.py"), tmp_path / "train.minified"
    bundle = write_bundle_files(directory / "caught" / "1-mismatch", {"manifest.json": b"{}"})
    request = ModelRequest("train.py")
    assert target.caught_before(directory, request) is None
    target.remember(bundle, directory, request)
    assert target.caught_before(directory, request) == bundle
    assert target.caught_before(directory, replace(request, backward=True)) is None
    (bundle / "source.py").write_text("what a stranger has added")
    assert target.caught_before(directory, request) is None
    (bundle / "source.py").unlink()
    program.write_text("def build(): return 1")
    assert target.caught_before(directory, request) is None
