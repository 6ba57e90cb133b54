"""Let system calls fail that a compiler does not need, by a seccomp filter (x86_64 and aarch64).

The filter lists what is refused, because what torch, CUDA, g++ and Python call differs between versions.
System calls that are newer than this list fail with ENOSYS.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from torchrepro.engine.sandbox.confinement import UNSCOPED_SIGNALS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 4]
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 21, 22, 38
_MODE_FILTER = 2
_NEWEST = 470
"""The highest number of a system call in Linux 6.17; numbers above 424 are the same on all machines."""

_LOAD, _EQUAL, _SET, _ABOVE, _RETURN = 0x20, 0x15, 0x45, 0x25, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """How a processor numbers system calls."""

    arch: int
    column: int
    """Its column in the tables below."""


_MACHINES = {"x86_64": _Machine(0xC000003E, 0), "aarch64": _Machine(0xC00000B7, 1)}

_REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # Memory and queues that processes outside could share: private ones are made by fork and by pipes.
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    # Every family: no network, no bus of the desktop, no agent. Pairs of connected sockets remain.
    "socket": (41, 198),
    "bind": (49, 200),
    "connect": (42, 203),
    "listen": (50, 201),
}
"""These fail with EPERM."""
_ATTRIBUTES = {
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "truncate": (76, 45),
}
"""These fail with EPERM where only Landlock protects files, which has no rights for their attributes."""
_IGNORED = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "futimesat": (261, None),
}
"""These too, but report success: linkers and copies set modes and times, which nothing here needs."""
_CLONE, _CLONE3, _IOCTL, _PRLIMIT = (56, 220), (435, 435), (16, 29), (302, 261)
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_REFUSED_IOCTLS = (0x5412, 0x541C, 0x40086602, 0x401C5820)
"""TIOCSTI and TIOCLINUX type into a terminal; FS_IOC_SETFLAGS and FSSETXATTR change attributes."""
_SIGNALS = ((62, 129), (200, 130), (234, 131), (129, 138), (297, 240), (424, 424))
"""kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal."""


def available() -> bool:
    """Return whether the filter is known for this machine and the kernel takes filters."""
    # It fails with EINVAL on a kernel that has no seccomp.
    return platform.machine() in _MACHINES and _libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0


def refuse_system_calls(*, attributes: bool) -> None:
    """Install the filter in this thread; everything that it starts inherits it.

    `attributes`: also refuse to change the attributes of files, because no read-only mount protects them.
    """
    program = _Program()
    program.each(_REFUSED.values(), _ERRNO | errno.EPERM)
    if attributes:
        program.each(_ATTRIBUTES.values(), _ERRNO | errno.EPERM)
        program.each(_IGNORED.values(), _ERRNO)
    # clone3 has its flags in memory, which a filter cannot read: glibc then calls clone.
    program.each([_CLONE3], _ERRNO | errno.ENOSYS)
    program.where(_CLONE, 0, [(_SET, _NEW_NAMESPACES)], then=_ERRNO | errno.EPERM, other=_ALLOW)
    program.where(_IOCTL, 1, [(_EQUAL, k) for k in _REFUSED_IOCTLS], then=_ERRNO | errno.EPERM, other=_ALLOW)
    # Limits of this process only.
    program.where(_PRLIMIT, 0, [(_EQUAL, 0)], then=_ALLOW, other=_ERRNO | errno.EPERM)
    program.install()


def refuse_signals_to_others() -> None:
    """Let this process send signals to itself only, and what it starts to none but its group.

    For a kernel whose Landlock does not scope signals (below 6.12), in a process that need not kill others.
    """
    program = _Program()
    for number in _SIGNALS[:5]:
        program.where(
            number,
            0,
            [(_EQUAL, os.getpid()), (_EQUAL, 0)],
            then=_ALLOW,
            other=_ERRNO | errno.EPERM,
        )
    program.each(_SIGNALS[5:], _ERRNO | errno.EPERM)
    program.install()


def give_up_signals() -> None:
    """In a sandbox that does not confine signals, let this process, which judges one candidate, send none."""
    if os.environ.get(UNSCOPED_SIGNALS) == "1":
        refuse_signals_to_others()


def forbid_new_privileges() -> None:
    """Let no program that this process starts have more rights than it has (set-user-id programs)."""
    check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


class _Program:
    """A filter in the kernel's bytecode. Each block of instructions returns or leaves the number loaded."""

    def __init__(self) -> None:
        self._machine = _MACHINES[platform.machine()]
        self._code: list[bytes] = []
        self._emit(_LOAD, _ARCH)
        self._emit(_EQUAL, self._machine.arch, 1, 0)
        self._emit(_RETURN, _KILL)
        self._emit(_LOAD, _NUMBER)
        # Above: newer than the tables, or of the x32 interface.
        self._emit(_ABOVE, _NEWEST, 0, 1)
        self._emit(_RETURN, _ERRNO | errno.ENOSYS)

    def each(self, calls: Iterable[tuple[int | None, ...]], result: int) -> None:
        """Return `result` for each of these system calls."""
        for numbers in calls:
            number = numbers[self._machine.column]
            if number is not None:
                self._emit(_EQUAL, number, 0, 1)
                self._emit(_RETURN, result)

    def where(
        self,
        numbers: tuple[int, int],
        argument: int,
        tests: list[tuple[int, int]],
        *,
        then: int,
        other: int,
    ) -> None:
        """Return `then` if any test of the argument's lower half holds, else `other`."""
        self._emit(_EQUAL, numbers[self._machine.column], 0, 3 + len(tests))
        self._emit(_LOAD, _ARGUMENTS + 8 * argument)
        for position, (test, value) in enumerate(tests):
            self._emit(test, value, len(tests) - position, 0)
        self._emit(_RETURN, other)
        self._emit(_RETURN, then)

    def install(self) -> None:
        self._emit(_RETURN, _ALLOW)
        code = ctypes.create_string_buffer(b"".join(self._code))
        described = struct.pack("HxxxxxxP", len(self._code), ctypes.addressof(code))
        check(_libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0), "prctl(PR_SET_SECCOMP)")

    def _emit(self, code: int, operand: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append(struct.pack("HBBI", code, if_true, if_false, operand))


def check(result: int, call: str) -> None:
    """Raise the error of a system call that has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
