"""A `uv` that needs no network: its environments have the packages of this one, and a variable tells which.

FAKE_TORCH is the version that was installed, for programs to fail by; FAKE_LOG is a file with a line a call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

VERSIONS = ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0")


def install_fake_uv(directory: Path) -> dict[str, str]:
    """Write the program and return the environment in which it is found first."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "uv"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
    program.chmod(0o755)
    log = directory / "log"
    log.touch()
    return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}", "FAKE_LOG": str(log)}


def main(words: list[str]) -> int:
    with open(os.environ["FAKE_LOG"], "a") as log:
        log.write(" ".join(words) + "\n")
    if words[0] == "venv":
        return _create(words[words.index("--python") + 1], Path(words[-1]))
    if "--dry-run" in words:
        return _would_install(words[-1])
    for version in re.findall(r"torch==(\S+)", " ".join(words)):
        if version == os.environ.get("FAKE_MISSING"):
            print("error: no such version", file=sys.stderr)
            return 1
        time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
        python = Path(words[words.index("--python") + 1])
        (site,) = python.parent.parent.glob("lib/python*/site-packages")
        # Python runs the lines of such files that begin with `import` when it starts.
        (site / "version.pth").write_text(f"import os; os.environ['FAKE_TORCH'] = '{version}'\n")
    return 0


def _create(python: str, directory: Path) -> int:
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "packages.pth").write_text("\n".join(paths) + "\n")
    return 0


def _would_install(requirement: str) -> int:
    below = requirement.partition("<")[2]
    found = [version for version in VERSIONS if not below or VERSIONS.index(version) < VERSIONS.index(below)]
    if not found:
        print("error: no version of torch", file=sys.stderr)
        return 1
    print(f"Would install 1 package\n + torch=={found[-1]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
