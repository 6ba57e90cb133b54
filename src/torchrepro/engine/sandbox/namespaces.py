"""Give this process a root file system, process ids, a network and users of its own (Linux namespaces).

The new root has only what is listed: directories of the machine, read-only, and the scratch directory. There
is no network device, and no process but those of the sandbox.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from torchrepro.engine.sandbox.seccomp import check

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_NEW_USER = 0x10000000
_NEW_OTHERS = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000
"""Mounts, names of the machine, IPC, process ids, network."""
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_NO_SUID, _NO_DEVICES, _NO_EXECUTE = 2, 4, 8
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_ATTR_READ_ONLY, _ATTR_NO_SUID = 1, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SHARED_MEMORY = "size=256m"
_OWN_PROCESS_IDS = (6, 14)
"""The first Linux with a largest number of processes for each namespace."""
_RESERVED = 300
"""Numbers of processes that the kernel does not use again."""


def enter_namespaces() -> None:
    """Leave the namespaces of the parent; the next child that is forked is the first of the new process ids.

    Users keep their number, so files keep their owner. Root may do without a namespace of users.
    """
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_USER | _NEW_OTHERS) != 0:
        check(_libc.unshare(_NEW_OTHERS), "unshare")
        return
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def enter_root(
    scratch: Path,
    *,
    readable: Iterable[str],
    writable: Sequence[str],
    devices: Iterable[str],
    processes: int,
) -> None:
    """Make a root file system of the given paths, and forget the old one. `writable` is beneath `scratch`.

    No more than `processes` processes and threads may exist in it.
    """
    _mount("none", "/", flags=_RECURSIVE | _PRIVATE)
    root = scratch / ".root"
    root.mkdir(exist_ok=True)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "size=16m,mode=755")
    # Parents first: what is inside of another path is mounted over it.
    for path in sorted({*readable, *devices}, key=len):
        _mirror(root, path, recursive=True)
    for path in writable:
        _mirror(root, path, recursive=False)  # `root` itself is beneath it
    (root / "proc").mkdir(exist_ok=True)
    _mount("proc", root / "proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXECUTE)
    shared = root / "dev" / "shm"
    shared.mkdir(parents=True, exist_ok=True)
    _mount("tmpfs", shared, "tmpfs", _NO_SUID | _NO_DEVICES, _SHARED_MEMORY)
    if not (root / "tmp").exists():
        (root / "tmp").symlink_to(os.environ["TMPDIR"])
    os.chdir(root)
    check(_libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."), "pivot_root")
    check(_libc.umount2(b".", _DETACH), "umount2")
    os.chdir("/")
    _limit_process_ids(processes)  # a file that is read-only from here on
    _set_attributes("/", _ATTR_READ_ONLY | _ATTR_NO_SUID, 0)
    for path in (*writable, "/dev/shm"):
        _set_attributes(path, 0, _ATTR_READ_ONLY)


def _limit_process_ids(count: int) -> None:
    """Limit the numbers of processes in this namespace, where the kernel can (6.14).

    Before that, `RLIMIT_NPROC` and the supervisor do; the first does not apply to root. The file is then that
    of the whole machine, which root could change from here.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < _OWN_PROCESS_IDS:
        return
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(count + _RESERVED))
    except OSError:
        return


def _mirror(root: Path, path: str, *, recursive: bool) -> None:
    """Make a path of the machine appear beneath `root`, with the symbolic links on the way to it."""
    done = Path("/")
    for part in Path(path).parts[1:]:
        done /= part
        if done.is_symlink():
            link = root / str(done)[1:]
            if not link.is_symlink() and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(os.readlink(done))
            rest = Path(path).relative_to(done)
            target = (done.parent / os.readlink(done) / rest).resolve()
            return _mirror(root, str(target), recursive=recursive)
    if not done.exists():
        return None
    target = root / str(done)[1:]
    if not target.exists():
        (target if done.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
        if not done.is_dir():
            target.touch()
    _mount(done, target, flags=_BIND | (_RECURSIVE if recursive else 0))
    return None


def _mount(source: object, target: object, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(str(source)),
        os.fsencode(str(target)),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    check(result, f"mount {target}")


def _set_attributes(path: str, set_: int, cleared: int) -> None:
    """Set and clear attributes of the mount at a path and of all beneath it."""
    attributes = struct.pack("QQQQ", set_, cleared, 0, 0)
    check(
        _libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            os.fsencode(path),
            ctypes.c_uint(_AT_RECURSIVE),
            attributes,
            ctypes.c_size_t(len(attributes)),
        ),
        f"mount_setattr {path}",
    )
