"""Who keeps a data folder, and how the last one ended."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from shiftwork.cli.failures import Failure

from services.allinone import doctor, keep
from services.allinone.place import Ended, Keeper, Options, Place, url_at

KILLED = """
import os, signal, sys
from pathlib import Path
from services.allinone.place import Keeper, Place
place = Place(Path(sys.argv[1]))
place.take()
place.tell(Keeper(os.getpid(), "http://127.0.0.1:1", ready=True))
os.kill(os.getpid(), signal.SIGKILL)
"""


def running(place: Place) -> list[tuple[str, str]]:
    """What ``doctor`` finds about that."""
    return [(found.level, found.what) for found in doctor._running(place)]


def test_who_was_asked_to_end_left_nothing_to_say(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    assert running(place) == [("ok", f"not running: shiftwork up --data {place.data}")]
    place.take()
    assert place.keeper() is None
    assert running(place) == [("warn", "starting, or ending")]
    place.tell(Keeper(7, "http://127.0.0.1:1"))
    assert place.keeper() == Keeper(7, "http://127.0.0.1:1")
    place.release()
    assert place.ended() is None
    assert running(place) == [("ok", f"not running: shiftwork up --data {place.data}")]


def test_a_crash_is_remembered_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")

    async def crash(*_: object) -> int:
        raise ExceptionGroup(
            "tasks", [OSError(28, "No space left on device"), ValueError("x" * 999)]
        )

    monkeypatch.setattr(keep, "_keep", crash)
    with pytest.raises(ExceptionGroup):
        keep.keep_here(place, Options(port=0, tasks_as_root=True))
    ((level, text),) = running(place)
    assert level == "bad"
    assert text.startswith("crashed: OSError: [Errno 28] No space left on device; ValueError: xxx")

    async def refused(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keep, "_keep", refused)
    with pytest.raises(Failure):
        keep.keep_here(place, Options(port=0, tasks_as_root=True))
    assert running(place) == [("bad", "crashed: [Errno 28] No space left on device")]
    # The next start is not taken for the crash.
    place.take()
    assert running(place) == [("warn", "starting, or ending")]
    place.release()
    assert running(place) == [("ok", f"not running: shiftwork up --data {place.data}")]


def test_who_was_killed_is_missed(tmp_path: Path) -> None:
    place = Place(tmp_path / "data")
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(place.data)])
    child.wait()
    assert place.ended() == Ended(child.pid, "")
    ((level, text),) = running(place)
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


def test_a_free_port_is_the_one_that_a_killed_keeper_had(tmp_path: Path) -> None:
    """Its tasks still ask there, for example whether to leave."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        place = Place(tmp_path / "data")
        place.take()
        assert place.port_for(Options(port=0)) == 0
        place.tell(Keeper(7, f"http://127.0.0.1:{port}", ready=True))
        lock = (place.data / "up.lock").read_bytes()
        place.release()
        (place.data / "up.lock").write_bytes(lock)
        place.take()
        assert place.port_for(Options(port=0)) == 0
    assert place.port_for(Options(port=0)) == port
    assert place.port_for(Options(port=8642)) == 8642
    place.release()
    place.take()
    assert place.port_for(Options(port=0)) == 0
    place.release()
