"""Is the failure kept, whatever the program is made of, and can it be checked?

    python -m benchmarks.constructs --only unbacked,mkldnn --minify
    python -m benchmarks.constructs --programs FILE.py --kind accuracy

Runs each program of `tests/cases/constructs.py`, which has inductor's own bug in `relu` in one construct,
with the watch on, then checks each bundle, in forked processes: torch is imported once. `--minify` also
minifies them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

PROGRAMS = Path(__file__).resolve().parents[1] / "tests" / "cases" / "constructs.py"
TIME_LIMIT = 240.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A bundle, and what became of it."""

    place: str
    check: str
    """"same": it fails as recorded; else what happened instead, or why it cannot be checked."""
    minified: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One construct: how its program ended, and the bundles that it left."""

    name: str
    program: str
    """The exception with which it ended; empty if it ran through."""
    kept: tuple[Kept, ...] = ()
    said: tuple[str, ...] = ()
    """The lines of torchrepro on standard error."""

    @property
    def verdict(self) -> str:
        if not self.kept:
            own = not self.program or self.program.startswith("without the bug")
            return "nothing failed" if own else "LOST"
        return "same" if any(kept.check == "same" for kept in self.kept) else "kept"


def names_in(programs: Path) -> list[str]:
    """Return the constructs of a file, in its order, without running it: what the first decorator marks."""
    import re

    found = re.findall(r"^@(\w+)\ndef (\w+)", programs.read_text(), re.MULTILINE)
    return [name for decorator, name in found if decorator == found[0][0]]


def measure(
    names: Sequence[str],
    directory: Path,
    *,
    programs: Path = PROGRAMS,
    level: int = 2,
    kind: str = "compile_error",
    minify: bool = False,
    jobs: int = 2,
) -> Iterator[Row]:
    """Run each construct with the watch on, and check what it left: `jobs` of them at a time."""
    _warm_up()

    def row(name: str) -> str:
        out = directory / name
        ran = wait_for(fork(lambda: _run(programs, name, out, level, kind), directory / f"{name}.run"))
        lines = (directory / f"{name}.run.err").read_text(errors="replace").splitlines()
        said = tuple(line for line in lines if line.startswith("torchrepro: "))
        bundles = sorted(path for path in out.glob("*") if (path / "manifest.json").is_file())
        kept = tuple(_checked(bundle, directory / f"{name}.{i}", minify) for i, bundle in enumerate(bundles))
        if ran and not kept:
            without = wait_for(fork(lambda: _run(programs, name, None, 0, ""), directory / name))
            ran = f"without the bug, too: {ran}" if without == ran else ran
        return msgspec.json.encode(Row(name, ran, kept, said)).decode()

    waiting = deque[tuple[str, Forked]]()
    for name in names:
        waiting.append((name, fork(partial(row, name), directory / f"{name}.row")))
        if len(waiting) == jobs:
            yield _row(*waiting.popleft())
    for started in waiting:
        yield _row(*started)


def _row(name: str, started: Forked) -> Row:
    answer = wait_for(started)
    try:
        return msgspec.json.decode(answer, type=Row)
    except msgspec.DecodeError:
        return Row(name, f"the harness failed: {answer}")


def _warm_up() -> None:
    """Import what every program imports; nothing may start a thread before the forks."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    import torch
    import torch._dynamo.output_graph
    import torch._inductor.codegen.cpp
    import torch._inductor.compile_fx
    import torch._inductor.cpp_builder

    import torchrepro.execute.judge_repro  # noqa: F401

    torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class Forked:
    """A forked process, and the file in which it leaves its answer."""

    pid: int
    answer: Path


def fork(work: Callable[[], str], log: Path) -> Forked:
    """Start `work` in a process of its own, whose output goes to files."""
    answer = log.with_name(f"{log.name}.txt")
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        for number, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(log.with_name(f"{log.name}.{suffix}"), os.O_WRONLY | os.O_CREAT, 0o600), number)
        try:
            answer.write_text(work())
        except BaseException:
            answer.write_text(f"the harness failed: {traceback.format_exc()}")
        finally:
            os._exit(0)
    return Forked(pid, answer)


def wait_for(started: Forked) -> str:
    """Return what the process answers, or how it died."""
    deadline = time.monotonic() + TIME_LIMIT
    while os.waitpid(started.pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(started.pid, signal.SIGKILL)
            os.waitpid(started.pid, 0)
            return "timeout"
        time.sleep(0.02)
    return started.answer.read_text() if started.answer.exists() else "the process died"


def _run(programs: Path, name: str, out: Path | None, level: int, kind: str) -> str:
    """Run one construct as `torchrepro run FILE NAME` does, as `__main__`; unwatched without `out`."""
    import torchrepro

    os.environ["KIND"] = kind
    sys.argv = [str(programs), name]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = str(programs)
    session = None if out is None else torchrepro.enable(level=level, out=out)
    try:
        exec(compile(programs.read_text(), str(programs), "exec", dont_inherit=True), main.__dict__)
    except Exception as exc:
        return f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}"
    finally:
        if session is not None:
            torchrepro.disable(session)
        sys.stderr.flush()
    return ""


def _checked(bundle: Path, log: Path, minify: bool) -> Kept:
    from torchrepro.bundle.read import read_manifest

    place = read_manifest(bundle).place.value
    check = wait_for(fork(lambda: _check(bundle), log))
    smaller = ""
    if minify and check == "same":
        smaller = wait_for(fork(lambda: _minify(bundle), log.with_name(f"{log.name}.minify")))
    return Kept(place, check, smaller)


def _check(bundle: Path) -> str:
    """Judge a bundle as `torchrepro check` does in a process of its own."""
    from torchrepro.bundle.provenance import names_it_runs
    from torchrepro.bundle.read import read_manifest
    from torchrepro.engine.check_bundle import Checked
    from torchrepro.execute.judge_repro import check
    from torchrepro.nouns.errors import TorchReproError
    from torchrepro.nouns.verdict import Signature, Verdict

    manifest = read_manifest(bundle)
    payload: dict[str, Any] = {"bundle": str(bundle), "trusted": list(names_it_runs(manifest))}
    try:
        verdict = msgspec.convert(check(payload, lambda phase: None), Verdict)
    except TorchReproError as exc:
        return f"unusable: {exc.fact}"
    checked = Checked(verdict, Signature.of(verdict), manifest.expected)
    if checked.exit_code == 1:
        return "same"
    return f"exit code {checked.exit_code}: {str(verdict).partition(chr(10))[0]}"


def _minify(bundle: Path) -> str:
    from torchrepro import pipeline
    from torchrepro.minify.run_directory import MinifySettings
    from torchrepro.nouns.errors import TorchReproError

    try:
        minified = pipeline.minify_bundle(bundle, MinifySettings(explain=False, time_limit=120.0))
    except TorchReproError as exc:
        return f"no: {exc.fact}"
    return f"{minified.ops} ops{'' if minified.reproduces else ', the script does not fail'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="names, with commas")
    parser.add_argument("--programs", type=Path, default=PROGRAMS)
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument(
        "--kind", default="compile_error", choices=("compile_error", "runtime_error", "accuracy")
    )
    parser.add_argument("--minify", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a directory that the bundles stay in")
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else names_in(given.programs)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        options = {"programs": given.programs, "level": given.level, "kind": given.kind}
        for row in measure(names, directory, **options, minify=given.minify, jobs=given.jobs):
            rows.append(row)
            print(line_of(row), flush=True)
    for verdict in dict.fromkeys(row.verdict for row in rows):
        found = [row.name for row in rows if row.verdict == verdict]
        print(
            f"{verdict}: {len(found)} of {len(rows)}"
            + ("" if verdict == "same" else f" ({', '.join(found)})")
        )
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


def line_of(row: Row) -> str:
    """Return a row as a line."""
    kept = "; ".join(" ".join(filter(None, (one.place, one.check, one.minified))) for one in row.kept)
    lost = "" if row.kept else " | ".join([row.program, *row.said])
    return f"{row.name:<26} {row.verdict:<16} {kept or lost}"


if __name__ == "__main__":
    sys.exit(main())
