"""Record what the command line answers for every failing program of `tests/cases`, as data.

    python tests/goldens/record.py [--cases 191499,c01] [--out tests/goldens]

For each program: the bundle that was caught (kept if it is small), the answers of `check`, `minify` and
`locate`, and the final script. Seconds, paths and ids are masked; counts of queries and compiles are kept
under `cost`, which the tests do not compare exactly because they depend on how many candidates run at a time.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.minify import ours  # noqa: E402
from benchmarks.minify.cases import Case, chosen  # noqa: E402
from benchmarks.processes import json_of, run_limited  # noqa: E402

VERBS = (
    "run",
    "compare",
    "check",
    "probe",
    "show",
    "minify",
    "locate",
    "report",
    "capture",
    "doctor",
    "bisect",
)
VERBS += ("import", "export", "hunt", "hunt-report")
VERBS += ("corpus", *(f"corpus-{verb}" for verb in ("add", "list", "show", "rm", "run", "ab", "merge")))
LIMIT = 600.0
LARGEST_BUNDLE = 100_000
"""Bytes of a zipped bundle that is worth keeping in the repository."""

_MASKED = {
    "seconds",
    "directory",
    "bundle",
    "original",
    "script",
    "stopped",
    "passes",
    "history",
    "growth",
    "diff",
    "sandbox",
}
_COSTS = {"queries", "compiles", "original_runs"}
_ID = re.compile(r"\d{8}-\d{6}-\d+-p\d+-[0-9a-f]+")
_TRIED = re.compile(r"\d+ tried")
"""How many variations were tried depends on the time that explaining had."""
_TRUST = re.compile(r"(?:same, fp64|assert_close|casts|kernel|first bad|labels): ")
"""Lines of a docstring that depend on the processor and on what was run before (`minify/trust_block.py`)."""
_PATH = re.compile(r"(?<![\w.])/(?:[\w.+-]+/)+(?=[\w.+-]+)")


def masked(value: Any) -> Any:
    """Return an answer without what differs between two runs: seconds, paths, ids, costs, numbers in full."""
    match value:
        case dict():
            return {key: masked(one) for key, one in value.items() if key not in _MASKED | _COSTS}
        case list():
            return [masked(one) for one in value]
        case str():
            return _TRIED.sub("N tried", _PATH.sub("", _ID.sub("ID", value)))
        case float():
            return float(f"{value:.2g}")
        case _:
            return value


def costs(answer: dict[str, Any]) -> dict[str, int]:
    """Return how many queries and compiles an answer took."""
    return {key: answer[key] for key in sorted(_COSTS) if answer.get(key) is not None}


def run_verb(words: Sequence[str], case: Case, scratch: Path) -> dict[str, Any]:
    """Run a verb of the command line in the environment of a case; return its `--json` with its exit code."""
    command = [sys.executable, "-m", "torchrepro", *words]
    ended = run_limited(command, case.environment(scratch), scratch, LIMIT, grace=60.0)
    return {**json_of(ended), "exit_code": ended.exit_code}


def record_bundle(bundle: Path, case: Case, scratch: Path) -> dict[str, Any]:
    """Return the masked answers of `check`, `minify` and `locate` on a bundle, and the final script."""
    trust = ["--trust", "source"] if case.of_capture else []
    check = run_verb(["check", str(bundle), "--json", *trust], case, scratch)
    minify = run_verb(
        ["minify", str(bundle), "--json", "--out", str(scratch / "minified"), *trust], case, scratch
    )
    locate = run_verb(
        ["locate", str(bundle), "--json", "--out", str(scratch / "located"), *trust], case, scratch
    )
    kernel = (locate.get("kernel") or {}).get("name")
    script = Path(minify["script"]).read_text() if minify.get("script") else ""
    return {
        "check": masked({key: check.get(key) for key in ("verdict", "signature", "reproduces", "exit_code")}),
        "minify": masked(minify),
        "locate": masked({**locate, "kernel": kernel}),
        "cost": {"minify": costs(minify), "locate": costs(locate)},
        "script": [line for line in masked(script).splitlines() if not _TRUST.match(line)],
    }


def record_case(case: Case, out: Path) -> dict[str, Any]:
    """Catch, check, minify and locate one program; keep its bundle in `out/bundles` if it is small."""
    with tempfile.TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        ended, caught = ours.catch(case, scratch)
        answer: dict[str, Any] = {"case": case.name, "caught": None}
        if caught is None or not caught.bundle:
            return {**answer, "exit_code": ended.exit_code}
        answer["caught"] = {"verdict": caught.verdict, "signature": caught.signature}
        _keep(Path(caught.bundle), out / "bundles" / f"{case.name}.zip")
        return {**answer, **record_bundle(Path(caught.bundle), case, scratch)}


def help_of(verb: str) -> str:
    """Return the help text of a verb on a terminal of 80 columns."""
    environ = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1", "PATH": "/usr/bin:/bin"}
    words = [sys.executable, "-m", "torchrepro", *verb.split("-"), "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environ).stdout


def _without_paths(content: bytes) -> bytes:
    """Return the text of a member of a bundle without the folders of this machine."""
    for folder in (HERE.parents[1], sys.prefix, sys.base_prefix, Path.home()):
        content = content.replace(str(folder).encode(), b"/somewhere")
    return content


def _keep(bundle: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(bundle.iterdir()):
            text = path.suffix in (".json", ".py")
            archive.writestr(path.name, _without_paths(path.read_bytes()) if text else path.read_bytes())
    if target.stat().st_size > LARGEST_BUNDLE:
        target.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", default="", help="names of cases: c01,191499_big (default: all)")
    parser.add_argument("--out", type=Path, default=HERE, help="where answers, bundles and help texts go")
    parser.add_argument("--resume", action="store_true", help="skip the cases that are recorded already")
    options = parser.parse_args()
    for folder in ("cases", "help", "bundles"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    for verb in VERBS:
        (options.out / "help" / f"{verb}.txt").write_text(help_of(verb))
    for case in chosen([word for word in options.cases.split(",") if word]):
        path = options.out / "cases" / f"{case.name}.json"
        if options.resume and path.exists():
            continue
        print(f"{case.name} ...", file=sys.stderr, flush=True)
        path.write_text(json.dumps(record_case(case, options.out), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
