"""``exec``: a terminal or a command in a running task.

One thread waits for the keyboard, the connection and signals at once. The terminal is raw while a
session lasts and is restored however it ends.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import time
from typing import Any, Dict, Generator, List, Optional

import typer

from shiftwork.cli import complete, parse, session, signals, tasks
from shiftwork.cli.client import Api
from shiftwork.cli.failures import SESSION, USAGE, Failure, naming, refused, usage
from shiftwork.cli.websocket import BYTES, TEXT, Closed, WebSocket
from shiftwork.client.paths import part

STDIN, STDOUT = 0, 1
READ_BYTES = 32 * 1024
# Bytes that wait for the server: above this, nothing is read from standard input.
AHEAD_BYTES_MAX = 256 * 1024
# The server sends something at least every 20 seconds, so the connection is lost after this.
SILENCE_SECONDS = 60.0
WAIT_SECONDS = 15.0
# No server takes a longer message with the command.
FIRST_BYTES_MAX = 64 * 1024


_TASK = typer.Argument(
    ..., metavar="TASK", help=tasks.TASK_HELP, autocompletion=complete.live_tasks
)
_COMMAND = typer.Argument(None, metavar="[-- COMMAND...]", help="What to run. Default: a shell.")


def register(app: session.App) -> None:
    """Add the command."""
    app.command("exec")(exec_command)


def exec_command(
    task: str = _TASK,
    command: Optional[List[str]] = _COMMAND,
    rank: int = typer.Option(0, "--rank", min=0, help="The rank; with --role, of that role."),
    role: str = typer.Option("", "--role", help="The role whose ranks --rank counts."),
) -> None:
    """Open a terminal in a running task, or run a command there.

    The command runs with the rank's user, environment, folder and limits, and ends with the rank.
    With its input and output at a terminal it has a terminal, too; otherwise pipes. The exit code
    is the command's; 255 if there is no session, or it was lost.
    """
    if os.name != "posix":
        fix = "call it on Linux, macOS or in WSL"
        raise usage("exec needs a system with POSIX terminals", where="exec", fix=fix)
    try:
        api = session.current().api()
        with naming(
            {"task_id": "TASK", "role": "--role", "rank": "--rank", "command": "COMMAND"}, task=task
        ):
            found = tasks.find(api, task)
            code = _run(api, found["id"], list(command or []), rank, role)
    except Failure as failure:
        if failure.code != USAGE:
            # An exit code below belongs to the command.
            failure.code = SESSION
        raise
    raise typer.Exit(code)


def _run(api: Api, task_id: str, command: List[str], rank: int, role: str) -> int:
    terminal = os.isatty(STDIN) and os.isatty(STDOUT)
    query: Dict[str, Any] = {"rank": rank, "role": role, "tty": "true" if terminal else "false"}
    path = f"/v1/tasks/{part(task_id)}/exec"
    first: Dict[str, Any] = {"command": command}
    if terminal:
        first["size"], first["term"] = _size(), _term()
    message = json.dumps(first, ensure_ascii=False).encode()
    if len(message) > FIRST_BYTES_MAX:
        raise usage(
            f"the command has {len(command)} words of {len(message)} bytes together",
            where="COMMAND",
            fix="a session takes at most 1000 words, of 32768 bytes together, unless its server is"
            " configured otherwise: put it in a file, or send it through standard input",
        )
    connection = api.upgrade(path, query)
    try:
        connection.send(TEXT, message)
        with _raw() if terminal else contextlib.nullcontext():
            return _Conversation(api, connection, terminal=terminal).run()
    finally:
        connection.close()


def _size() -> Dict[str, int]:
    found = shutil.get_terminal_size()
    return {"rows": max(1, found.lines), "columns": max(1, found.columns)}


def _term() -> str:
    term = os.environ.get("TERM", "")
    known = all(sign.isalnum() or sign in "._+-" for sign in term) and term.isascii()
    return term if known and len(term) <= 64 else "xterm"  # noqa: PLR2004 - as the API has it


class _Interrupted(Exception):  # noqa: N818 - a signal
    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


@contextlib.contextmanager
def _raw() -> Generator[None, None, None]:
    """Give every key to the session. The terminal is restored in any case."""
    # Windows has neither, and the other commands work there.
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    before = termios.tcgetattr(STDIN)
    tty.setraw(STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


class _Conversation:
    """What goes between this process and the command."""

    def __init__(self, api: Api, connection: WebSocket, *, terminal: bool) -> None:
        self._api, self._connection, self._terminal = api, connection, terminal
        self._reads_input = True
        self._code: Optional[int] = None
        self._heard_at = time.monotonic()

    def run(self) -> int:
        """Carry data until the command ends; its exit code."""
        handled = dict.fromkeys((*signals.ENDINGS, signals.RESIZED), signals.ignore)
        with signals.pipe(handled) as numbers:
            try:
                while self._code is None:
                    self._step(numbers)
            except Closed as error:
                raise self._lost(str(error)) from error
            except _Interrupted as error:
                return 128 + error.number
        return self._code

    def _step(self, numbers: int) -> None:
        readers: List[Any] = [self._connection, numbers]
        if self._reads_input and self._connection.pending < AHEAD_BYTES_MAX:
            readers.append(STDIN)
        writers = [self._connection] if self._connection.pending else []
        readable, writable, _ = select.select(readers, writers, [], WAIT_SECONDS)
        if numbers in readable:
            self._handle_signals(os.read(numbers, 64))
        if writable:
            self._connection.flush()
        if self._connection in readable:
            self._heard_at = time.monotonic()
            for kind, data in self._connection.messages():
                self._take(kind, data)
                if self._code is not None:
                    return
        elif time.monotonic() - self._heard_at > SILENCE_SECONDS:
            raise Closed(f"the server has sent nothing for {SILENCE_SECONDS:.0f} s")
        if STDIN in readable and self._code is None:
            self._read_input()

    def _handle_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in signals.ENDINGS:
                raise _Interrupted(number)
            if number == signal.SIGINT:
                # Where there is no terminal of ours, an interruption is meant for this process.
                raise KeyboardInterrupt
            if number == signals.RESIZED and self._terminal:
                self._connection.send(TEXT, json.dumps({"resize": _size()}).encode())

    def _read_input(self) -> None:
        try:
            data = os.read(STDIN, READ_BYTES)
        except OSError:
            data = b""
        if data:
            self._connection.send(BYTES, b"\x00" + data)
        else:
            self._reads_input = False
            self._connection.send(TEXT, b'{"eof": true}')

    def _take(self, kind: int, data: bytes) -> None:
        if kind == BYTES:
            _write(STDOUT if data[:1] == b"\x01" else 2, data[1:])
            return
        message: Any = json.loads(data)
        if "problem" in message:
            problem = message["problem"]
            raise refused(
                problem,
                int(problem.get("status", 500)),
                server=self._api.url,
                request="GET /v1/tasks/ID/exec",
            )
        ended = parse.fields(message.get("exit"))
        if ended:
            code = ended.get("code")
            if code is None:
                raise self._lost(str(ended.get("problem")))
            self._code = int(code)

    def _lost(self, why: str) -> Failure:
        return Failure(
            f"the session was lost: {why}" if why else "the session was lost",
            where=self._api.url,
            fix="what ran in it is ended; open another",
            code=SESSION,
        )


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]
