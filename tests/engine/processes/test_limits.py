"""The share of the machine that one worker has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchrepro.engine.processes import limits


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of control groups with this process two levels down, in both versions."""
    (tmp_path / "own").write_text("4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/a/b\n")
    monkeypatch.setattr(limits, "_OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(limits, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    for folder in ("a/b", "memory/a/b", "cpu,cpuacct/a/b"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_without_a_container_it_is_the_whole_machine(cgroup: Path) -> None:
    assert limits.usable_cores() == 16
    assert limits.usable_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_quota_of_a_group_around_this_one_counts(cgroup: Path) -> None:
    (cgroup / "a/b/cpu.max").write_text("max 100000\n")
    (cgroup / "a/cpu.max").write_text("450000 100000\n")
    assert limits.usable_cores() == 4
    assert limits.thread_share(workers=2) == 2
    assert limits.thread_share(workers=9) == 1


def test_the_first_version_of_control_groups_counts_too(cgroup: Path) -> None:
    (cgroup / "cpu,cpuacct/a/b/cpu.cfs_quota_us").write_text("50000\n")
    (cgroup / "cpu,cpuacct/a/b/cpu.cfs_period_us").write_text("100000\n")
    (cgroup / "cpu,cpuacct/a/cpu.cfs_quota_us").write_text("-1\n")
    (cgroup / "cpu,cpuacct/a/cpu.cfs_period_us").write_text("100000\n")
    (cgroup / "memory/a/memory.limit_in_bytes").write_text(f"{1 << 30}\n")
    assert limits.usable_cores() == 1
    assert limits.usable_memory() == 1 << 30


def test_workers_together_leave_memory_free(cgroup: Path) -> None:
    (cgroup / "a/b/memory.max").write_text(f"{1 << 30}\n")
    assert limits.memory_share(2) == limits.memory_share(1) // 2
    assert 4 * limits.memory_share(4) < 1 << 30
