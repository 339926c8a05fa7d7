"""The default number of threads: cores, not hyper-threads, of the affinity mask, and no more than a container's quota."""

from __future__ import annotations

from pathlib import Path

import pytest

from pullback.cores import Cores, cpu_quota, found_cores, physical_cores
from pullback.settings import cores


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("found", "threads"),
    [
        (Cores(16, 8, None), 8),
        (Cores(16, 8, 4.0), 4),
        (Cores(16, 8, 3.9), 3),
        (Cores(16, 8, 0.5), 1),
        (Cores(16, 8, 64.0), 8),
    ],
)
def test_threads_are_cores_within_the_quota(found: Cores, threads: int) -> None:
    assert found.threads == threads
    assert f"{found.cores} cores" in str(found)
    assert ("quota" in str(found)) == (found.quota is not None)


def test_hyper_threads_of_a_core_count_once(tmp_path: Path) -> None:
    for cpu in range(8):
        written(tmp_path / f"cpu{cpu}/topology", thread_siblings_list=f"{cpu % 4},{cpu % 4 + 4}\n")
    assert physical_cores(set(range(8)), tmp_path) == 4
    assert physical_cores({0, 1, 4}, tmp_path) == 2
    assert physical_cores({0, 9}, tmp_path) == 2, "a system that does not tell"


def test_the_smallest_quota_around_a_process_holds(tmp_path: Path) -> None:
    own = written(tmp_path, cgroup="0::/pod/box\n") / "cgroup"
    groups = tmp_path / "fs"
    written(groups / "pod/box", cpu__max="max 100000\n")
    assert cpu_quota(groups, own) is None
    written(groups / "pod", cpu__max="250000 100000\n")
    assert cpu_quota(groups, own) == 2.5
    written(groups / "pod/box", cpu__max="50000 100000\n")
    assert cpu_quota(groups, own) == 0.5


def test_quotas_of_the_first_version(tmp_path: Path) -> None:
    own = written(tmp_path, cgroup="3:cpuset:/\n2:cpu,cpuacct:/box\n0::/\n") / "cgroup"
    written(tmp_path / "fs/cpu,cpuacct/box", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert cpu_quota(tmp_path / "fs", own) is None
    written(tmp_path / "fs/cpu,cpuacct/box", cpu__cfs_quota_us="400000\n", cpu__cfs_period_us="100000\n")
    assert cpu_quota(tmp_path / "fs", own) == 4.0


@pytest.mark.parametrize("text", ["", "max", "much 100000", "100000 0", "1 2 3"])
def test_what_cannot_be_read_is_no_quota(text: str, tmp_path: Path) -> None:
    own = written(tmp_path, cgroup="0::/\nnonsense\n") / "cgroup"
    written(tmp_path / "fs", cpu__max=text)
    assert cpu_quota(tmp_path / "fs", own) is None
    assert cpu_quota(tmp_path / "missing", tmp_path / "none") is None


def test_here() -> None:
    assert 1 <= cores() == found_cores().threads <= found_cores().cores <= found_cores().cpus
