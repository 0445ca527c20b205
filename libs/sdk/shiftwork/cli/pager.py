"""Shows long results in the user's pager. Called by ``session.Paged`` around a command.

The pager is a program of the user's: ``SHIFTWORK_PAGER``, else ``PAGER``, else ``less``. It is
started once more lines than the terminal has are there, and gets the rest as it comes.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import signal
import sys
from typing import IO, TYPE_CHECKING, Any, Generator, Mapping

from shiftwork.cli import render

if TYPE_CHECKING:
    import subprocess

VARIABLES = ("SHIFTWORK_PAGER", "PAGER")
# Less: ends by itself on one screen, shows colours, leaves the text on the terminal.
LESS = "FRX"
# Pagers that do nothing.
_NONE = ("", "cat")


class _Left(Exception):  # noqa: N818 - not an error
    """The user has left the pager: nothing more is wanted."""


@contextlib.contextmanager
def paging(*, wanted: bool) -> Generator[None, None, None]:
    """A block whose standard output goes through the pager if it is longer than the terminal.

    What the block prints on standard error comes after it, because the pager has the screen.
    ``wanted``: False leaves the block as it is, as do an output that is no terminal, a terminal
    that obeys no commands, and a user without a pager.
    """
    terminal = wanted and render.is_terminal(sys.stdout) and render.obeys_commands()
    command = _command(os.environ) if terminal else None
    if command is None:
        yield
        return
    output, errors = sys.stdout, sys.stderr
    paged = _Paged(output, command)
    held = _Held(errors)
    sys.stdout, sys.stderr = paged, held
    try:
        with contextlib.suppress(_Left):
            yield
    finally:
        sys.stdout, sys.stderr = output, errors
        paged.finish()
        errors.write(held.getvalue())
        errors.flush()


def _command(environ: Mapping[str, str]) -> list[str] | None:
    """The pager's command line; None if there is none."""
    for name in VARIABLES:
        text = environ.get(name)
        if text is None:
            continue
        if text.strip() in _NONE:
            return None
        try:
            words = shlex.split(text)
        except ValueError:
            words = []
        if words and shutil.which(words[0]):
            return words
        render.warning(
            f"{name}={text}: there is no such program, so the output is not paged; "
            f"set {name} to a pager, or to nothing"
        )
        return None
    return ["less"] if shutil.which("less") else None


class _Held(io.StringIO):
    """Standard error's text, until the pager has ended."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._stream = stream

    def isatty(self) -> bool:
        return render.is_terminal(self._stream)


class _Bytes(io.RawIOBase):
    """The bytes below ``_Paged``, for output that is passed on as it is."""

    def __init__(self, paged: _Paged) -> None:
        super().__init__()
        self._paged = paged

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:  # noqa: ANN401 - any buffer
        piece = bytes(data)
        self._paged.put(piece)
        return len(piece)


class _Paged(io.TextIOBase):
    """Standard output: kept while it fits on the terminal, then given to the pager."""

    def __init__(self, stream: IO[str], command: list[str]) -> None:
        super().__init__()
        self._stream, self._command = stream, command
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.buffer = _Bytes(self)
        self._held = bytearray()
        self._rows = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._before: Any = None

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.put(text.encode(self._encoding, "backslashreplace"))
        return len(text)

    def put(self, data: bytes) -> None:
        """Take the next bytes. Raises ``_Left`` once the pager has ended."""
        if self._process is not None:
            self._send(data)
            return
        size = shutil.get_terminal_size()
        self._held += data
        self._rows += _rows(data, size.columns)
        if self._rows >= size.lines:
            self._start()

    def finish(self) -> None:
        """Write what was kept, or wait until the user leaves the pager."""
        process = self._process
        if process is None:
            _write(self._stream, bytes(self._held))
            return
        try:
            with contextlib.suppress(OSError):
                assert process.stdin is not None, "it was given a pipe"
                process.stdin.close()
            process.wait()
        finally:
            signal.signal(signal.SIGINT, self._before)

    def _start(self) -> None:
        import subprocess  # noqa: PLC0415 - only long results pay for it

        environment = {"LESS": LESS, **os.environ}
        self._stream.flush()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own choice
                self._command, stdin=subprocess.PIPE, env=environment
            )
        except OSError as error:
            render.warning(f"{self._command[0]} cannot be started: {error.strerror}")
            self._command = ["cat"]
            self._rows = -sys.maxsize
            return
        # In a pager Ctrl-C ends a search; the pager itself ends with its own keys.
        self._before = signal.signal(signal.SIGINT, self._interrupted)
        held, self._held = bytes(self._held), bytearray()
        self._send(held)

    def _interrupted(self, *_: object) -> None:
        if self._process is None or self._process.poll() is not None:
            raise KeyboardInterrupt

    def _send(self, data: bytes) -> None:
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it was given a pipe"
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except OSError:
            raise _Left from None


def _rows(data: bytes, columns: int) -> int:
    """How many rows of a terminal the bytes take, at least."""
    lines = render.without_sequences(data.decode("utf-8", "replace")).split("\n")
    return sum(1 + max(0, len(line) - 1) // max(1, columns) for line in lines[:-1])


def _write(stream: IO[str], data: bytes) -> None:
    buffer: Any = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(data.decode("utf-8", "replace"))
    else:
        stream.flush()
        buffer.write(data)
    stream.flush()
