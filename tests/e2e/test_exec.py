"""Terminals and commands in running tasks by the real program, with a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]
RUNNING = ("--gpus-per-node", "1", "--preempt", "kill")


@pytest.fixture
def task(shiftwork: Shiftwork) -> str:
    found = shiftwork.submit("--nodes", "2", *RUNNING, "--", "sleep", "600")
    shiftwork.wait(found, "running")
    return found


def run(
    shiftwork: Shiftwork, *arguments: str, data: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        shiftwork.command(*arguments),
        env={"PATH": os.environ["PATH"], "HOME": str(shiftwork.home)},
        input=data,
        capture_output=True,
        timeout=40,
        check=False,
    )


def audited(shiftwork: Shiftwork, task: str) -> list[tuple[str, str, str]]:
    """The entries about sessions of a task, the oldest first."""
    token = (shiftwork.data / "admin-token").read_text().strip()
    url = shiftwork.good("context", "show", "--json").json["url"]
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        items = client.get("/v1/audit", params={"limit": 1000}).json()["items"]
    found = [each for each in items if each["target"] == task and "exec" in each["action"]]
    return [(each["action"], each["who"], each["detail"]) for each in reversed(found)]


def test_pipes_carry_data_and_the_exit_code_is_the_commands(
    shiftwork: Shiftwork, task: str
) -> None:
    data = os.urandom(2_000_000)
    done = run(shiftwork, "exec", task, "--", "cat", data=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")
    line = "echo rank $SHIFTWORK_RANK of $SHIFTWORK_TASK; echo error >&2; exit 7"
    done = run(shiftwork, "exec", task, "--rank", "1", "--", "sh", "-c", line)
    assert (done.returncode, done.stderr) == (7, b"error\n")
    assert done.stdout.decode() == f"rank 1 of {task}\n"
    done = run(
        shiftwork, "exec", task, "--role", "worker", "--rank", "1", "--", "sh", "-c", "kill $$"
    )
    assert done.returncode == 128 + signal.SIGTERM


def test_what_cannot_be_opened_has_a_code_of_its_own_and_a_reason(
    shiftwork: Shiftwork, task: str
) -> None:
    for arguments, reason in (
        ((task, "--rank", "2"), "no rank 2"),
        ((task, "--role", "chief"), "no role chief"),
        (("nobody",), "there is no task 'nobody'"),
    ):
        done = shiftwork("exec", *arguments, "--", "true")
        assert (done.code, reason in done.err) == (255, True), done
    queued = shiftwork.submit("--gpus-per-node", "2", "--nodes", "2", "--", "true")
    done = shiftwork("exec", queued, "--", "true")
    assert (done.code, "does not run" in done.err) == (255, True), done
    shiftwork.good("stop", task)
    shiftwork.wait(task, "stopped")
    done = shiftwork("exec", task, "--", "true")
    assert (done.code, "is stopped; nothing of it runs" in done.err) == (255, True), done
    assert shiftwork("exec", task, "--rank", "-1").code == 2


class Screen:
    """``shiftwork exec`` on a pseudo-terminal."""

    def __init__(self, shiftwork: Shiftwork, *arguments: str) -> None:
        self.outer, inner = pty.openpty()
        self.resize(24, 80)
        self.inner = inner
        self.before = termios.tcgetattr(inner)
        self.process = subprocess.Popen(
            shiftwork.command("exec", *arguments),
            env={"PATH": os.environ["PATH"], "HOME": str(shiftwork.home), "TERM": "vt220"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - a terminal has to be its own
        )
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.outer, text.encode())

    def until(self, text: str, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.outer], [], [], 0.1)[0]:
                self.seen += os.read(self.outer, 65536)

    def ended(self) -> int:
        """The exit code, with the terminal as it was before."""
        code = self.process.wait(20)
        assert termios.tcgetattr(self.inner) == self.before
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.outer)
        os.close(self.inner)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    made: list[Screen] = []
    yield made
    for each in made:
        each.close()


def test_a_terminal_is_one_in_every_respect(
    shiftwork: Shiftwork, task: str, screens: list[Screen]
) -> None:
    screen = Screen(shiftwork, task, "--", "sh")
    screens.append(screen)
    screen.type("stty size; tty; echo $TERM is$SHIFTWORK_RANK\n")
    for text in ("24 80", "/dev/pts/", "vt220 is0"):
        screen.until(text)
    screen.resize(50, 120)
    time.sleep(0.3)
    screen.type("stty size\n")
    screen.until("50 120")
    screen.type("sleep 600\n")
    time.sleep(0.3)
    screen.type("\x03")
    screen.type("echo code $?\n")
    screen.until("code 130")
    screen.type("exit 5\n")
    assert screen.ended() == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal_and_leaves_nothing(
    shiftwork: Shiftwork, task: str, screens: list[Screen], tmp_path: Path, number: int
) -> None:
    alive = tmp_path / "pid"
    screen = Screen(
        shiftwork, task, "--", "sh", "-c", f"echo $$ > {alive}; echo o''n; sleep 600; :"
    )
    screens.append(screen)
    screen.until("on")
    pid = int(alive.read_text())
    screen.process.send_signal(number)
    assert screen.ended() == 128 + number
    gone(pid)


def gone(pid: int, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, f"process {pid} is left"
        time.sleep(0.02)


def test_a_session_ends_with_its_task_and_the_terminal_is_restored(
    shiftwork: Shiftwork, task: str, screens: list[Screen]
) -> None:
    screen = Screen(shiftwork, task, "--", "sh", "-c", "echo o''n; sleep 600; :")
    screens.append(screen)
    screen.until("on")
    shiftwork.good("stop", task, "--now")
    shiftwork.wait(task, "stopped")
    assert screen.ended() == 128 + signal.SIGKILL


def test_only_the_owner_and_administrators_open_sessions_and_each_is_audited(
    shiftwork: Shiftwork, task: str, tmp_path: Path
) -> None:
    shiftwork.good("user", "add", "mallory")
    token = shiftwork.good("token", "create", "--user", "mallory", "-q").out.split()[-1]
    done = shiftwork("--token", token, "exec", task, "--", "true")
    assert (done.code, "mallory may not open a session" in done.err) == (255, True), done
    hers = shiftwork.good("--token", token, "submit", *RUNNING, "--", "sleep", "600").out.strip()
    shiftwork.wait(hers, "running")
    done = shiftwork("--token", token, "exec", hers, "--", "sh", "-c", "exit 3")
    assert done.code == 3
    secret = "hunter-2"
    shiftwork("exec", hers, "--", "echo", "--password", secret, f"API_KEY={secret}", "x")
    found = audited(shiftwork, task)
    assert [(what, who) for what, who, _ in found] == [("task.exec", "mallory")]
    entries = audited(shiftwork, hers)
    assert [(what, who) for what, who, _ in entries] == [
        ("task.exec", "mallory"),
        ("task.exec.end", "mallory"),
        ("task.exec", "admin"),
        ("task.exec.end", "admin"),
    ]
    assert "attempt 1, rank 0 on local-" in entries[0][2]
    assert entries[0][2].endswith("sh with 2 arguments")
    assert entries[1][2].endswith("exit code 3")
    assert entries[2][2].endswith("echo with 4 arguments")
    assert secret not in str(entries)
