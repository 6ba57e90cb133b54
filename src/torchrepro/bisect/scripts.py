"""Run a user's script with an interpreter, in a fresh process with fresh compile caches; judge its end."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bisect.installers import Stopped, ends_with_us, stopping
from torchrepro.engine.generated_code import join_code
from torchrepro.engine.processes.child import Program, signal_name
from torchrepro.nouns.messages import normalise_message, telling_line
from torchrepro.nouns.verdict import Kind, Signature

_POLL_SECONDS = 0.05
_READ = 1 << 20
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?\Z", re.MULTILINE | re.DOTALL)
_GRAPH = re.compile(r"^# AOT ID: \['(\d+)_(\w+)'\]", re.MULTILINE)
_GENERATED = "async_compile"


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """How a script ended."""

    signature: Signature | None
    """None: it ended without an error."""
    cannot_run: str
    said: str
    seconds: float
    code: str
    """The normalised code that the compiler generated for it."""


def run_script(script: Path, python: Path, environ: Mapping[str, str], time_limit: float) -> ScriptRun:
    """Run a script to its end, or to the time limit: then it hangs."""
    with tempfile.TemporaryDirectory(prefix="torchrepro-script-", ignore_cleanup_errors=True) as directory:
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": f"{directory}/inductor",
            "TRITON_CACHE_DIR": f"{directory}/triton",
        }
        command = ends_with_us([str(python), str(script)])
        with Program.start(command, env={**os.environ, **caches, **environ}) as program:
            deadline = time.monotonic() + time_limit
            while (exit_code := program.process.poll()) is None and time.monotonic() < deadline:
                if stopping.wait(_POLL_SECONDS):
                    raise Stopped("stopped")
            seconds, told = program.seconds, program.tail(_READ)
        code = join_code(_generated(Path(directory, "inductor")))
    signature, said = signature_of(exit_code, told)
    return ScriptRun(signature, _unable(exit_code, signature, said), said, round(seconds, 1), code)


def signature_of(exit_code: int | None, output: str) -> tuple[Signature | None, str]:
    """Return the signature of a script's end, None if it succeeded, and a line that says it."""
    if exit_code is None:
        return Signature(Kind.HANG), "no end within the time limit"
    if exit_code == 0:
        return None, "ends without an error"
    died = signal_name(exit_code)
    if died:
        return Signature(Kind.CRASH, exception=died), f"died by {died}"
    # Text before the last traceback may quote others, of which this one is the consequence.
    _, found, told = output.rpartition("Traceback (most recent call last):\n")
    for block in re.split(r"\n(?=\S)", told)[1:] if found else []:
        raised = _RAISED.match(block.rstrip())
        if raised:
            kind, message = raised["type"].rpartition(".")[2], raised["message"] or ""
            signature = Signature(Kind.RUN_ERROR, exception=kind, message=normalise_message(message))
            return signature, f"{kind}: {telling_line(message)}"
    lines = [line for line in output.splitlines() if line.strip()]
    last = f" ({lines[-1].strip()})" if lines else ""
    return Signature(Kind.CRASH, exception=f"exit {exit_code}"), f"exit code {exit_code}{last}"


def _unable(exit_code: int | None, signature: Signature | None, said: str) -> str:
    """Return why a run says nothing about torch; empty if it does."""
    if signature is not None and signature.exception == "ModuleNotFoundError":
        return f"{said}; --with installs it in environments that bisect makes"
    if exit_code is not None and signal_name(exit_code) == "SIGKILL":
        return "killed (SIGKILL), most likely for memory"
    return ""


def _generated(cache: Path) -> list[str]:
    """Return the code of each graph in a fresh cache of inductor, in the order of compilation."""
    found = []
    for path in cache.glob("*/*.py"):
        text = path.read_text(errors="replace")
        graph = _GRAPH.search(text)
        if _GENERATED in text and graph:
            found.append((int(graph[1]), graph[2], text))
    return [text for *_, text in sorted(found)]
