"""What a stranger's code might try from inside of a sandbox; each job returns what came of it."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def _attempt(action: Callable[[], Any]) -> str:
    try:
        return f"done: {action()!r}"
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, str(exc))


def _system_call(number: int, *arguments: int) -> None:
    if _libc.syscall(ctypes.c_long(number), *(ctypes.c_long(value) for value in arguments)) < 0:
        raise OSError(ctypes.get_errno(), "")


def _connect(family: int, address: Any) -> None:
    with socket.socket(family) as client:
        client.connect(address)


def _write_by_a_link(canary: Path) -> None:
    link = Path(os.environ["TMPDIR"]) / "link"
    os.link(canary, link)
    link.write_text("changed")


def try_all(payload: Mapping[str, Any], phase: Any) -> dict[str, str]:
    """Try to write, read, connect and signal outside of the sandbox."""
    canary, secret, victim = Path(payload["canary"]), Path(payload["secret"]), int(payload["victim"])
    actions: dict[str, Callable[[], Any]] = {
        "write": lambda: canary.write_text("changed"),
        "append": lambda: canary.open("a").write("changed"),
        "truncate": lambda: os.truncate(canary, 0),
        "open to truncate": lambda: os.open(canary, os.O_RDONLY | os.O_TRUNC),
        "remove": canary.unlink,
        "rename": lambda: canary.rename(canary.with_name("other")),
        "create": lambda: canary.with_name("new").write_text(""),
        "make a directory": lambda: canary.with_name("new directory").mkdir(),
        "write by a hard link": lambda: _write_by_a_link(canary),
        "write to the system": lambda: Path("/usr/torchrepro-was-here").write_text(""),
        "read": secret.read_text,
        "list": lambda: os.listdir(secret.parent),
        "read shared memory": Path(payload["shared"]).read_text,
        "read the key": lambda: Path(payload["key"]).read_bytes(),
        "TCP": lambda: _connect(socket.AF_INET, tuple(payload["tcp"])),
        "socket in a file": lambda: _connect(socket.AF_UNIX, payload["unix"]),
        "abstract socket": lambda: _connect(socket.AF_UNIX, "\0" + payload["abstract"]),
        "signal": lambda: os.kill(victim, signal.SIGTERM),
        "signal 0": lambda: os.kill(victim, 0),
        "its environment": lambda: Path(f"/proc/{victim}/environ").read_bytes(),
        "its limits": lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (8, 8)),
        "ptrace": lambda: _system_call(101, 16, victim, 0, 0),
        "namespaces": lambda: _system_call(272, 0x10000000),
        "io_uring": lambda: _system_call(425, 1, 0),
        "bpf": lambda: _system_call(321, 0, 0, 0),
        "keys": lambda: _system_call(250, 0, -3, 0),
    }
    found = {name: _attempt(action) for name, action in actions.items()}
    # These report success and must have done nothing.
    for quietly in (lambda: os.chmod(canary, 0o666), lambda: os.utime(canary, (1, 1))):
        _attempt(quietly)
    return found


def look_around(payload: Mapping[str, Any], phase: Any) -> dict[str, Any]:
    """Return the environment, the visible processes, and whether programs and the scratch directory work."""
    scratch = Path(os.environ["TMPDIR"]) / "file"
    scratch.write_text("kept")
    said = subprocess.run(["sh", "-c", "echo $HOME"], capture_output=True, text=True, check=True).stdout
    return {
        "environ": dict(os.environ),
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "said": said.strip(),
        "wrote": scratch.read_text(),
        "descriptors": _open_files(),
        "most processes": int(Path("/proc/sys/kernel/pid_max").read_text()),
    }


def _open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found


def fork_on(payload: Mapping[str, Any], phase: Any) -> int:
    """Start processes until that fails."""
    count = 0
    while True:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        count += 1


def allocate_alone(payload: Mapping[str, Any], phase: Any) -> int:
    return len(b"x" * payload["bytes"])


def allocate_together(payload: Mapping[str, Any], phase: Any) -> int:
    """Use more memory than allowed, in processes that each use less."""
    phase("compile")
    for _ in range(payload["processes"]):
        if os.fork() == 0:
            held = bytearray(payload["bytes"])
            for start in range(0, len(held), 4096):
                held[start] = 1
            time.sleep(30)
            os._exit(0)
    time.sleep(30)
    return 0


def write_file(payload: Mapping[str, Any], phase: Any) -> str:
    def write() -> None:
        with open(Path(os.environ["TMPDIR"]) / "large", "wb") as file:
            file.seek(payload["bytes"])
            file.write(b"x")

    return _attempt(write)


def end_by(payload: Mapping[str, Any], phase: Any) -> None:
    """Die as asked; `leaving` a process behind that would outlive it."""
    if payload.get("leaving") and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    if "exit" in payload:
        os._exit(payload["exit"])
    os.kill(os.getpid(), payload["signal"])


def wait_for_interrupt(payload: Mapping[str, Any], phase: Any) -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        phase("run")
        time.sleep(30)
    except KeyboardInterrupt:
        return "interrupted"
    return "not interrupted"


def flood(payload: Mapping[str, Any], phase: Any) -> None:
    """Report without an end; or one line without an end."""
    data = b'{"phase": "run"}\n' * 4096 if payload["lines"] else b"x" * (1 << 16)
    while True:
        os.write(phase._descriptor, data)


def lie(payload: Mapping[str, Any], phase: Any) -> Any:
    """Answer what no job answers."""
    return payload["answer"]


def forge(payload: Mapping[str, Any], phase: Any) -> None:
    """Write into the pipe of reports what no job reports."""
    descriptor = phase._descriptor
    lines = (
        b"[" * 100_000,
        b'{"phase": 5}',
        b'{"progress": {"pass": [], "start": 1}}',
        b'{"time_limit": "soon"}',
        b'{"time_limit": 1e300}',
        b'{"error": "no"}',
        b"\xff\x00",
    )
    for line in lines:
        data = line + b"\n"
        while data:
            data = data[os.write(descriptor, data) :]
    phase("run")
    time.sleep(60)
