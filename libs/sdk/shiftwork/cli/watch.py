"""Pictures that are refreshed: ``--watch`` of lists, and ``top``.

A picture is whatever a command prints. On a terminal it takes the alternate screen, which is
restored however the command ends. With ``--json`` each document that differs from the one before
is a line of standard output.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import select
import signal
import sys
import time
from typing import IO, Any, Callable, Generator, Mapping, NamedTuple, Optional

import typer

from shiftwork.cli import render, signals
from shiftwork.cli.failures import UNREACHABLE, Failure, usage

SECONDS = 2.0
SECONDS_MIN = 1.0
SECONDS_MAX = 3600.0
# A picture is late rather than old: a request that takes longer has failed.
CALL_SECONDS = 5.0
# A window that is being resized is drawn at most so often.
RESIZED_SECONDS = 0.2
# HTTP: too many requests, or the service is not ready.
_AWAY = (429, 503)


# --- the options of every command that can be watched ------------------------------------------


def watchable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a command with ``--watch`` and ``--interval``, which ``interval`` reads."""

    @functools.wraps(function)
    def command(**given: Any) -> Any:  # noqa: ANN401 - the command's own
        del given["watch"], given["interval"]
        return function(**given)

    often = f"With --watch: how often. Default: {SECONDS:g}."
    options: dict[str, tuple[Any, Any]] = {
        "watch": (
            bool,
            typer.Option(
                False,
                "-w",
                "--watch",
                help="Refresh it in place until Ctrl-C or q; with --json a document on each"
                " change.",
            ),
        ),
        "interval": (
            Optional[float],
            typer.Option(
                None, "--interval", metavar="SECONDS", min=SECONDS_MIN, max=SECONDS_MAX, help=often
            ),
        ),
    }
    signature = inspect.signature(function)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    changed: Any = command
    changed.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])
    kinds = {name: kind for name, (kind, _) in options.items()}
    changed.__annotations__ = {**function.__annotations__, **kinds}
    return command


def interval(given: Mapping[str, Any]) -> float | None:
    """How often the command is to be repeated; None: it runs once."""
    seconds: float | None = given.get("interval")
    if given.get("watch"):
        return SECONDS if seconds is None else seconds
    if seconds is not None:
        raise usage("--interval goes with --watch", where="--interval", fix="add --watch")
    return None


# --- repeating ---------------------------------------------------------------------------------


def is_possible() -> bool:
    """True if pictures can be refreshed in place."""
    return render.is_terminal(sys.stdout) and render.obeys_commands()


def repeat(draw: Callable[[], None], seconds: float, title: str) -> None:
    """Call ``draw`` every ``seconds`` and show what it prints, until Ctrl-C or the key q.

    Raises the Failure of the first picture, and later ones unless the server is only away.
    """
    if render.wants_json():
        _repeat_documents(draw, seconds)
        return
    if not is_possible():
        raise usage(
            "--watch needs a terminal that can be redrawn",
            where="--watch",
            fix="leave it out, or add --json: then each change is a line",
        )
    picture = _first(draw)
    with _Screen(title, seconds) as screen:
        away = _Away()
        while True:
            screen.paint(picture, away.note)
            if screen.wait():
                return
            try:
                picture = _captured(draw).text
                away.ended()
            except Failure as failure:
                away.began(failure)


def _first(draw: Callable[[], None]) -> str:
    """The first picture. What ends the command instead is printed as without ``--watch``."""
    found = _captured(draw)
    if found.exit_code:
        sys.stderr.write(found.text)
        raise typer.Exit(found.exit_code)
    return found.text


def _repeat_documents(draw: Callable[[], None], seconds: float) -> None:
    last: list[Any] | None = None
    away = _Away()
    while True:
        try:
            with render.collected_documents() as documents, contextlib.suppress(typer.Exit):
                draw()
            if away.ended():
                render.warning("the server is back")
            if documents != last:
                for each in documents:
                    render.record(each)
            last = documents
        except Failure as failure:
            if last is None:
                raise
            if away.began(failure):
                render.warning(f"{failure.what}; trying again")
        time.sleep(seconds)


class _Away:
    """Whether the server answers, and when it did last."""

    def __init__(self) -> None:
        self._answered_at = time.monotonic()
        self._what = ""

    def began(self, failure: Failure) -> bool:
        """A picture has failed: True if it is the first one. Raises every failure that goes on
        whenever the server is asked again."""
        if failure.code != UNREACHABLE and failure.problem.get("status") not in _AWAY:
            raise failure
        before, self._what = self._what, failure.what
        return not before

    def ended(self) -> bool:
        """The server has answered: True if it was away before."""
        self._answered_at = time.monotonic()
        before, self._what = self._what, ""
        return bool(before)

    @property
    def note(self) -> str:
        """One line about it; empty if the server answers."""
        if not self._what:
            return ""
        ago = render.span(time.monotonic() - self._answered_at)
        return f"{self._what}; the picture is from {ago} before; trying again"


class _Captured(NamedTuple):
    text: str
    exit_code: int


class _Picture(io.StringIO):
    """A terminal's text before it is drawn."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def _captured(draw: Callable[[], None]) -> _Captured:
    """What is printed, on standard output and standard error, in its order."""
    output, errors = sys.stdout, sys.stderr
    picture = _Picture()
    sys.stdout = sys.stderr = picture
    code = 0
    try:
        draw()
    except typer.Exit as ended:
        code = ended.exit_code
    finally:
        sys.stdout, sys.stderr = output, errors
    return _Captured(picture.getvalue(), code)


# --- the terminal ------------------------------------------------------------------------------

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[J"
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_QUIT = b"qQ"


class _Screen:
    """The alternate screen of the terminal, keys without their echo, and the signals that concern
    both."""

    def __init__(self, title: str, seconds: float) -> None:
        self._title, self._seconds = title, seconds
        self._stack = contextlib.ExitStack()
        self._keys: int | None = None
        self._signals = -1

    def __enter__(self) -> _Screen:  # noqa: PYI034 - typing.Self needs a newer Python
        self._enter()
        return self

    def _enter(self) -> None:
        with contextlib.ExitStack() as stack:
            if os.name == "posix":
                self._signals = stack.enter_context(signals.pipe(_HANDLERS))
            self._keys = stack.enter_context(_keys())
            stack.callback(_write, _LEAVE)
            _write(_ENTER)
            self._stack = stack.pop_all()

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def paint(self, text: str, note: str) -> None:
        """Draw a picture, cut at the screen's edges. ``note`` stands in the last line."""
        columns, rows = render.terminal_size(sys.stdout)
        at = f"{render.now():%H:%M:%S}Z"
        head = f"Every {self._seconds:g}s: {render.one_line(self._title)}"
        room = max(0, columns - len(at) - 1)
        lines = [f"\x1b[2m{render.cut(head, room).ljust(room)} {at}\x1b[0m", ""]
        below = [f"\x1b[1m{render.one_line(note)}\x1b[0m"] if note else []
        picture = text.rstrip("\n").split("\n")
        left = max(1, rows - len(lines) - len(below))
        if len(picture) > left:
            hidden = len(picture) - left + 1
            more = f"{render.counted(hidden, 'more line')}: make the window taller"
            picture = [*picture[: left - 1], f"\x1b[2m{more}\x1b[0m"]
        shown = [*lines, *picture, *below][:rows]
        _write("\x1b[H" + "\r\n".join(f"{line}\x1b[0m\x1b[K" for line in shown) + "\x1b[J")

    def wait(self) -> bool:
        """Wait for the next picture's time: True if the user wants no more. A window that has
        another size, or a process that goes on after Ctrl-Z, is drawn at once."""
        until = time.monotonic() + self._seconds
        while (left := until - time.monotonic()) > 0:
            readers = [fd for fd in (self._signals, self._keys) if fd is not None and fd >= 0]
            if not readers:
                time.sleep(left)
                return False
            readable, _, _ = select.select(readers, [], [], left)
            if self._keys in readable and self._pressed():
                return True
            if self._signals in readable:
                numbers = set(os.read(self._signals, 64))
                if signals.STOPPED in numbers:
                    self._stop()
                    return False
                if signals.RESIZED in numbers:
                    until = min(until, time.monotonic() + RESIZED_SECONDS)
        return False

    def _pressed(self) -> bool:
        assert self._keys is not None, "there are keys"
        pressed = os.read(self._keys, 64)
        if not pressed:
            # The terminal's other end is gone.
            self._keys = None
        return any(key in _QUIT for key in pressed)

    def _stop(self) -> None:
        """Give the terminal back while the process is stopped."""
        self._stack.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextlib.contextmanager
def _keys() -> Generator[int | None, None, None]:
    """The terminal from which keys are read one at a time, without their echo; None if standard
    input is none."""
    stream: IO[str] = sys.stdin
    if os.name != "posix" or not render.is_terminal(stream):
        yield None
        return
    import termios  # noqa: PLC0415 - Windows has none
    import tty  # noqa: PLC0415

    descriptor = stream.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)


# Those that end a process unwind it, so that the terminal is restored.
_HANDLERS: Mapping[int | None, signals.Handler] = {
    **dict.fromkeys(signals.ENDINGS, _end),
    signals.RESIZED: signals.ignore,
    signals.STOPPED: signals.ignore,
}
