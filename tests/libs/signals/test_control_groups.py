"""Control groups of pods, as kubelets lay them out, in trees of version 1 and 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from libs.signals.control_groups import ROOT_SECONDS, PodGroups, Usage, read_groups

UID = "0f0f0f0f-1111-2222-3333-abcdefabcdef"
OTHER = "aaaaaaaa-1111-2222-3333-abcdefabcdef"
SYSTEMD_UID = UID.replace("-", "_")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def unified(folder: Path, where: str) -> Path:
    """A pod's group of version 2 with two containers in it."""
    (folder / "cgroup.controllers").write_text("cpu io memory pids\n")
    (folder / "system.slice/ssh.service").mkdir(parents=True, exist_ok=True)
    pod = folder / where
    for container, processes in (("first", "0\n0\n"), ("second", "0\n")):
        (pod / container).mkdir(parents=True)
        (pod / container / "cgroup.procs").write_text(processes)
    (pod / "cgroup.procs").write_text("")
    (pod / "cpu.stat").write_text("usage_usec 2500000\n")
    (pod / "memory.current").write_text("1000\n")
    (pod / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    (pod / "io.stat").write_text(
        "8:0 rbytes=100 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n259:0 rbytes=5 wbytes=1\n7:0 \n"
    )
    return pod


def version_1(folder: Path, where: str) -> None:
    cpu, memory, blkio = (folder / each / where for each in ("cpu,cpuacct", "memory", "blkio"))
    for each in (cpu, memory, blkio):
        each.mkdir(parents=True)
    (folder / "cpuacct").symlink_to("cpu,cpuacct")
    (folder / "systemd" / where).mkdir(parents=True)
    (cpu / "cpuacct.usage").write_text("2500000000\n")
    (memory / "memory.usage_in_bytes").write_text("1000\n")
    (memory / "memory.stat").write_text("total_inactive_file 300\n")
    (blkio / "blkio.throttle.io_service_bytes_recursive").write_text(
        "8:0 Read 100\n8:0 Write 20\n8:0 Total 120\n259:0 Read 5\n259:0 Write 1\nTotal 126\n"
    )


WHOLE = Usage(2.5, 700.0, 105.0, 21.0)


@pytest.mark.parametrize(
    "where",
    [
        f"kubepods/pod{UID}",
        f"kubepods/burstable/pod{UID}",
        f"kubepods/besteffort/pod{UID}",
        f"node2/kubepods/burstable/pod{UID}",
        f"kubepods.slice/kubepods-pod{SYSTEMD_UID}.slice",
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD_UID}.slice",
        f"a.slice/a-kubepods.slice/a-kubepods-burstable.slice/a-kubepods-burstable-pod{SYSTEMD_UID}.slice",
    ],
)
def test_a_pod_is_found_by_its_uid_wherever_the_kubelet_puts_it(tmp_path: Path, where: str) -> None:
    (tmp_path / "v2").mkdir()
    pod = unified(tmp_path / "v2", where)
    groups = PodGroups(tmp_path / "v2")
    assert groups.find(UID) == (str(pod),)
    assert read_groups(groups.find(UID)) == WHOLE
    assert groups.processes(UID) == 3
    assert groups.find(OTHER) == ()
    assert groups.processes(OTHER) is None
    version_1(tmp_path / "v1", where)
    former = PodGroups(tmp_path / "v1")
    assert len(former.find(UID)) == 3
    assert read_groups(former.find(UID)) == WHOLE
    assert former.processes(UID) is None, "version 1 hides processes of other name spaces"


def test_a_pod_that_vanishes_is_forgotten_and_one_that_comes_is_found(tmp_path: Path) -> None:
    clock = Clock()
    groups = PodGroups(tmp_path, clock)
    assert groups.find(UID) == ()
    pod = unified(tmp_path, f"kubepods/pod{UID}")
    assert groups.find(UID) == (), "the kubelet's folder is searched for now and then"
    clock.now_s += ROOT_SECONDS
    assert groups.find(UID) == (str(pod),)
    shutil.rmtree(pod)
    assert groups.find(UID) == ()
    assert read_groups((str(pod),)) == Usage(None, None, None, None)
    unified(tmp_path, f"kubepods/burstable/pod{OTHER}")
    assert len(groups.find(OTHER)) == 1, "a new pod needs no new search"


@pytest.mark.parametrize(
    ("file", "text", "lost"),
    [
        ("cpu.stat", b"usage_usec many\n", "cpu_seconds"),
        ("cpu.stat", b"user_usec 1\n", "cpu_seconds"),
        ("memory.current", b"max\n", "memory_bytes"),
        ("memory.stat", b"\xff\xfe", "memory_bytes"),
        ("io.stat", b"8:0 rbytes=x wbytes=1\n", "read_bytes"),
        ("io.stat", b"8:0 rbytes=105 wbytes=\n", "write_bytes"),
    ],
)
def test_a_malformed_file_costs_its_own_value(
    tmp_path: Path, file: str, text: bytes, lost: str
) -> None:
    pod = unified(tmp_path, f"kubepods/pod{UID}")
    (pod / file).write_bytes(text)
    found = read_groups([str(pod)])
    assert getattr(found, lost) is None
    others = [name for name in ("cpu_seconds", "memory_bytes") if name != lost]
    assert all(getattr(found, name) == getattr(WHOLE, name) for name in others)


def test_a_group_that_has_read_nothing_yet_has_used_nothing(tmp_path: Path) -> None:
    pod = unified(tmp_path, f"kubepods/pod{UID}")
    (pod / "io.stat").write_text("")
    assert read_groups([str(pod)]).read_bytes == 0


def test_a_container_that_ends_meanwhile_has_no_processes(tmp_path: Path) -> None:
    pod = unified(tmp_path, f"kubepods/pod{UID}")
    (pod / "first" / "cgroup.procs").unlink()
    groups = PodGroups(tmp_path)
    assert groups.processes(UID) == 1
