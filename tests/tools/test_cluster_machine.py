"""What is done to this machine is found out beforehand, written down, and taken back."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.kit.kubernetes import REQUIRED, cannot, given_kubeconfig
from tools.cluster import cgroups, prerequisites, system
from tools.cluster.control_plane import is_free
from tools.cluster.layout import FOLDER_VARIABLE, Layout
from tools.cluster.nodes import remove_folder
from tools.cluster.prerequisites import CannotRunError


def test_without_root_the_error_has_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotRunError, match=r"(?s)need root.*KUBECONFIG"):
        prerequisites.check(Layout())


def test_missing_tools_are_reported_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prerequisites, "find", lambda tool: None if tool == "runc" else "/x")
    monkeypatch.setattr(prerequisites, "CNI_FOLDERS", (tmp_path,))
    assert prerequisites.missing_packages() == ["containernetworking-plugins", "runc"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(CannotRunError, match="apt-get install containernetworking-plugins runc"):
        prerequisites.check(Layout())


def test_nothing_is_installed_outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(prerequisites, "missing_packages", lambda: ["runc"])
    monkeypatch.setattr(prerequisites, "run", lambda *_: pytest.fail("nobody asked for that"))
    prerequisites.install_missing()


def test_switches_are_put_back_as_they_were_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = tmp_path / "kernel"
    kernel.mkdir()
    monkeypatch.setattr(system, "SWITCHES", tmp_path)
    (kernel / "panic").write_text("1\n")
    (kernel / "other").write_text("5\n")
    for _ in range(2):
        # The second start of a cluster finds what the first has set.
        switches = system.Switches(tmp_path / "switches.json")
        switches.remember({"kernel.panic": None, "kernel.other": "7", "kernel.absent": "1"})
        (kernel / "panic").write_text("10\n")
        assert system.switch("kernel.other") == 7
    system.Switches(tmp_path / "switches.json").restore()
    assert (system.switch("kernel.panic"), system.switch("kernel.other")) == (1, 5)
    assert not (tmp_path / "switches.json").exists()


def test_control_groups_inherit_their_processors_and_go_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On folders that look like version 1's; the kernel's own files come with a real one."""
    for name in ("cpuset", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to(tmp_path / "cpuset")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    assert cgroups.version() == 1
    assert [folder.name for folder in cgroups.hierarchies()] == ["cpuset", "memory"]
    cgroups.make("/shiftwork-cluster/node-1")
    cgroups.make("/shiftwork-cluster/node-2")
    assert (tmp_path / "memory/shiftwork-cluster/node-2").is_dir()
    assert cgroups.remove() == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        *("cgroup.procs", "cgroup.procs", "cpu", "cpuset", "memory")
    ]


def test_a_folder_with_a_mount_in_it_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    remove_folder(tmp_path / "in")
    assert not (tmp_path / "in").exists()
    with pytest.raises(RuntimeError, match="still mounted below /dev"):
        remove_folder(Path("/dev"))


def test_missing_prerequisites_skip_tests_unless_they_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no name spaces"):
        cannot(CannotRunError("no name spaces"))
    monkeypatch.setenv(REQUIRED, "required")
    with pytest.raises(pytest.fail.Exception, match="no name spaces"):
        cannot(CannotRunError("no name spaces"))


def test_the_kubeconfig_of_our_own_nodes_is_not_somebody_elses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    assert given_kubeconfig() is None
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "mine"))
    assert given_kubeconfig() == tmp_path / "mine"
    monkeypatch.delenv("KUBECONFIG")
    assert given_kubeconfig() is None


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_port_is_free_when_nobody_has_it_for_either_protocol(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)
