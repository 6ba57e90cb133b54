"""Write a bundle as a file that other tools run: torch's tool for repros, pytest, unittest, AOTInductor.

Nothing is run. The minimal repro is taken where the bundle was minified. Of a stranger's bundle the script is
written anew from what loading lets through (`bundle/load.py`), because all of its text may say anything, and
the file says whose it is.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import (
    GRAPH,
    OPERATORS,
    SOURCE,
    TENSORS,
    VALUES,
    manifest_of,
    open_bundle_files,
    read_manifest,
    require_complete,
    text_of,
)
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Place
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.report.run_files import Surroundings, surroundings_of, verdict_in

_STRANGERS = "From a bundle that somebody else has written: read it before you run it."


class Form(StrEnum):
    """What a bundle can be exported as."""

    FX_GRAPH_RUNNABLE = "fx_graph_runnable"
    PYTEST = "pytest"
    UNITTEST = "unittest"
    AOTI = "aoti"


@dataclass(frozen=True, slots=True)
class Exported:
    """The files that were written, the script first."""

    script: Path
    side_files: tuple[Path, ...]
    minimal: bool
    stranger: bool


def export_bundle(
    bundle: Path, form: Form, output: Path | None = None, *, trusted: tuple[str, ...] = ()
) -> Exported:
    """Write a bundle, or the minimal one that `minify` made of it, in another form; existing files stay.

    If something is `trusted`, code, settings and environment variables of a stranger's bundle are written as
    they are.
    """
    around = surroundings_of(bundle)
    chosen = around.minimal if around.minimal is not None and around.minified is not None else around.bundle
    stranger = not is_own(chosen) or "minify" in around.claims
    target = output or Path(_file_name(around.bundle, form))
    if target.suffix != ".py":
        raise TorchReproError(f"{target} is no Python file", next_step="choose a name that ends with .py")
    with (
        _loadable(chosen) if stranger and not trusted else nullcontext(chosen) as chosen_files,
        open_bundle_files(chosen_files) as files,
    ):
        manifest = manifest_of(files)
        require_complete(chosen, manifest)
        text = _written(
            _Data(manifest, text_of(files, GRAPH), text_of(files, SOURCE) if SOURCE in files else ""),
            around,
            form,
            target,
            stranger=stranger,
        )
        if text.startswith("raise SystemExit("):
            raise TorchReproError(_reason_in(text), next_step="export another form, or use torchrepro check")
        contents: dict[Path, bytes] = {}
        for name in (TENSORS, VALUES, OPERATORS):
            if f'"{name}"' in text and name in files:
                apart = f"{target.stem}.{name}"
                text = text.replace(f'"{name}"', f'"{apart}"')
                contents[target.with_name(apart)] = files.read_bytes(name)
    if stranger:
        text = text.replace('"""', f'"""{_STRANGERS}\n\n', 1)
    _write({target: text.encode(), **contents})
    return Exported(target, tuple(contents), chosen != around.bundle, stranger)


@contextmanager
def _loadable(bundle: Path) -> Iterator[Path]:
    """Yield a copy of a stranger's bundle that has what loading lets through, and nothing else."""
    from torchrepro.bundle.load import load_bundle
    from torchrepro.script.save_bundle import bundle_members

    seen = read_manifest(bundle)
    with tempfile.TemporaryDirectory(prefix="torchrepro-export-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is not applied is in the notes
        members = bundle_members(load_bundle(bundle), verdict_in(seen.verdict))
        manifest = msgspec.structs.replace(members.manifest, environment=seen.environment)
        yield replace(members, manifest=manifest).write(Path(directory) / "bundle", sign=False)


@dataclass(frozen=True, slots=True)
class _Data:
    manifest: Manifest
    graph_text: str
    source: str

    @property
    def verdict(self) -> Verdict | None:
        return verdict_in(self.manifest.verdict)


def _written(data: _Data, around: Surroundings, form: Form, target: Path, *, stranger: bool) -> str:
    from torchrepro.script.standalone import Ending, standalone_script
    from torchrepro.script.test_form import pytest_form, unittest_form

    manifest = data.manifest
    kind = manifest.expected.kind if manifest.expected is not None else None
    match form:
        case Form.FX_GRAPH_RUNNABLE:
            wrong = _wrong_parts(manifest)
            if wrong and not wrong & {"out", "grad"}:
                raise TorchReproError(
                    "outputs and gradients are right, and torch's tool compares nothing else",
                    next_step="export it as a test: --as pytest",
                )
            return standalone_script(
                manifest, data.graph_text, data.verdict, data.source, ending=Ending.RUN_REPRO
            )
        case Form.AOTI:
            return standalone_script(_ahead_of_time(manifest), data.graph_text, data.verdict, data.source)
    if kind is None or not kind.fails:
        raise TorchReproError(
            "the bundle has no recorded failure, and a test needs one",
            next_step=f"torchrepro check {around.bundle} tells whether it fails; minify records it",
        )
    script = around.script
    if stranger or not script:
        script = standalone_script(manifest, data.graph_text, data.verdict, data.source)
    if script.startswith("raise SystemExit("):
        return script
    write: Callable[[str, Kind | None, str], str] = pytest_form if form is Form.PYTEST else unittest_form
    return write(script, kind, _identifier(target.stem.removeprefix("test_")))


def _ahead_of_time(manifest: Manifest) -> Manifest:
    """Return the manifest for AOTInductor: an exported forward graph, without gradients."""
    if manifest.place is Place.BEFORE_CAPTURE:
        raise TorchReproError(
            "a call of the user's code is no graph that AOTInductor compiles",
            next_step="minify it first, or export it as a test: --as pytest",
        )
    if _wrong_parts(manifest) == {"grad"}:
        raise TorchReproError(
            "only gradients are wrong, and AOTInductor has no backward", next_step="export it as a test"
        )
    return msgspec.structs.replace(
        manifest,
        place=Place.EXPORT,
        compiler=Compiler(AOT_INDUCTOR),
        ambient=replace(manifest.ambient, grad_enabled=False),
        backward=False,
    )


def _wrong_parts(manifest: Manifest) -> set[str]:
    """Return which parts of a call have wrong values: `out`, `grad`, `inputs`, ..."""
    verdict = verdict_in(manifest.verdict)
    comparison = verdict.comparison if verdict is not None else None
    return set() if comparison is None else {leaf.where.part for leaf in comparison.differing}


def _reason_in(script: str) -> str:
    """Return the reason that a script without content gives."""
    found = re.search(r"no standalone script: (.*?)(?:; run torchrepro check)", script)
    return f"it cannot be written: {found[1] if found else 'no script'}"


def _file_name(bundle: Path, form: Form) -> str:
    name = _identifier(bundle.absolute().name.removesuffix(".zip"))
    return f"test_{name}.py" if form in (Form.PYTEST, Form.UNITTEST) else f"{form.value}_{name}.py"


def _identifier(name: str) -> str:
    return re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "repro"


def _write(contents: dict[Path, bytes]) -> None:
    """Write all files or none, none over something that exists."""
    taken = next((path for path in contents if path.exists() or path.is_symlink()), None)
    if taken is not None:
        raise TorchReproError(f"{taken} exists already", next_step="choose another name with --output FILE")
    partials: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            partials[path] = path.with_name(f".{path.name}.{new_run_id()}.partial")
            with partials[path].open("xb") as file:
                file.write(content)
        for path, partial in reversed(partials.items()):
            partial.rename(path)
    except OSError as exc:
        raise TorchReproError(
            f"cannot write {next(iter(contents))}: {exc.strerror}",
            next_step="choose another file with --output FILE",
        ) from exc
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
