"""Which bundles are confined, how, and what is said where that is not possible."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import torchrepro

from torchrepro.bundle.provenance import Standing
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.sandbox import landlock, namespaces, seccomp
from torchrepro.engine.sandbox.chosen import CHOICE, MORE_PATHS, Sandbox, remove, sandbox_for
from torchrepro.engine.sandbox.confinement import INSIDE, Confinement, Limits
from torchrepro.engine.sandbox.confinement import Kind as SandboxKind
from torchrepro.engine.sandbox.supervise import _require_landlock
from torchrepro.engine.search.confined import answer_outside, copy_out, copy_tree
from torchrepro.engine.search.run_directory import RunDirectory
from torchrepro.nouns.errors import TorchReproError

BUNDLE = Path(__file__).resolve().parents[2] / "goldens" / "bundles" / "191499.zip"
STRANGER = Standing(False, ())


def _chosen(tmp_path: Path, standing: Standing = STRANGER, **more: Any) -> Sandbox | None:
    (tmp_path / "seed").mkdir(exist_ok=True)
    with sandbox_for(BUNDLE, read_manifest(BUNDLE), standing, seed=tmp_path / "seed", **more) as found:
        return found


@pytest.mark.parametrize("standing", [Standing(True, ()), Standing(False, ("bundle",))])
def test_an_own_and_a_trusted_bundle_are_not_confined(standing: Standing, tmp_path: Path) -> None:
    assert _chosen(tmp_path, standing) is None


def test_a_strangers_bundle_is_confined_but_not_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CHOICE, raising=False)
    found = _chosen(tmp_path)
    assert found is not None
    assert not found.scratch.exists()  # removed afterwards
    monkeypatch.setenv(INSIDE, "1")
    assert _chosen(tmp_path) is None


def test_home_and_what_is_above_it_are_never_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    (home / "project" / "oracle.py").touch()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "path", [*sys.path, str(home), str(tmp_path), "/", str(home / "packages")])
    monkeypatch.setenv(MORE_PATHS, str(home / "more"))
    monkeypatch.chdir(home)
    found = _chosen(tmp_path, oracle="python project/oracle.py {}")
    assert found is not None
    readable = set(found.readable)
    assert not {"/", str(tmp_path), str(home)} & readable
    wanted = {str(home / name) for name in ("packages", "more", "project/oracle.py")}
    assert wanted <= readable


def test_a_bundle_unpacked_into_the_home_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the directory of a bundle can be read in the sandbox."""
    home = tmp_path / "home"
    shutil.unpack_archive(BUNDLE, home)
    (tmp_path / "seed").mkdir()
    monkeypatch.setenv("HOME", str(home))
    with (
        pytest.raises(TorchReproError, match=r"home directory.*directory of its own"),
        sandbox_for(home, read_manifest(home), STRANGER, seed=tmp_path / "seed"),
    ):
        pass


def test_the_working_directory_is_not_readable_because_python_was_started_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "project"), *sys.path])  # as `python -m` does
    found = _chosen(tmp_path)
    assert found is not None
    assert str(tmp_path / "project") not in found.readable


@pytest.mark.parametrize("choice", ["bubblewrap", "nonsense"])
def test_a_sandbox_that_is_not_there_is_refused(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHOICE, choice)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(TorchReproError) as raised:
        _chosen(tmp_path)
    expected = "--trust bundle would run it without one" if choice == "bubblewrap" else "choose one of"
    assert expected in raised.value.next_step


def test_without_linux_a_strangers_bundle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(TorchReproError, match="no sandbox is possible here"):
        _chosen(tmp_path)


def _confinement(kind: SandboxKind) -> Confinement:
    limits = Limits(memory=1, disk=1, files=1, processes=1, cpu_seconds=1)
    return Confinement(kind, (), "", "", (), (), (), limits, reports=0, passed=(), parent=0, leaf=True)


def test_a_kernel_without_enough_landlock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: landlock.ALONE - 1)
    with pytest.raises(OSError, match="Landlock is version 2, and 3 is needed"):
        _require_landlock(_confinement(SandboxKind.AUTO))
    _require_landlock(_confinement(SandboxKind.BUBBLEWRAP))  # which has its own file system


def test_bubblewrap_gets_only_the_listed_paths(tmp_path: Path) -> None:
    limits = Limits(memory=1, disk=1, files=1, processes=1, cpu_seconds=1)
    sandbox = Sandbox(
        SandboxKind.BUBBLEWRAP, tmp_path, ("/usr", "/opt/torch"), ("/dev/null", "/dev/nvidia0"), limits
    )
    words = sandbox.command(["python", "job"], reports=7)
    before, after = words[: words.index("--")], words[words.index("--") + 1 :]
    assert {"--unshare-all", "--die-with-parent", "--cap-drop"} <= set(before)
    bound = [tuple(before[at : at + 3]) for at, word in enumerate(before) if "bind" in word]
    assert ("--ro-bind-try", "/opt/torch", "/opt/torch") in bound
    assert ("--dev-bind-try", "/dev/nvidia0", "/dev/nvidia0") in bound
    assert [entry for entry in bound if entry[0] == "--bind"] == [("--bind", str(tmp_path), str(tmp_path))]
    told = Confinement.from_json(after[-1])
    assert (told.command, told.reports, told.parent) == (("python", "job"), 7, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="seccomp")
def test_a_process_can_give_up_signals_to_others() -> None:
    with subprocess.Popen(["sleep", "30"]) as victim:
        child = os.fork()
        if child == 0:
            seccomp.forbid_new_privileges()
            seccomp.refuse_signals_to_others()
            try:
                os.kill(victim.pid, signal.SIGTERM)
            except PermissionError as exc:
                os.kill(os.getpid(), 0)  # to itself it may
                os._exit(42 if exc.errno == errno.EPERM else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert victim.poll() is None
        victim.kill()


def test_only_regular_files_are_copied_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    outer = RunDirectory(tmp_path / "run")
    inner = outer.scratch / "run"
    (inner / "cache").mkdir(parents=True)
    (inner / "result.json").write_text("{}")
    (inner / "run.json").symlink_to(tmp_path / "secret")
    (inner / "scratch-link").symlink_to(tmp_path / "secret")
    (inner / "cache" / "planted.so").write_text("x")
    copy_out(outer)
    assert sorted(path.name for path in outer.path.iterdir()) == ["scratch"]

    tree = tmp_path / "tree"
    (tree / "inside").mkdir(parents=True)
    (tree / "inside" / "kept").write_text("kept")
    (tree / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tree / "pipe")
    copy_tree(tree, tmp_path / "copy")
    found = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert found == ["inside", "inside/kept"]


def test_directories_without_permissions_are_removed(tmp_path: Path) -> None:
    hidden = tmp_path / "scratch" / "a" / "b"
    hidden.mkdir(parents=True)
    (hidden / "file").touch()
    for path in (hidden, hidden.parent):
        path.chmod(0)
    remove(tmp_path / "scratch")
    assert not (tmp_path / "scratch").exists()


def test_an_answer_may_only_name_files_of_its_run_directory(tmp_path: Path) -> None:
    outer, inner = RunDirectory(tmp_path / "run"), tmp_path / "run" / "scratch" / "run"
    told = {"script": f"{inner}/minimal/repro.py", "also_seen": [{"bundle": f"{inner}/also_seen/x"}]}
    answer = answer_outside(told, outer, inner, BUNDLE)
    assert answer["script"] == f"{outer.path}/minimal/repro.py"
    assert answer["also_seen"] == [{"bundle": f"{outer.path}/also_seen/x"}]
    for hostile in ("/etc/passwd", f"{inner}/../../../secret"):
        with pytest.raises(TorchReproError, match="not its own"):
            answer_outside({**told, "also_seen": [{"bundle": hostile}]}, outer, inner, BUNDLE)


@pytest.mark.slow
def test_the_version_says_which_sandbox_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = torchrepro("--version")
    assert ended.returncode == 0
    assert "seccomp" in ended.stdout.splitlines()[1]
    monkeypatch.setenv(CHOICE, "nonsense")
    assert "sandbox: none: " in torchrepro("--version").stdout


@pytest.mark.slow
def test_a_strangers_bundle_is_compiled_and_checked_without_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a real compiler; with namespaces, the goldens check, minify and locate this bundle."""
    monkeypatch.setenv(CHOICE, "landlock")
    answer = json.loads(torchrepro("check", str(BUNDLE), "--json").stdout)
    assert answer["sandbox"].startswith("Landlock ABI")
    assert "namespaces" not in answer["sandbox"]
    assert (answer["verdict"], answer["reproduces"]) == ("mismatch", True)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_strangers_bundle_is_minified_and_located_without_namespaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CHOICE, "landlock")
    for verb in ("minify", "locate"):
        ended = torchrepro(verb, str(BUNDLE), "--json", "--out", str(tmp_path / verb))
        answer = json.loads(ended.stdout)
        assert ended.returncode == 0, ended.stderr
        assert answer["sandbox"].startswith("Landlock ABI")
        assert (tmp_path / verb / "result.json").exists()
        assert not (tmp_path / verb / "scratch").exists()


def test_a_sandbox_is_given_to_the_process_that_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchrepro.engine import check_bundle

    given: list[object] = []

    def judged(job: str, payload: object, **how: Any) -> Any:
        given.append(how["sandbox"])
        raise TorchReproError("seen")

    monkeypatch.setattr(check_bundle, "judged_in_isolation", judged)
    monkeypatch.setattr("torchrepro.engine.sandbox.chosen.make_seed", lambda seed: None)
    for trusted in ((), ("bundle",)):
        with pytest.raises(TorchReproError, match="seen"):
            check_bundle.check_bundle(BUNDLE, trusted=trusted)
    assert given[0] is not None
    assert given[1] is None


@pytest.mark.parametrize(
    ("release", "limited"), [("6.1.0-27-amd64", False), ("5.15", False), ("6.14.0-rc1", True)]
)
def test_the_process_ids_of_the_machine_are_not_limited(
    release: str, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Linux 6.14 the file is that of the whole machine, and root may write to it from a namespace."""
    written: list[str] = []
    monkeypatch.setattr(namespaces.os, "uname", lambda: SimpleNamespace(release=release))
    monkeypatch.setattr(namespaces.Path, "write_text", lambda path, text: written.append(str(path)))
    namespaces._limit_process_ids(100)
    assert written == (["/proc/sys/kernel/pid_max"] if limited else [])
