"""The process between torchrepro and a confined job: confine, watch limits, kill what is left.

Started as `python -m` this module with a `Confinement` as JSON, in the environment that the job is to have.
It starts the command of the job in namespaces, or where those are not allowed by Landlock and seccomp alone.
Its reports go to the pipe of the job's reports: which sandbox it is, a limit that was exceeded, and how the
command ended, because behind namespaces and bubblewrap no exit code tells that.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from torchrepro.engine.processes.signals import die_with
from torchrepro.engine.sandbox import landlock, namespaces, seccomp
from torchrepro.engine.sandbox.confinement import PLAIN_DEVICES, UNSCOPED_SIGNALS, Confinement, Kind

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_SECUREBITS, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 28, 24, 36
_NO_ROOT_LOCKED = 0b1111
"""SECBIT_NOROOT and SECBIT_NO_SETUID_FIXUP, both locked: being root gives no rights back."""
_CAPABILITY_VERSION = 0x20080522
_WATCH_SECONDS = 0.25
_DISK_WATCH_SECONDS = 3.0
_TERM_SECONDS = 0.2
_SIGNALS = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM)


def main() -> NoReturn:
    confinement = Confinement.from_json(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_SETMASK, _SIGNALS)
    die_with(confinement.parent)  # behind bubblewrap it is unknown: that dies with its own parent
    try:
        if confinement.kind in (Kind.AUTO, Kind.NAMESPACES) and _run_in_namespaces(confinement):
            os._exit(0)
        _require_landlock(confinement)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        Supervisor(confinement).run()
    except BaseException as exc:
        # Without this message the parent would take the exit for an answer about the bundle.
        _report_refusal(confinement, exc)
    os._exit(0)


def _require_landlock(confinement: Confinement) -> None:
    """Raise unless this process can be confined without namespaces of its own making."""
    if not seccomp.available():
        raise OSError("the kernel has no seccomp for this machine")
    if confinement.kind is not Kind.BUBBLEWRAP and landlock.version() < landlock.ALONE:
        raise OSError(f"its Landlock is version {landlock.version()}, and {landlock.ALONE} is needed")


def _report_refusal(confinement: Confinement, exc: BaseException) -> None:
    report(
        confinement,
        error={
            "kind": "user",
            "fact": f"this bundle is not yours, and no sandbox is possible here ({exc})",
            "next_step": "install bubblewrap; --trust bundle would run it without a sandbox: "
            "with your files, your network and all your rights",
            "traceback": "",
        },
    )


def report(confinement: Confinement, **message: Any) -> None:
    """Send a message as the job does; on a line of its own, because the job may have been killed in one."""
    with suppress(OSError):
        os.write(confinement.reports, b"\n" + json.dumps(message).encode() + b"\n")


# Namespaces: this process stays outside; a child enters them, and its child is the first process inside.


def _run_in_namespaces(confinement: Confinement) -> bool:
    """Run the job in namespaces of its own and wait for it; return False if they are not allowed here."""
    reading_end, writing_end = os.pipe()
    outer = os.fork()
    if outer == 0:
        os.close(reading_end)
        _enter(confinement, writing_end)
    os.close(writing_end)
    with os.fdopen(reading_end) as pipe:
        answer = pipe.readline().strip()
    if not answer.isdigit():
        os.waitpid(outer, 0)
        if confinement.kind is Kind.NAMESPACES:
            raise OSError(answer or "namespaces are not allowed")
        return False
    first = int(answer)
    while os.waitpid(outer, os.WNOHANG) == (0, 0):
        received = signal.sigtimedwait(_SIGNALS, _WATCH_SECONDS)
        if received is not None and received.si_signo == signal.SIGINT:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGINT)
    return True


def _enter(confinement: Confinement, pipe: int) -> NoReturn:
    """Enter the namespaces; write the first process's pid, as seen from outside, or an error to a pipe."""
    try:
        namespaces.enter_namespaces()
        ready, done = os.pipe()
        first = os.fork()
        if first == 0:
            os.close(ready)
            _run_first_process(confinement, done)
        os.close(done)
        with os.fdopen(ready) as errors:
            failed = errors.read()
        os.write(pipe, (failed or str(first)).encode() + b"\n")
        os.close(pipe)
        die_with()
        os.waitpid(first, 0)
    except OSError as exc:
        with suppress(OSError):
            os.write(pipe, f"{exc}\n".encode())
    os._exit(0)


def _run_first_process(confinement: Confinement, done: int) -> NoReturn:
    try:
        die_with()
        scratch = Path(confinement.scratch)
        namespaces.enter_root(
            scratch,
            readable=confinement.readable,
            writable=confinement.writable,
            devices=confinement.devices,
            processes=confinement.limits.processes,
        )
    except OSError as exc:
        os.write(done, str(exc).encode())
        os._exit(0)
    os.close(done)
    try:
        Supervisor(confinement, inside=True).run()
    except BaseException as exc:
        _report_refusal(confinement, exc)
    os._exit(0)


class Supervisor:
    """Starts the command confined, enforces its limits, and kills whatever it leaves behind."""

    def __init__(self, confinement: Confinement, *, inside: bool = False) -> None:
        self._confinement = confinement
        self._inside = inside
        """This is the first process of a namespace: all others end with it."""
        self._disk_watched_at = 0.0

    def run(self) -> None:
        report(self._confinement, sandbox=self._description())
        self._command = os.fork()
        if self._command == 0:
            self._become_command()
        exceeded = ""
        stop_at = float("inf")
        while (status := self._reaped()) is None and not exceeded and time.monotonic() < stop_at:
            received = signal.sigtimedwait(_SIGNALS, _WATCH_SECONDS)
            if received is not None and received.si_signo == signal.SIGINT:
                os.kill(self._command, signal.SIGINT)
            if received is not None and received.si_signo == signal.SIGTERM and not self._inside:
                stop_at = min(stop_at, time.monotonic() + _TERM_SECONDS)  # the group has it too
            exceeded = self._exceeded()
        self._kill_all()
        if exceeded:
            report(self._confinement, error=self._error(exceeded))
        elif status is not None:
            report(self._confinement, ended=status)

    def _description(self) -> str:
        parts = {Kind.BUBBLEWRAP: ["bubblewrap"]}.get(self._confinement.kind, [])
        version = landlock.version()
        parts += [f"Landlock ABI {version}"] if version else []
        named = " + ".join([*parts, "seccomp", *(["namespaces"] if self._inside else [])])
        hardware = [path for path in self._confinement.devices if path not in PLAIN_DEVICES]
        return f"{named}, with {', '.join(hardware)}" if hardware else named

    def _become_command(self) -> NoReturn:
        confinement = self._confinement
        try:
            die_with()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if confinement.kind is Kind.BUBBLEWRAP:
                os.setpgid(0, 0)  # signals to the group are for the supervisor
            os.chdir(confinement.home)
            confined_alone = confinement.kind is not Kind.BUBBLEWRAP and not self._inside
            _limit_resources(confinement, confined_alone)
            _drop_capabilities()
            seccomp.forbid_new_privileges()
            version = landlock.version()
            if version:
                landlock.restrict(
                    # A process outside its namespace shows in /proc, but gives nothing away but its name.
                    readable=(*confinement.readable, "/proc"),
                    writable=(*confinement.writable, *(("/dev/shm",) if self._inside else ())),
                    devices=confinement.devices,
                )
            seccomp.refuse_system_calls(attributes=confined_alone)
            if confined_alone and version < landlock.SIGNALS:
                os.environ[UNSCOPED_SIGNALS] = "1"
                if confinement.leaf:
                    seccomp.refuse_signals_to_others()
            _close_all_but({0, 1, 2, *confinement.passed})
            os.execv(confinement.command[0], confinement.command)
        except BaseException as exc:
            _report_refusal(confinement, exc)
        os._exit(125)

    def _reaped(self) -> int | None:
        """Reap every dead child; return the exit code of the command, negative for a signal, if it is one."""
        ended = None
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._command:
                    ended = os.waitstatus_to_exitcode(found[1])
        return ended

    def _exceeded(self) -> str:
        """Return which limit is exceeded, as text; empty if none is."""
        limits, members = self._confinement.limits, self._members()
        if len(members) > limits.processes:
            return f"more than {limits.processes} processes"
        # Shared memory counts in each process, so if the sum is too large the proportional size is read.
        if sum(map(_resident, members)) > limits.memory and sum(map(_share_of, members)) > limits.memory:
            return f"more than {limits.memory / 2**30:.3g} GiB of memory"
        if time.monotonic() - self._disk_watched_at > _DISK_WATCH_SECONDS:
            if sum(map(_bytes_in, self._confinement.writable)) > limits.disk:
                return f"more than {limits.disk / 2**30:.3g} GiB of files"
            self._disk_watched_at = time.monotonic()
        return ""

    def _error(self, exceeded: str) -> dict[str, str]:
        fact = f"the sandbox killed it: {exceeded}"
        kind = "memory" if "memory" in exceeded else "user"
        next_step = "--trust bundle runs it without a sandbox and its limits, with all your rights"
        return {"kind": kind, "fact": fact, "next_step": next_step, "traceback": ""}

    def _members(self) -> list[int]:
        """Return the pids of all descendants of this process."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError, ValueError, IndexError):
                    parent = int(_read(f"/proc/{name}/stat").rpartition(")")[2].split()[1])
                    children.setdefault(parent, []).append(int(name))
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            inner = children.get(waiting.pop(), [])
            found += inner
            waiting += inner
        return found

    def _kill_all(self) -> None:
        """Kill every descendant; in a namespace the kernel does that when this process exits."""
        deadline = time.monotonic() + 5.0
        while not self._inside and (members := self._members()) and time.monotonic() < deadline:
            for pid in members:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            self._reaped()
            time.sleep(0.005)


def _limit_resources(confinement: Confinement, counts_all: bool) -> None:
    """Set the limits of the command; `counts_all`: the user's other processes count among its processes."""
    limits = confinement.limits
    processes = limits.processes + (_threads_of_user() if counts_all else 0)
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: limits.memory,
        resource.RLIMIT_FSIZE: limits.disk,
        resource.RLIMIT_NOFILE: limits.files,
        resource.RLIMIT_NPROC: processes,
        resource.RLIMIT_CPU: limits.cpu_seconds,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    with suppress(OSError):
        # If the machine runs out of memory, this is what the kernel kills.
        Path("/proc/self/oom_score_adj").write_text("1000")


def _threads_of_user() -> int:
    """Return how many threads the processes of this user have."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def _drop_capabilities() -> None:
    """Give up all rights of root for good: with no new privileges, no program has them again."""
    for capability in range(64):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    _libc.prctl(_PR_SET_SECUREBITS, _NO_ROOT_LOCKED, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "capset failed")


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the descriptor of this listing
                os.close(int(name))
    for descriptor in kept:
        os.set_inheritable(descriptor, True)


def _resident(pid: int) -> int:
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0  # it has just ended


def _share_of(pid: int) -> int:
    """Return the bytes of a process, with those that it shares divided among all who share them."""
    lines = _read_or_empty(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss:", "SwapPss:")))


def _bytes_in(path: str) -> int:
    found = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return found


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _read_or_empty(path: str) -> str:
    try:
        return _read(path)
    except OSError:
        return ""


if __name__ == "__main__":
    main()
