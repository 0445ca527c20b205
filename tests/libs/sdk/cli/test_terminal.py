"""Following a task on a terminal shows every line of output, whatever else is drawn.

The command line runs on a pseudo-terminal. A terminal emulator shows what is on the screen and
what has scrolled off it.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING

import pyte
import pytest

from tests.libs.sdk.cli.server import CliServer, an_exit
from tests.libs.sdk.cli.test_submit import MAIN, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.server

COLUMNS = 80
# What the server calls the first task.
ID = "taaaaa"
EVENT = "10:00:00.123  "
# How long the other end of the pseudo-terminal takes for what it has got, so that bars are drawn.
PAUSE = 0.05
LONG = "long " + "".join(f"{number:04d}-" for number in range(50))
WIDE = "wide " + "\u5b57" * 60 + " \U0001f680 e\u0301 end"


def rows(data: bytes, height: int) -> list[str]:
    """Everything that a terminal shows of the bytes, with what scrolled off it."""
    screen = pyte.HistoryScreen(COLUMNS, height, history=10_000, ratio=0.5)
    pyte.ByteStream(screen).feed(data)
    scrolled = ["".join(line[x].data for x in range(COLUMNS)) for line in screen.history.top]
    return [row.rstrip() for row in [*scrolled, *screen.display] if row.strip()]


class Terminal:
    """``shiftwork`` with arguments on a pseudo-terminal."""

    def __init__(self, home: Path, server: CliServer) -> None:
        self._environment = environment(home, server) | {"TERM": "xterm-256color"}
        self._environment.pop("COLUMNS", None)
        self._environment.pop("LINES", None)

    def __call__(self, *arguments: str, height: int = 24) -> list[str]:
        outer, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, COLUMNS, 0, 0))
        command = [sys.executable, "-c", MAIN, *arguments]
        process = subprocess.Popen(
            command, stdin=inner, stdout=inner, stderr=inner, env=self._environment
        )
        os.close(inner)
        self.data = b""
        try:
            while piece := _read(outer):
                self.data += piece
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            os.close(outer)
        return rows(self.data, height)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux: the other end is closed
        return b""


@pytest.fixture
def terminal(home: Path, server: CliServer) -> Terminal:
    return Terminal(home, server)


def split(shown: Sequence[str]) -> tuple[list[str], list[str]]:
    """The program's rows and the rows of the events."""
    events = [row.partition(EVENT)[2] for row in shown if EVENT in row]
    return [row for row in shown if EVENT not in row], events


def bar(server: CliServer, attempt: int, rank: int, name: str, end: str = "\n") -> None:
    """A progress bar, as tqdm writes it."""
    for number in range(5):
        server.write(attempt, rank, f"\r{name} {number * 25:3d}%|{'#' * number}".encode())
        time.sleep(PAUSE)
    server.write(attempt, rank, end.encode())


def playing(server: CliServer, nodes: int, play: Callable[[str], None]) -> None:
    def submitted(task_id: str) -> None:
        server.tasks[task_id]["nodes"] = nodes
        server.happen(task_id, "run.started", placements=[{"node_id": "n1"}])
        server.move(task_id, "running", attempt=1)
        play(task_id)

    server.on_submit = submitted


def exits(server: CliServer, task_id: str, kind: str, state: str, attempt: int = 1) -> None:
    server.happen(task_id, "run.exited", exit={"kind": kind, "detail": ""}, attempt=attempt)
    code = {"ok": 0, "preempted": None}.get(kind, 1)
    server.move(task_id, state, exit=an_exit(kind, code))


@pytest.mark.slow
@pytest.mark.parametrize("height", [24, 4])
def test_bars_erase_no_line_of_one_rank(terminal: Terminal, server: CliServer, height: int) -> None:
    """Lines that are longer than the terminal, wide characters, nested bars, no last newline."""
    texts = [LONG, WIDE, "\x1b[31mred\x1b[0m", "plain"]

    def play(task_id: str) -> None:
        for epoch, text in enumerate(texts):
            bar(server, 1, 0, f"{epoch} " + "\u5b57" * 50)
            server.write(1, 0, f"VAL {epoch} {text}\n".encode())
            time.sleep(PAUSE)
        bar(server, 1, 0, "outer")
        bar(server, 1, 0, "inner", end="\x1b[A\x1b[2K\nafter\n")
        bar(server, 1, 0, "last", end="")
        exits(server, task_id, "ok", "succeeded")

    playing(server, 1, play)
    output, events = split(terminal("submit", "-f", "--", "true", height=height))
    expected = [ID]
    for epoch, text in enumerate(texts):
        expected += [f"{epoch} " + "\u5b57" * 50 + " 100%|####", f"VAL {epoch} {text}"]
    expected += ["outer 100%|####", "inner 100%|####", "after", "last 100%|####"]
    assert output == rows("\r\n".join(expected).encode(), 24)
    assert [event.split("  ")[-1] for event in events] == [
        "submitted by ada",
        "started on n1",
        "running",
        "the program ended successfully",
        "succeeded",
    ]


@pytest.mark.parametrize("height", [24, 4])
def test_bars_of_three_ranks_erase_no_line(
    terminal: Terminal, server: CliServer, height: int
) -> None:
    def play(task_id: str) -> None:
        for epoch in range(4):
            for number in range(5):
                for rank in range(3):
                    server.write(1, rank, f"\rbar {epoch} {number * 25}%".encode())
                time.sleep(PAUSE)
            for rank in range(3):
                server.write(1, rank, f"\nVAL {epoch}\n".encode())
        exits(server, task_id, "ok", "succeeded")

    playing(server, 3, play)
    options = ("submit", "-f", "--nodes", "3", "--", "true")
    output, events = split(terminal(*options, height=height))
    each = [text for epoch in range(4) for text in (f"bar {epoch} 100%", f"VAL {epoch}")]
    for rank in range(3):
        prefix = f"[{rank}] "
        assert [row[len(prefix) :] for row in output if row.startswith(prefix)] == each
    assert len(output) == 3 * len(each) + len([ID])
    assert len(events) == 5


def test_a_later_attempt_erases_nothing_of_an_earlier_one(
    terminal: Terminal, server: CliServer
) -> None:
    def play(task_id: str) -> None:
        server.write(1, 0, b"begins\n")
        bar(server, 1, 0, "first", end="")
        exits(server, task_id, "preempted", "queued")
        server.happen(task_id, "run.started", placements=[{"node_id": "n1"}], attempt=2)
        server.move(task_id, "running", attempt=2)
        bar(server, 2, 0, "second")
        server.write(2, 0, b"ends\n")
        exits(server, task_id, "ok", "succeeded", attempt=2)

    playing(server, 1, play)
    shown = terminal("submit", "-f", "--", "true")
    output, events = split(shown)
    assert output == [ID, "begins", "first 100%|####", "second 100%|####", "ends"]
    assert len(events) == 9
    preempted = next(n for n, row in enumerate(shown) if "the program left when asked to" in row)
    assert shown.index("first 100%|####") < preempted < shown.index("second 100%|####")


def test_the_last_output_stands_before_the_end(terminal: Terminal, server: CliServer) -> None:
    def play(task_id: str) -> None:
        bar(server, 1, 0, "bar")
        exits(server, task_id, "failed", "running")
        time.sleep(0.3)
        server.write(1, 0, b"Traceback\nValueError: x")
        server.move(task_id, "failed", exit=an_exit("failed", 1))

    playing(server, 1, play)
    shown = terminal("submit", "-f", "--", "true")
    failed = next(n for n, row in enumerate(shown) if "the program failed" in row)
    assert shown.index("ValueError: x") < failed


def test_logs_on_a_terminal_show_every_line(terminal: Terminal, server: CliServer) -> None:
    def play(task_id: str) -> None:
        bar(server, 1, 0, "bar")
        server.write(1, 0, b"VAL\n")
        server.move(task_id, "succeeded")

    playing(server, 1, play)
    terminal("submit", "-f", "--", "true")
    assert split(terminal("logs", ID, "-f"))[0] == ["bar 100%|####", "VAL"]


def test_kept_states_of_a_line_are_not_mixed_on_a_terminal(
    terminal: Terminal, server: CliServer
) -> None:
    """A terminal would leave the end of the longer state behind the shorter one."""

    def play(task_id: str) -> None:
        server.write(1, 0, b"Error\r10%\nouter\ninner\x1b[A\nlast\r1")
        server.move(task_id, "succeeded")

    playing(server, 1, play)
    terminal("submit", "-f", "--", "true")
    for options in ((), ("-f",)):
        assert split(terminal("logs", ID, *options))[0] == ["10%", "outer", "inner", "1"]
