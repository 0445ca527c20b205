"""Which process supervises a data folder, and how the last one ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from shiftwork.cli.failures import Failure

from services.allinone import doctor, platform_process
from services.allinone.composition import GATEWAY, WIRINGS, environment_of
from services.allinone.data_folder import (
    DataFolder,
    Ended,
    FolderInUseError,
    Holder,
    Options,
    url_at,
)
from services.allinone.machine import Machine

KILLED = """
import os, signal, sys
from pathlib import Path
from services.allinone.data_folder import DataFolder, Holder
data_folder = DataFolder(Path(sys.argv[1]))
data_folder.take()
data_folder.report(Holder(os.getpid(), "http://127.0.0.1:1", ready=True))
os.kill(os.getpid(), signal.SIGKILL)
"""


def running(data_folder: DataFolder) -> list[tuple[str, str]]:
    """What ``doctor`` finds about that."""
    return [(found.level, found.what) for found in doctor._running(data_folder)]


def test_a_supervisor_that_was_asked_to_end_leaves_no_record(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    assert running(data_folder) == [("ok", f"not running: shiftwork up --data {data_folder.data}")]
    data_folder.take()
    assert data_folder.holder() is None
    assert running(data_folder) == [("warn", "starting, or ending")]
    data_folder.report(Holder(7, "http://127.0.0.1:1"))
    assert data_folder.holder() == Holder(7, "http://127.0.0.1:1")
    data_folder.release()
    assert data_folder.ended() is None
    assert running(data_folder) == [("ok", f"not running: shiftwork up --data {data_folder.data}")]


def test_a_crash_is_remembered_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_folder = DataFolder(tmp_path / "data")

    async def crash(*_: object) -> int:
        raise ExceptionGroup(
            "tasks", [OSError(28, "No space left on device"), ValueError("x" * 999)]
        )

    monkeypatch.setattr(platform_process, "_keep", crash)
    with pytest.raises(ExceptionGroup):
        platform_process.keep_here(data_folder, Options(port=0, tasks_as_root=True))
    ((level, text),) = running(data_folder)
    assert level == "bad"
    assert text.startswith("crashed: OSError: [Errno 28] No space left on device; ValueError: xxx")

    async def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(platform_process, "_keep", refused)
    with pytest.raises(Failure):
        platform_process.keep_here(data_folder, Options(port=0, tasks_as_root=True))
    assert running(data_folder) == [("bad", "crashed: [Errno 28] No space left on device")]
    # The next start is not taken for the crash.
    data_folder.take()
    assert running(data_folder) == [("warn", "starting, or ending")]
    data_folder.release()
    assert running(data_folder) == [("ok", f"not running: shiftwork up --data {data_folder.data}")]


def test_a_killed_supervisor_is_reported(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(data_folder.data)])
    child.wait()
    assert data_folder.ended() == Ended(child.pid, "")
    ((level, text),) = running(data_folder)
    assert level == "bad"
    assert f"process {child.pid} was killed" in text


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8642"),
        ("0.0.0.0", "http://127.0.0.1:8642"),
        ("::", "http://[::1]:8642"),
        ("::1", "http://[::1]:8642"),
        ("gpu-server", "http://gpu-server:8642"),
    ],
)
def test_the_url_of_a_platform_is_one_that_this_machine_reaches(host: str, url: str) -> None:
    assert url_at(host, 8642) == url


def test_a_free_port_is_the_one_that_a_killed_supervisor_had(tmp_path: Path) -> None:
    """The tasks still poll that port, for example whether to leave."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        data_folder = DataFolder(tmp_path / "data")
        data_folder.take()
        assert data_folder.port_for(Options(port=0)) == 0
        data_folder.report(Holder(7, f"http://127.0.0.1:{port}", ready=True))
        lock = (data_folder.data / "up.lock").read_bytes()
        data_folder.release()
        (data_folder.data / "up.lock").write_bytes(lock)
        data_folder.take()
        assert data_folder.port_for(Options(port=0)) == 0
    assert data_folder.port_for(Options(port=0)) == port
    assert data_folder.port_for(Options(port=8642)) == 8642
    data_folder.release()
    data_folder.take()
    assert data_folder.port_for(Options(port=0)) == 0
    data_folder.release()


def test_a_folder_that_was_borrowed_knows_how_its_last_holder_ended(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    with data_folder.borrowed("a backup"):
        assert data_folder.is_kept()
        assert data_folder.step() == "a backup"
    assert data_folder.ended() is None
    subprocess.run([sys.executable, "-c", KILLED, str(data_folder.data)], check=False)
    before = data_folder.ended()
    assert before is not None
    with data_folder.borrowed("a backup"), pytest.raises(FolderInUseError):
        DataFolder(data_folder.data).take()
    assert data_folder.ended() == before
    # The next start answers where the one that was killed did.
    data_folder.take()
    assert data_folder.port_for(Options(port=0)) == 1
    data_folder.release()


@pytest.mark.parametrize(("option", "setting"), [(None, None), ("own", "own")])
def test_the_option_visibility_is_the_gateways_setting(
    tmp_path: Path, option: str | None, setting: str | None
) -> None:
    """Without the option the environment or the default counts."""
    urls = {wiring.name: "postgresql://" for wiring in WIRINGS}
    data_folder, options = DataFolder(tmp_path), Options(visibility=option)
    machine = Machine(data_folder, options, "nats://127.0.0.1", urls, "http://127.0.0.1")
    assert environment_of(GATEWAY, machine).get("SHIFTWORK_GATEWAY_VISIBILITY") == setting
