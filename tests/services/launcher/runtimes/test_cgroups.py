"""Control groups, version 2: which group enables which controllers for its children. ``Kernel``
follows the kernel's rules on plain files; one test checks those rules against the real kernel,
with a controller that is left over where the others are in version 1."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.launcher.runtimes.node import cgroups

CONTROLS = ("cpu", "memory", "pids")


class Kernel:
    """A version 2 hierarchy below a folder. Files are plain; what a write does is done here."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        # The top of a container's view is a group like any other.
        self.is_container = False
        monkeypatch.setattr(cgroups, "_mkdir", self.mkdir)
        monkeypatch.setattr(cgroups, "_write", self.write)
        monkeypatch.setattr(cgroups, "_mounts", lambda: {"": str(top)})
        self.make(top)
        (top / "cgroup.controllers").write_text(" ".join(CONTROLS))

    def make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("procs", "subtree_control", "kill", "controllers", "events"):
            (folder / f"cgroup.{name}").write_text("")
        handed = set[str]()
        if folder != self.top:
            handed = set((folder.parent / "cgroup.subtree_control").read_text().split())
        (folder / "cgroup.controllers").write_text(" ".join(sorted(handed)))
        self.refresh(folder, handed)

    def refresh(self, folder: Path, handed: set[str]) -> None:
        for control, name in (("memory", "memory.max"), ("cpu", "cpu.max"), ("pids", "pids.max")):
            if control in handed:
                (folder / name).write_text("max")

    def mkdir(self, path: str) -> None:
        if not Path(path).exists():
            self.make(Path(path))

    def write(self, path: str, text: str) -> None:
        folder, name = Path(path).parent, Path(path).name
        if not Path(path).exists():
            raise FileNotFoundError(path)
        if name == "cgroup.procs":
            for each in self.top.rglob("cgroup.procs"):
                each.write_text("".join(f"{p}\n" for p in each.read_text().split() if p != text))
            if folder != self.top and (folder / "cgroup.subtree_control").read_text():
                raise OSError(errno.EBUSY, path)
            Path(path).write_text(Path(path).read_text() + f"{text}\n")
        elif name == "cgroup.subtree_control":
            control = text.removeprefix("+")
            if control not in (folder / "cgroup.controllers").read_text().split():
                raise FileNotFoundError(errno.ENOENT, path)
            ruled = self.is_container or folder != self.top
            if ruled and (folder / "cgroup.procs").read_text().strip():
                raise OSError(errno.EBUSY, path)
            handed = {*Path(path).read_text().split(), control}
            Path(path).write_text(" ".join(sorted(handed)))
            for child in folder.iterdir():
                if child.is_dir():
                    (child / "cgroup.controllers").write_text(" ".join(sorted(handed)))
                    self.refresh(child, handed)
        else:
            Path(path).write_text(text)

    def hand_down(self, *folders: Path) -> None:
        for folder in folders:
            for control in CONTROLS:
                self.write(f"{folder}/cgroup.subtree_control", f"+{control}")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path / "cgroup", monkeypatch)


@pytest.fixture
def inside(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts the platform (process 7) into a group; returns its folder."""

    def put(own: str, *, delegated: str = "") -> Path:
        folder = kernel.top
        for part in own.strip("/").split("/"):
            if part:
                kernel.hand_down(folder)
                folder /= part
                kernel.make(folder)
        (folder / "cgroup.procs").write_text("7\n")
        monkeypatch.setattr(cgroups, "_own", lambda: {"": own})
        marked = str(kernel.top) + delegated

        def xattr(path: str, name: str) -> bytes:
            if delegated and path == marked and name == "user.delegate":
                return b"1"
            raise OSError(errno.ENODATA, path)

        monkeypatch.setattr(os, "getxattr", xattr)
        return folder

    return put


def limits_of(found: cgroups.Cgroups) -> tuple[str, str, str]:
    """A rank's limits, as they stand in its group."""
    (folder,) = found.create("run.1.0", cpus=1.5, memory_bytes=1 << 30)
    files = ("memory.max", "cpu.max", "pids.max")
    memory, cpu, pids = (Path(folder, name).read_text() for name in files)
    return memory, cpu, pids


ALL = (str(1 << 30), "150000 100000", "500")


def test_a_unit_without_a_subgroup_is_left_as_it_is(inside: Callable[..., Path]) -> None:
    """systemd could not start it again in a group that enables memory for its children."""
    unit = inside("/system.slice/shiftwork.service", delegated="/system.slice/shiftwork.service")
    found = cgroups.find("node", 500)
    assert not found.can_limit
    assert any("systemd unit" in warning for warning in found.warnings)
    assert (unit / "cgroup.procs").read_text() == "7\n"


def test_limits_are_enforced_beside_the_subgroup_that_systemd_made(
    inside: Callable[..., Path],
) -> None:
    own = inside("/u.service/shiftwork-services", delegated="/u.service")
    found = cgroups.find("node", 500)
    assert limits_of(found) == ALL
    assert (own / "cgroup.procs").read_text() == "7\n"
    assert Path(found.unified) == own.parent / "node"


def test_limits_are_enforced_in_a_container(kernel: Kernel, inside: Callable[..., Path]) -> None:
    """The top group of a container resembles the root group, but follows the rules of any other."""
    kernel.is_container = True
    inside("/")
    found = cgroups.find("node", 500)
    assert limits_of(found) == ALL
    assert (kernel.top / "shiftwork-services/cgroup.procs").read_text() == "7\n"


def test_a_second_node_finds_what_the_first_has_arranged(inside: Callable[..., Path]) -> None:
    inside("/")
    cgroups.find("one", 500)
    assert limits_of(cgroups.find("two", 500)) == ALL


def test_a_group_that_is_not_ours_is_left_as_it_is(inside: Callable[..., Path]) -> None:
    """A terminal's: other people's processes are in it, and nobody gave it to us."""
    own = inside("/user.slice/session-1.scope")
    found = cgroups.find("node", 500)
    assert not found.can_limit
    assert any("systemd unit" in warning for warning in found.warnings)
    assert (own / "cgroup.procs").read_text() == "7\n"
    (folder,) = found.create("run.1.0", cpus=1.5, memory_bytes=1 << 30)
    assert not (Path(folder) / "pids.max").exists()


def test_a_probe_moves_no_process(kernel: Kernel, inside: Callable[..., Path]) -> None:
    kernel.is_container = True
    inside("/")
    assert cgroups.find("doctor", 500, probe=True).can_limit
    assert (kernel.top / "cgroup.procs").read_text() == "7\n"


@pytest.fixture
def real_group() -> Iterator[tuple[Path, str]]:
    """A real group with a process in it, and a controller that it may hand down."""
    mounts = cgroups._mounts()
    top = Path(mounts.get("", "/nowhere"))
    controls = top / "cgroup.controllers"
    free = controls.read_text().split() if controls.exists() else []
    control = next((each for each in ("memory", "hugetlb") if each in free), "")
    if os.getuid() != 0 or not control or not os.access(top / "cgroup.procs", os.W_OK):
        pytest.skip("no writable version 2 hierarchy with a domain controller")
    base = top / f"shiftwork-test-{os.getpid()}"
    before = (top / "cgroup.subtree_control").read_text().split()
    (top / "cgroup.subtree_control").write_text(f"+{control}")
    base.mkdir()
    child = subprocess.Popen(["sleep", "60"])
    (base / "cgroup.procs").write_text(str(child.pid))
    yield base, control
    child.kill()
    child.wait()
    for folder in sorted(base.rglob("*/"), reverse=True):
        folder.rmdir()
    base.rmdir()
    if control not in before:
        (top / "cgroup.subtree_control").write_text(f"-{control}")


def test_the_real_kernel_enables_controllers_once_the_processes_are_moved(
    real_group: tuple[Path, str],
) -> None:
    base, control = real_group
    pids = (base / "cgroup.procs").read_text()
    node = Path(cgroups._make(str(base), "node", ("cgroup.kill",)))
    hand_down = cgroups._hand_down
    assert not hand_down(control, str(base), str(node), may_move=False, probe=False)
    assert hand_down(control, str(base), str(node), may_move=True, probe=True)
    assert (base / "cgroup.procs").read_text() == pids
    assert hand_down(control, str(base), str(node), may_move=True, probe=False)
    assert (base / "shiftwork-services/cgroup.procs").read_text() == pids
    rank = node / "run.1.0"
    rank.mkdir()
    assert control in (rank / "cgroup.controllers").read_text().split()
