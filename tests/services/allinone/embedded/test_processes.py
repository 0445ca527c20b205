from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.allinone.embedded import processes
from services.allinone.embedded.processes import Launch, ServerError, Step

STEPS = (Step(signal.SIGTERM, 0.3), Step(signal.SIGKILL, 3))
# A "server" with a helper process that does not end with it.
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
time.sleep(60)
"""
HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
WITH_HELPER = "import os, time; os.fork(); time.sleep(60)"


def launch(home: Path, code: str, **options: object) -> Launch:
    return Launch(
        program=sys.executable,
        arguments=["-c", code],
        home=home,
        lock=home / "lock",
        log=home / "log",
        environment={"PATH": "/usr/bin:/bin"},
        **options,
    )


async def logged(log: Path, words: str) -> None:
    async with asyncio.timeout(10):
        while words not in processes.tail(log):  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)


async def test_steps_are_taken_until_one_works(tmp_path: Path) -> None:
    child = await processes.start(launch(tmp_path, STUBBORN), STEPS)
    await logged(tmp_path / "log", "on")
    await child.end(STEPS)
    assert child.ending == "was ended by signal SIGKILL"


async def test_ending_a_process_that_has_ended_does_nothing(tmp_path: Path) -> None:
    child = await processes.start(launch(tmp_path, "raise SystemExit(3)"), STEPS)
    async with asyncio.timeout(10):
        while child.alive:  # noqa: ASYNC110 - polled, as its owner does
            await asyncio.sleep(0.01)
    await child.end(STEPS)
    assert child.ending == "ended with status 3"


async def test_helpers_left_by_a_dead_server_are_ended_too(tmp_path: Path) -> None:
    """The server itself is gone; only the lock shows that some process of it still lives."""
    child = await processes.start(launch(tmp_path, WITH_HELPER), STEPS)
    async with asyncio.timeout(10):
        while not (helpers := psutil.Process(child.pid).children()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    child.kill_now()
    assert helpers[0].is_running()
    again = await processes.start(launch(tmp_path, "import time; time.sleep(60)"), STEPS)
    assert not helpers[0].is_running() or helpers[0].status() == psutil.STATUS_ZOMBIE
    assert again.alive
    await again.end(STEPS)


async def test_a_stranger_that_holds_the_lock_is_not_touched(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as stranger:
        try:
            stranger.stdout.readline()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(processes, "_LEFTOVER_SECONDS_MAX", 0.2)
                with pytest.raises(ServerError, match="not a server of ours"):
                    await processes.start(launch(tmp_path, "pass"), (Step(signal.SIGKILL, 0.1),))
            assert stranger.poll() is None
        finally:
            stranger.kill()


def holder(lock: Path) -> subprocess.Popen[bytes]:
    """Another program than the server's, and in another folder."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, cwd="/"
    )


async def test_stale_files_go_before_the_start(tmp_path: Path) -> None:
    stale = tmp_path / "stale.pid"
    stale.write_text("1")
    wanted = launch(
        tmp_path, "import os; print(os.path.exists('stale.pid'), flush=True)", stale=[stale]
    )
    child = await processes.start(wanted, STEPS)
    await logged(tmp_path / "log", "False")
    await child.end(STEPS)


async def test_a_program_that_cannot_run_frees_the_lock(tmp_path: Path) -> None:
    wrong = Launch("/nonexistent/server", [], tmp_path, tmp_path / "lock", tmp_path / "log")
    for _ in range(2):
        with pytest.raises(ServerError, match="cannot run /nonexistent/server"):
            await processes.start(wrong, STEPS)


def test_a_large_log_is_kept_once_and_a_new_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES_MAX", 100)
    log = tmp_path / "log"
    with log.open("ab") as server:
        server.write(b"a" * 90)
        server.flush()
        processes.rotate(log)
        assert not (tmp_path / "log.1").exists()
        server.write(b"b" * 60)
        server.flush()
        processes.rotate(log)
        server.write(b"c")
        server.flush()
    assert log.read_bytes() == b"c"
    assert (tmp_path / "log.1").read_bytes() == b"a" * 40 + b"b" * 60
    assert stat.S_IMODE((tmp_path / "log.1").stat().st_mode) == 0o600
    processes.rotate(tmp_path / "no-such-log")


def test_identity_is_of_a_process_and_not_of_a_number() -> None:
    assert processes.identity(os.getpid()) == processes.identity(os.getpid()) != []
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert processes.identity(gone.pid) == []
