"""Pictures that are refreshed in place, and results that go through a pager, on a real
pseudo-terminal.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pyte
import pytest

from tests.libs.sdk.cli.server import CliServer, a_task, problem
from tests.libs.sdk.cli.test_submit import MAIN, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server

# The pseudo-terminal is the one that the process gets its signals from; pictures come often.
QUICK = (
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    "from shiftwork.cli import client, watch; watch.SECONDS, watch.SECONDS_MIN = 0.2, 0.1;"
    "client.TRIES = client.Tries(wait_seconds=0.01);"
)
WAIT_SECONDS = 20.0
# What restores a terminal's main screen.
MAIN_SCREEN = b"\x1b[?1049l"


class Window:
    """A process on a pseudo-terminal, with what a person sees of it."""

    def __init__(self, env: dict[str, str], *arguments: str, rows: int, columns: int) -> None:
        self.outer, inner = pty.openpty()
        self._resize(rows, columns)
        self.before = termios.tcgetattr(self.outer)
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.data = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", QUICK + MAIN, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=env,
            start_new_session=True,
        )
        os.close(inner)

    def _resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.outer, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        self._resize(rows, columns)

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.screen.display)

    def until(self, seen: Callable[[str], bool]) -> str:
        until = time.monotonic() + WAIT_SECONDS
        while not seen(self.text):
            assert time.monotonic() < until, self.text
            self._read(0.1)
        return self.text

    def _read(self, seconds: float) -> bool:
        if not select.select([self.outer], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.outer, 65_536)
        except OSError:
            return False
        self.data += piece
        self._stream.feed(piece)
        return bool(piece)

    def type(self, keys: bytes) -> None:
        os.write(self.outer, keys)

    def ended(self) -> int:
        while self._read(WAIT_SECONDS):
            pass
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture
def window(home: Path, server: CliServer) -> Iterator[Callable[..., Window]]:
    opened: list[Window] = []

    def open_one(*arguments: str, rows: int = 24, columns: int = 80, **env: str) -> Window:
        given = environment(home, server) | {"TERM": "xterm-256color", **env}
        for name in ("COLUMNS", "LINES", "PAGER", "SHIFTWORK_PAGER", "LESS"):
            if name not in env:
                given.pop(name, None)
        opened.append(Window(given, *arguments, rows=rows, columns=columns))
        return opened[-1]

    yield open_one
    for each in opened:
        each.process.kill()
        each.process.wait()
        with contextlib.suppress(OSError):
            os.close(each.outer)


def running(server: CliServer, count: int = 1) -> None:
    for number in range(count):
        task_id = f"t{number:03d}"
        values = {"values": {"step": 40 + number, "loss": 0.25}, "at": None}
        server.tasks[task_id] = a_task(
            task_id, name=f"train-{number}", state="running", progress=values
        )


# --- top ---------------------------------------------------------------------------------------


def test_top_refreshes_in_place_and_ends_with_q(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server)
    server.tasks["t999"] = a_task("t999", name="later")
    shown = window("top")
    text = shown.until(lambda text: "step 40" in text)
    assert "GPUS USED" in text
    assert "default" in text
    assert "waits for 1 GPU" in text
    # What runs stands above what waits.
    assert text.index("train-0") < text.index("later")
    server.tasks["t000"]["progress"]["values"]["step"] = 41
    shown.until(lambda text: "step 41" in text and "step 40" not in text)
    shown.type(b"q")
    assert shown.ended() == 0
    assert shown.data.endswith(MAIN_SCREEN)


@pytest.mark.slow
def test_a_picture_asks_little_of_the_server(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server)
    shown = window("top")
    shown.until(lambda text: "step 40" in text)
    shown.type(b"q")
    shown.ended()
    paths = {each.path for each in server.seen}
    assert paths == {"/v1/groups", "/v1/tasks", "/v1/utilization"}
    asked = [each.query for each in server.seen if each.path == "/v1/tasks"]
    assert {query["mine"] for query in asked} == {"true"}
    # Those that hold nodes, then the others, as far as there is place.
    assert {(query["state"].split(",")[0], int(query["limit"]) <= 100) for query in asked} == {
        ("running", True),
        ("queued", True),
    }


def test_ctrl_c_restores_the_terminal(window: Callable[..., Window], server: CliServer) -> None:
    running(server)
    shown = window("top", "-A")
    shown.until(lambda text: "step 40" in text)
    during = termios.tcgetattr(shown.outer)
    assert not during[3] & termios.ECHO
    shown.type(b"\x03")
    assert shown.ended() == 130
    assert MAIN_SCREEN in shown.data
    assert shown.data.count(b"\x1b[?25h") == shown.data.count(b"\x1b[?25l")
    assert termios.tcgetattr(shown.outer)[3] == shown.before[3]
    assert "mine" not in server.asked("GET", "/v1/tasks").query


@pytest.mark.slow
def test_a_terminated_picture_restores_the_terminal(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server)
    shown = window("top")
    shown.until(lambda text: "step 40" in text)
    shown.process.send_signal(signal.SIGTERM)
    assert shown.ended() == 128 + signal.SIGTERM
    assert MAIN_SCREEN in shown.data
    assert termios.tcgetattr(shown.outer)[3] == shown.before[3]


@pytest.mark.slow
def test_a_picture_keeps_the_size_of_the_window(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server, 30)
    shown = window("top", rows=12)
    text = shown.until(lambda text: "more lines: make the window taller" in text)
    assert "GROUP" in text
    shown.resize(50, 120)
    shown.until(lambda text: "train-29" in text and "train-0" in text and "SIZE" in text)


@pytest.mark.slow
def test_a_server_that_is_away_is_noted_and_comes_back(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server)
    shown = window("top")
    shown.until(lambda text: "step 40" in text)
    busy = problem(503, "unavailable", "the gateway is starting")
    server.first["GET", "/v1/groups"] = [busy] * 30
    text = shown.until(lambda text: "the gateway is starting" in text)
    assert "trying again" in text
    assert "step 40" in text
    server.first.clear()
    server.tasks["t000"]["progress"]["values"]["step"] = 42
    shown.until(lambda text: "step 42" in text and "trying again" not in text)


@pytest.mark.slow
def test_a_refusal_ends_the_picture(window: Callable[..., Window], server: CliServer) -> None:
    running(server)
    shown = window("top")
    shown.until(lambda text: "step 40" in text)
    server.first["GET", "/v1/groups"] = [problem(401, "unauthenticated", "this token is gone")]
    assert shown.ended() == 1
    assert b"this token is gone" in shown.data.rpartition(MAIN_SCREEN)[2]


def test_top_without_a_terminal_is_one_picture(shiftwork: Shiftwork, server: CliServer) -> None:
    running(server)
    done = shiftwork("top")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert done.out.splitlines()[1].split() == ["default", "1", "3", "4", "1", "1", "2", "7"]
    document = shiftwork("top", "--json").json
    assert [each["id"] for each in document["tasks"]] == ["t000"]
    assert (document["groups"][0]["waiting"], document["more_tasks"]) == (7, False)
    assert shiftwork("top", "--once").out == done.out


# --- --watch -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [("ls", "--watch"), ("queue", "-w"), ("nodes", "--watch"), ("show", "t000", "-w")]
)
@pytest.mark.slow
def test_lists_are_refreshed(
    window: Callable[..., Window], server: CliServer, command: tuple[str, ...]
) -> None:
    running(server)
    server.tasks["t000"]["state"] = "queued"
    node: dict[str, Any] = {"group": "default", "gpus": 2, "free_gpus": 1, "ready": True}
    server.nodes.append({"id": "n0", "tasks": [], "schedulable": True, **node})
    shown = window(*command)
    shown.until(lambda text: "train-0" in text or "n0" in text)
    server.tasks["t000"]["name"] = "renamed"
    server.nodes[0]["id"] = "renamed"
    text = shown.until(lambda text: "renamed" in text)
    assert text.startswith("Every 0.2s: shiftwork")
    shown.type(b"q")
    assert shown.ended() == 0


@pytest.mark.slow
def test_a_first_picture_that_fails_prints_the_failure(window: Callable[..., Window]) -> None:
    shown = window("show", "nobody", "--watch")
    assert shown.ended() == 1
    assert b"there is no task 'nobody'" in shown.data
    assert b"\x1b[?1049h" not in shown.data


@pytest.mark.slow
def test_no_token_is_part_of_a_picture(window: Callable[..., Window], server: CliServer) -> None:
    running(server)
    shown = window("ls", "--token", "swt_a-very-secret-token", "--watch", "--mine")
    text = shown.until(lambda text: "train-0" in text)
    assert "shiftwork ls --mine" in text
    assert b"swt_" not in shown.data


def test_watch_with_json_prints_a_line_for_each_change(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(server)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            server.tasks["t000"]["state"] = "paused"
        if len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("shiftwork.cli.watch.time.sleep", pause)
    done = shiftwork("ls", "--watch", "--json", "--interval", "3")
    assert (done.code, pauses) == (130, [3.0] * 4)
    states = [json.loads(line)["items"][0]["state"] for line in done.out.splitlines()]
    assert states == ["running", "paused"]


# --- the pager ---------------------------------------------------------------------------------


@pytest.fixture
def pager(tmp_path: Path) -> tuple[str, Path]:
    """A pager that notes what it gets."""
    got, program = tmp_path / "got", tmp_path / "a pager"
    program.write_text(f"#!/bin/sh\necho paged\ncat > '{got}'\n")
    program.chmod(0o755)
    return f"'{program}' -x", got


def test_a_long_list_goes_through_the_pager(
    window: Callable[..., Window], server: CliServer, pager: tuple[str, Path]
) -> None:
    running(server, 60)
    shown = window("ls", "--limit", "50", SHIFTWORK_PAGER=pager[0], PAGER="false")
    assert shown.ended() == 0
    assert b"paged" in shown.data
    lines = pager[1].read_text().splitlines()
    assert len(lines) == 51
    assert "train-59" in lines[1]
    # Notes come after it.
    assert shown.data.rstrip().endswith(b"more than 50: raise --limit")


@pytest.mark.parametrize("arguments", [("ls", "--no-pager"), ("ls", "--limit", "5")])
@pytest.mark.slow
def test_no_pager_when_it_is_not_wanted_or_not_needed(
    window: Callable[..., Window],
    server: CliServer,
    pager: tuple[str, Path],
    arguments: tuple[str, ...],
) -> None:
    running(server, 60)
    shown = window(*arguments, PAGER=pager[0])
    assert shown.ended() == 0
    assert b"train-59" in shown.data
    assert not pager[1].exists()


@pytest.mark.slow
def test_long_output_of_a_task_is_paged_unless_it_is_followed(
    window: Callable[..., Window], server: CliServer, pager: tuple[str, Path]
) -> None:
    running(server)
    server.tasks["t000"]["state"] = "succeeded"
    server.write(1, 0, b"".join(b"line %d\n" % number for number in range(60)))
    assert window("logs", "t000", "-f", PAGER=pager[0]).ended() == 0
    assert not pager[1].exists()
    assert window("logs", "t000", PAGER=pager[0]).ended() == 0
    assert pager[1].read_text().splitlines()[-1] == "line 59"


@pytest.mark.slow
def test_a_pager_that_is_left_ends_the_command(
    window: Callable[..., Window], server: CliServer
) -> None:
    running(server)
    server.tasks["t000"]["state"] = "succeeded"
    server.write(1, 0, b"a line of output\n" * 50_000)
    shown = window("logs", "t000", PAGER="head -n 3")
    assert shown.ended() == 0
    assert b"Traceback" not in shown.data
    assert shown.data.count(b"a line of output") == 3


@pytest.mark.slow
def test_a_pager_that_is_missing_is_named(window: Callable[..., Window], server: CliServer) -> None:
    running(server, 60)
    shown = window("ls", PAGER="no-such-pager")
    assert shown.ended() == 0
    assert b"PAGER=no-such-pager: there is no such program" in shown.data
    assert b"train-59" in shown.data
