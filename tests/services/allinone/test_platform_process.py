"""How a supervised platform ends: signals at each point of a start, and what is left then."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from shiftwork.cli.failures import Failure

from services.allinone import cli, dev_command, platform_process, stopping
from services.allinone.data_folder import DataFolder, Options

Start = Callable[..., subprocess.Popen[str]]
# A platform of two tasks: one that swallows `swallows` cancellations, and one that becomes ready
# or never does.
KEPT = """
import asyncio, os, signal, sys
from contextlib import suppress
from pathlib import Path
from services.allinone import platform_process
from services.allinone.data_folder import DataFolder, Options

folder, ready, swallows, voice = sys.argv[1:]

class Fake:
    url = "http://127.0.0.1:1"
    def __init__(self, *_):
        self.ready = asyncio.Event()
    async def run(self):
        async with asyncio.TaskGroup() as group:
            group.create_task(self.part())
            if ready == "ready":
                self.ready.set()
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.3, os.write, 1, b"begun\\n")
            await asyncio.Event().wait()
    async def part(self):
        for _ in range(int(swallows)):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()

platform_process.STOP_AGAIN_SECONDS = 0.2
platform_process.end_supervisors = lambda folder: folder.with_name("nodes-ended").touch()
data_folder = DataFolder(Path(folder))
options = Options(port=0, tasks_as_root=True)
log = voice == "LOG"
output = getattr(platform_process, voice)
sys.exit(platform_process.keep_here(data_folder, options, verbose=log, make=Fake, output=output))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that keeps such a platform; returns once its signals are listened to."""
    started: list[subprocess.Popen[str]] = []

    def begin(
        *, ready: str = "", swallows: int = 0, voice: str = "PERSON", before: str = ""
    ) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", before + KEPT, tmp_path / "data", ready, swallows, voice]
        process = subprocess.Popen(
            [str(word) for word in words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            # The tests themselves may run under nohup, which its children inherit.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509
        )
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line == "begun\n":
                break
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert "Traceback" not in err
    return process.returncode, err


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGQUIT, 0)],
)
def test_a_start_that_is_ended_leaves_nothing_and_was_not_a_crash(
    tmp_path: Path, start: Start, number: signal.Signals, code: int
) -> None:
    process = start()
    ended, err = end(process, number)
    assert (ended, "stopped before it was ready" in err) == (code, True)
    assert DataFolder(tmp_path / "data").ended() is None


@pytest.mark.parametrize(
    ("ready", "number", "ends"),
    [("", signal.SIGINT, False), ("", signal.SIGQUIT, True), ("ready", signal.SIGQUIT, True)],
)
def test_tasks_that_ran_before_a_start_are_not_ended_while_they_cannot_save(
    tmp_path: Path, start: Start, ready: str, number: signal.Signals, ends: bool
) -> None:
    lock = tmp_path / "data" / "machine" / "nodes" / "local-0" / "lock"
    lock.parent.mkdir(parents=True)
    (tmp_path / "data" / "up.log").touch()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert DataFolder(tmp_path / "data").left_over()
        _, err = end(start(ready=ready), number)
    assert (tmp_path / "data" / "nodes-ended").exists() == ends
    assert ("tasks that ran before go on" in err) != ends
    assert not DataFolder(tmp_path / "data").left_over()


def test_a_start_that_is_interrupted_before_it_listens_to_signals_was_not_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(platform_process, "_keep", interrupted)
    data_folder = DataFolder(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        platform_process.keep_here(data_folder, Options(port=0, tasks_as_root=True))
    assert data_folder.ended() is None


def test_a_process_that_ignores_the_end_of_the_terminal_goes_on(start: Start) -> None:
    """SIGHUP is ignored, as under nohup."""
    before = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = start(before=before)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    assert end(process, signal.SIGINT)[0] == 130


def test_a_part_that_swallows_its_cancellation_is_cancelled_again(start: Start) -> None:
    assert end(start(swallows=2), signal.SIGINT)[0] == 130


def test_in_the_background_every_line_is_json(tmp_path: Path, start: Start) -> None:
    process = start(ready="ready", voice="LOG")
    code, err = end(process, signal.SIGQUIT)
    events = [json.loads(line)["event"] for line in err.splitlines()]
    assert code == 0
    assert "Shiftwork is ready at http://127.0.0.1:1" in events
    assert f"Administrator's token: {tmp_path}/data/admin-token" in events


@pytest.mark.slow
def test_a_process_in_the_background_that_cannot_start_reports_it_in_json(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "thesis").touch()
    words = [sys.executable, "-m", "services.allinone", str(tmp_path / "data")]
    for given in ('{"port": 0, "tasks_as_root": true}', "{", '{"prot": 0}'):
        done = subprocess.run([*words, given], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        events = [json.loads(line) for line in done.stderr.splitlines()]
        assert events[-1]["level"] == "error"
    assert done.stdout == ""


@pytest.mark.parametrize("text", ["{", "{}", "null", '"local-0"'])
async def test_a_broken_list_of_drained_nodes_ends_no_platform_and_stays(
    tmp_path: Path, text: str
) -> None:
    data_folder, messages = DataFolder(tmp_path), list[str]()
    data_folder.drained.write_text(text)
    await stopping.reopen(data_folder, "http://127.0.0.1:1", messages.append)
    assert "shiftwork node uncordon NODE" in messages[0]
    assert data_folder.drained.read_text() == text


class Nodes:
    """Answers to requests that open and close nodes, on a port of this machine."""

    def __init__(self, *answers: int) -> None:
        self.answers, self.asked = list(answers), list[tuple[str, str, Any]]()

    @asynccontextmanager
    async def served(self) -> AsyncGenerator[str]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(size[1])) if size else b"null"
        method, path, _ = head.split(" ", 2)
        self.asked.append((method, path, json.loads(body)))
        code = self.answers.pop(0) if self.answers else 200
        text = json.dumps(
            {
                "tasks": [{"id": "t", "ack_deadline_seconds": None}],
                "nodes": [
                    {"id": "n3", "schedulable": True},
                    {"id": "n1", "schedulable": False},
                ],
            }
            if len(self.asked) == 1
            else {"tasks": [], "nodes": []}
        ).encode()
        length = len(text)
        writer.write(
            f"HTTP/1.1 {code} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n".encode()
            + text
        )
        await writer.drain()
        writer.close()


async def reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: Nodes
) -> tuple[DataFolder, list[str]]:
    """The data folder after nodes n1 and n2, which a stop drained, were to be opened."""
    monkeypatch.setattr(stopping, "RETRY_SECONDS", 1.0)
    monkeypatch.setattr(stopping, "AGAIN_SECONDS", 0.01)
    data_folder, messages = DataFolder(tmp_path), list[str]()
    token = data_folder.credentials.admin_token_file
    token.parent.mkdir(parents=True, exist_ok=True)
    token.write_text("token")
    data_folder.drained.write_text('["n1", "n2"]')
    async with nodes.served() as url:
        await stopping.reopen(data_folder, url, messages.append)
    return data_folder, messages


async def test_nodes_are_opened_although_the_first_answers_are_that_nothing_decides_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(503, 429, 200, 404)
    data_folder, messages = await reopened(tmp_path, monkeypatch, nodes)
    assert (messages, data_folder.drained.exists()) == ([], False)
    assert [path.split("/")[3] for _, path, _ in nodes.asked] == ["n1", "n1", "n1", "n2"]


async def test_a_node_that_cannot_be_opened_ends_no_platform_and_is_tried_again_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(409, 200)
    data_folder, messages = await reopened(tmp_path, monkeypatch, nodes)
    assert len(messages) == 1
    assert "`shiftwork node uncordon n1`" in messages[0]
    assert [path.split("/")[3] for _, path, _ in nodes.asked] == ["n1", "n2"]
    assert json.loads(data_folder.drained.read_text()) == ["n1", "n2"]
    # The next stop forgets none of them.
    nodes = Nodes()
    async with nodes.served() as url:
        await stopping.drain(data_folder, url, messages.append)
    assert json.loads(data_folder.drained.read_text()) == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('{"event": "e", "service": "s", "problem": "p", "where": ""}', "e; problem: p"),
        ('{"event": "e", "exception": [{"exc_type": "T", "exc_value": "v"}]}', "e; T: v"),
        ("[1]", "[1]"),
        ('{"event": "cut', '{"event": "cut'),
    ],
)
def test_the_end_of_the_log_is_shown_for_people(line: str, shown: str) -> None:
    assert cli._readable(line) == shown


def test_a_process_that_has_ended_does_not_run_even_if_nobody_reads_its_exit_code() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert cli._runs(process.pid)
        process.kill()
        # Waits for the end, and leaves the zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert not cli._runs(process.pid)
    assert not cli._runs(process.pid)


@pytest.mark.parametrize(
    ("status", "what"),
    [(0, "the platform was ended before it was ready"), (1, "the platform ended with status 1; ")],
)
def test_a_start_in_the_background_that_was_ended_is_no_crash(
    tmp_path: Path, status: int, what: str
) -> None:
    (tmp_path / "up.log").write_text("stopped before it was ready\n")
    assert cli._ended(DataFolder(tmp_path), status, 0).what.startswith(what)


def test_a_killed_platform_whose_port_is_taken_is_ended_with_options_that_are_there(
    tmp_path: Path,
) -> None:
    data_folder = DataFolder(tmp_path / "data")
    data_folder.take()
    data_folder.release()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        data_folder.keep_options(
            Options(port=taken.getsockname()[1], tasks_as_root=os.geteuid() == 0)
        )
        with pytest.raises(Failure, match="is taken by") as failed:
            cli._take_over(data_folder)
    data = f"--data {tmp_path}/data"
    assert failed.value.fix == (
        "end that program and try again, or"
        f" `shiftwork up {data} --port N`, then `shiftwork down {data}`"
    )


def test_a_start_that_takes_too_long_is_left_with_how_to_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "DETACH_SECONDS_MAX", 0.0)
    with pytest.raises(Failure, match="not ready after 0 s") as failed:
        cli._wait_ready(DataFolder(tmp_path / "data"), None)
    data = f"--data {tmp_path}/data"
    assert failed.value.fix.startswith(f"`shiftwork doctor {data}` shows what it waits for")
    assert f"`shiftwork down {data}`" in failed.value.fix


@pytest.mark.slow
def test_what_keeps_a_platform_for_developers_from_starting_is_reported_with_its_fix(
    tmp_path: Path,
) -> None:
    (tmp_path / "options.json").write_text("{")
    words = [sys.executable, "-m", "services.allinone.dev_command", "--data", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the options of the last `up` cannot be read: ")
    assert f"where: {tmp_path}/options.json" in done.stderr


class Interrupted(ModuleType):
    """A module during whose import somebody presses Ctrl-C."""

    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_platform_for_developers_is_imported_ends_it_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "services.allinone.dev", Interrupted("dev"))
    with pytest.raises(typer.Exit) as ended:
        dev_command.main(data=tmp_path / "data")
    assert ended.value.exit_code == 130
    assert not (tmp_path / "data").exists()
