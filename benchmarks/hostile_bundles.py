"""Run every verb on every hostile bundle: `python -m benchmarks.hostile_bundles --json FILE --resume`.

Each command runs under strace, with a home, a working directory and a temporary directory of its own. A
combination passes if none of its processes starts a program that only a stranger would start, opens a
connection or changes a file elsewhere, and if it ends in time with an answer or a line that says why there is
none. Each result is a line of JSON as soon as it is known; `--resume` leaves out what has passed.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torchrepro
from torchrepro.bundle.provenance import is_own
from torchrepro.nouns.errors import TorchReproError

_CORPUS = ("corpus", "add", "~/corpus", "BUNDLE")
_PYTHON = ("--python", sys.executable)
_FILES = ("--junit", "~/corpus/junit.xml", "--findings", "~/corpus/findings.json", "--github")
VERBS: dict[str, tuple[tuple[str, ...], ...]] = {
    "show": (("show", "--all", "--graph", "--source", "BUNDLE"),),
    "check": (("check", "--time-limit", "120", "BUNDLE"),),
    "minify": (("minify", "--time-limit", "20", "--quiet", "BUNDLE"),),
    "locate": (("locate", "--time-limit", "20", "--quiet", "BUNDLE"),),
    "report": (("report", "--format", "html", "--output", "-", "--time-limit", "120", "BUNDLE"),),
    "page": (("report", "--no-run", "BUNDLE"),),
    "index": (_CORPUS, ("corpus", "list", "~/corpus"), ("corpus", "show", "~/corpus", "bundle")),
    "corpus": (
        _CORPUS,
        (*("corpus", "run", "~/corpus", "--quiet", "--html", "~/corpus/page.html"), *_FILES),
    ),
    "ab": (_CORPUS, ("corpus", "ab", "~/corpus", *_PYTHON, *_PYTHON, "--diff-code", "--quiet")),
    "export": tuple(
        ("export", "--as", form, "--output", f"~/exported/{form}.py", "BUNDLE")
        for form in ("fx_graph_runnable", "pytest", "unittest", "aoti")
    ),
    "probe": (
        ("probe", "--only", "repeat,batch", "--save", "~/saved", "--seconds", "5", "BUNDLE"),
        ("show", "~/saved/*"),
    ),
    "trace": (("report", "--no-run", "--trace", "--time-limit", "120", "BUNDLE"),),
    "bisect": (("bisect", "--env", "TORCHINDUCTOR_FREEZING=0,1", "--time-limit", "120", "BUNDLE"),),
    "hunt": (
        _CORPUS,
        (
            *("hunt", "--out", "~/hunt", "--corpus", "~/corpus"),
            *("--generators", "windows", "--programs", "1"),
        ),
    ),
    "import": (("import", "--out", "~/imported", "ARTEFACT"), ("check", "--time-limit", "60", "~/imported")),
}
"""The commands, by a name for each; a page is a report in its default place, a file next to the bundle.

Those after the first run even if it refuses the bundle, unless they need what it was to write. A hunt leaves
a stranger's bundle out, so one program of its own is enough.
"""
SECONDS = {"show": 60.0, "page": 60.0, "index": 90.0, "export": 120.0}
SECONDS |= {"corpus": 560.0, "ab": 900.0, "bisect": 560.0}  # two replays before something counts as fixed
_SECONDS = 280.0
"""How long a command may take: its own time limit, and the start of its processes on a busy machine."""
GITHUB_COMMAND = re.compile(r"^\s*::(?!(?:error|warning) title=)|##\[", re.MULTILINE)
"""What only a stranger would tell the runner; `corpus --github` prints annotations."""
MISSING = "needs strace, with the right to trace"

_CACHE = Path(__file__).resolve().parent.parent / ".cache" / "tests"
_TOOLS = re.compile(
    r"python[\d.]*|g\+\+[\w.-]*|c\+\+|gcc[\w.-]*|cc1plus|cc1|as|ld[\w.]*|collect2|lto-wrapper|x86_64-linux-gnu-.*"
    r"|openssl|uname|lscpu|ldconfig[\w.]*|objdump|nvidia-smi|bwrap|sh|git|which|file|strace"
)
"""Programs that torch, inductor and the sandbox start by themselves, on any bundle."""
_OURS = (
    *(".cache", ".triton", ".config", "bundle.minified", "bundle.located", "bundle.bisected", "corpus"),
    *("exported", "saved", "hunt", "imported"),
)
"""What the commands may leave in the home and working directory."""
_ELSEWHERE = re.compile(
    r"/dev/(?:null|tty|shm/sem\.[\w-]+)|/proc/(?:self|\d+)/(?:task/\d+/)?\w+|/proc/sys/kernel/pid_max"
)
"""Paths outside of the directory of a run that are no files, or vanish with the sandbox or the process."""

_CALLS = (
    *("execve", "execveat", "socket", "connect", "bind", "open", "openat", "openat2", "creat", "truncate"),
    *(
        "mkdir",
        "mkdirat",
        "rmdir",
        "mknod",
        "mknodat",
        "unlink",
        "unlinkat",
        "rename",
        "renameat",
        "renameat2",
    ),
    *(
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "chmod",
        "fchmodat",
        "chown",
        "lchown",
        "fchownat",
        "setxattr",
    ),
)
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (\d+)(?:<(.*)>)?$")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<((?:[^>\\]|\\.)*)>, )?"((?:[^"\\]|\\.)*)"')
_WRITES = re.compile(r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC)\b")
_ADDRESS = re.compile(r"AF_INET|AF_PACKET|AF_VSOCK|AF_UNIX, sun_path=(?!@?\"/var/run/nscd)")


def traced(log: Path) -> list[str]:
    """Return the command prefix that logs programs, connections and changes of files; empty if it cannot."""
    strace = shutil.which("strace")
    if strace is None:
        return []
    # By a filter in the kernel: other system calls, nearly all, cost nothing.
    command = [strace, "-f", "-y", "-qq", "--seccomp-bpf", "-s", "4096", "-e", "signal=none"]
    command += ["-e", f"trace={','.join(_CALLS)}", "-o", str(log)]
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []


def strange_in(log: Path, allowed: tuple[Path, ...]) -> Iterator[str]:
    """Yield what only a stranger would do: programs, connections, changes of files outside of `allowed`."""
    for line in _whole_lines(log.read_text(errors="surrogateescape")):
        call = _CALL.match(line)
        if call is None:
            continue  # it failed, or is about a signal or an exit
        name, given, _, opened = call.groups()
        if name.startswith("execve"):
            program = Path(_PATH.search(given)[2] if _PATH.search(given) else "")
            if not _TOOLS.fullmatch(program.name) or _inside(program, allowed):
                yield f"program {program}"
        elif name in ("socket", "connect", "bind"):
            if _ADDRESS.search(given):
                yield f"{name} {given}"
        elif not name.startswith("open") or _WRITES.search(given):
            yield from (
                f"{name} {path}" for path in _changed(name, given, opened) if _is_elsewhere(path, allowed)
            )


def _whole_lines(text: str) -> Iterator[str]:
    """Yield a line for each call: one that another process interrupts is logged in two."""
    begun: dict[str, str] = {}
    for line in text.splitlines():
        process, _, rest = line.partition(" ")
        if rest.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix("<unfinished ...>")
        elif resumed := re.search(r"<\.\.\. \w+ resumed>", rest):
            yield begun.pop(process, f"{process} ") + rest[resumed.end() :]
        else:
            yield line


def _changed(name: str, given: str, opened: str | None) -> Iterator[Path]:
    """Yield the files that a call has changed; for an opened one as the kernel names it."""
    if opened is not None:
        yield Path(opened.removesuffix("(deleted)").removesuffix(">"))
        return
    found = list(_PATH.finditer(given))
    for directory, path in (match.groups() for match in (found[1:] if name.startswith("symlink") else found)):
        yield Path(os.path.normpath(Path(directory or "/") / path))


def _inside(path: Path, places: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(place) for place in places)


def _is_elsewhere(path: Path, allowed: tuple[Path, ...]) -> bool:
    return not _inside(path, allowed) and not _ELSEWHERE.fullmatch(str(path))


def attacks_for(verb: str) -> tuple[str, ...]:
    """Return the names of what a verb is given: hostile bundles, for `import` hostile artefacts."""
    from tests.bundle.hostile import CORPUS
    from tests.interchange.hostile_artefacts import HOSTILE

    return tuple(HOSTILE if verb == "import" else CORPUS)


def _planted(name: str, verb: str, scratch: Path, canary: Path) -> Path:
    """Write a hostile bundle or artefact, and return where it is."""
    from tests.bundle.hostile import CORPUS
    from tests.interchange.hostile_artefacts import HOSTILE, plant_storage

    if verb != "import":
        return CORPUS[name](scratch / "bundle", canary)
    plant_storage(scratch, canary)
    (scratch / "repro.py").write_text(HOSTILE[name].replace("was-here", str(canary)))
    return scratch / "repro.py"


@dataclass(frozen=True, slots=True)
class Result:
    """What one verb did with one bundle."""

    name: str
    verb: str
    violations: tuple[str, ...]
    """Empty: it passed."""
    seconds: float
    exit_code: int | None
    message: str
    """The last line on standard error."""


def run(name: str, verb: str, place: Path) -> Result:
    """Run a verb on a hostile bundle in an empty directory, and say what it did that it must not."""
    home, scratch, canary = place / "home", place / "scratch", place / "canary"
    for directory in (home, scratch, place / "tmp"):
        directory.mkdir()
    (home / "precious").write_text("years of work")
    _write_bytecode()
    given = _planted(name, verb, scratch, canary)
    if not traced(place / "log"):
        raise RuntimeError(MISSING)
    cache = Path(os.environ.get("TORCHREPRO_CACHE_DIR", _CACHE))
    environ = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
    environ |= {
        "HOME": str(home),
        "TMPDIR": str(place / "tmp"),
        "COLUMNS": "80",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GITHUB_ACTIONS": "true",
    }
    environ |= {"TORCHREPRO_CACHE_DIR": str(cache), "TORCHREPRO_CONFIG_DIR": str(cache / "config")}
    began, found = time.monotonic(), []
    code, err = None, ""
    try:
        for number, words in enumerate(VERBS[verb]):
            named = _named(words, given, home)
            if named is None:
                continue
            done = subprocess.run(
                [*traced(place / f"log {number}"), sys.executable, "-m", "torchrepro", *named],
                capture_output=True,
                text=True,
                errors="surrogateescape",
                cwd=home,
                env=environ,
                timeout=SECONDS.get(verb, _SECONDS),
            )
            code, err = done.returncode, done.stderr
            found += _violations_in(code, done.stdout, err)
    except subprocess.TimeoutExpired:
        code, err, found = None, "", [f"no end within {SECONDS.get(verb, _SECONDS):.0f} s"]
    seconds = time.monotonic() - began
    if canary.exists():
        found.append("the canary is there: a command of the stranger ran")
    if (home / "precious").read_text() != "years of work":
        found.append("a file of the user was changed")
    left = (str(path.relative_to(home)) for path in home.rglob("*"))
    found += [
        f"left in the home directory: {path}" for path in left if not path.startswith((*_OURS, "precious"))
    ]
    if verb != "hunt":  # which signs programs of its own
        found += [f"signed: {path}" for path in home.rglob("provenance.json") if _is_signed(path.parent)]
    for log in place.glob("log *"):
        found += dict.fromkeys(strange_in(log, (place, cache)))
    return Result(name, verb, tuple(found), round(seconds, 1), code, err.strip().rpartition("\n")[2])


def _named(words: tuple[str, ...], given: Path, home: Path) -> list[str] | None:
    """Return the words of a command with the paths in them; None where a file of them was not written."""
    named = []
    for word in words:
        if word in ("BUNDLE", "ARTEFACT"):
            named.append(str(given))
        elif word.endswith("*"):
            named += map(str, home.glob(word.removeprefix("~/")))
        else:
            named.append(word.replace("~/", f"{home}/"))
    reads = words[0] in ("show", "check") and words[-1].startswith("~")
    missing = reads and (len(named) != len(words) or not Path(named[-1]).exists())
    lists = words[:2] in (("corpus", "list"), ("corpus", "show"), ("corpus", "run"), ("corpus", "ab"))
    missing |= (lists or words[0] == "hunt") and not (home / "corpus").exists()
    return None if missing else named


def _is_signed(bundle: Path) -> bool:
    """Return whether a bundle passes for the user's own."""
    try:
        return is_own(bundle)
    except TorchReproError:
        return False


@functools.cache
def _write_bytecode() -> None:
    """Compile the sources ahead: the supervisor of the sandbox writes what is missing, outside of it."""
    compileall.compile_dir(str(Path(torchrepro.__file__).parent), quiet=1)


def _violations_in(code: int, out: str, err: str) -> Iterator[str]:
    if code not in (0, 1, 2, 125):  # 2: `check` on what `import` made fails otherwise
        yield f"exit code {code}"
    reasons = re.search(r"^(?:torchrepro|.*error)", err, re.MULTILINE)
    if code == 125 and not (
        reasons or re.search(r"^\s*(?:\w+ +(?:invalid|not asked)|cannot run) +\S", out, re.MULTILINE)
    ):
        yield "no answer, and no line that says why"
    for word in ("Traceback", "bug of torchrepro"):
        if word in err:
            yield f"{word!r} on standard error: {err[-2000:]}"
    if GITHUB_COMMAND.search(out + err):
        yield "a command for GitHub's runner"
    if controls := set(out + err) & set("\x1b\x07\x9b\r"):
        yield f"control characters in what is shown: {controls}"


def summary(results: list[Result], combinations: int) -> str:
    """Return the line with the counts."""
    passed = [one for one in results if not one.violations]
    bundles, verbs = len({one.name for one in passed}), len({one.verb for one in passed})
    slowest = max((one.seconds for one in results), default=0.0)
    return (
        f"{combinations} combinations, {len(results)} run, {len(passed)} passed: {bundles} hostile bundles "
        f"under {verbs} verbs, slowest {slowest:.0f} s"
    )


def read(path: Path) -> dict[tuple[str, str], Result]:
    """Return the last result of each combination in a file; a line that was cut off is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = (Result(**json.loads(line)) for line in lines)
    return {(one.name, one.verb): one for one in found}


def main(say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="append each result to FILE", metavar="FILE")
    parser.add_argument("--resume", action="store_true", help="leave out what has passed in --json FILE")
    parser.add_argument("--verbs", default=",".join(VERBS), help="some of the verbs, by comma")
    parser.add_argument("--only", default="", help="bundles whose name contains this", metavar="WORD")
    options = parser.parse_args()
    config = Path(os.environ.get("TORCHREPRO_CACHE_DIR", _CACHE)) / "config"
    os.environ["TORCHREPRO_CONFIG_DIR"] = str(config)  # no key is made in the user's own
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    verbs = options.verbs.split(",")
    table = [(name, verb) for verb in verbs for name in attacks_for(verb) if options.only in name]
    if options.json and not options.resume:
        options.json.unlink(missing_ok=True)
    known = read(options.json) if options.json else {}
    known = {key: one for key, one in known.items() if key in table and not one.violations}
    for key in table:
        if key in known:
            continue
        with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as place:
            known[key] = one = run(*key, Path(place))
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        say(f"{one.seconds:6.1f} s  {one.verb:7} {one.name}: {'; '.join(one.violations) or 'passed'}")
    say(summary(list(known.values()), len(table)))
    return 0 if len(known) == len(table) and not any(one.violations for one in known.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
