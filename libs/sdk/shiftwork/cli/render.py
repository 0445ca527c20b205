"""Prints everything that the command line prints.

All text for people goes through ``safe``: names, labels, commands and texts of errors come from
other people, and a terminal obeys escape sequences in them. Only ``raw``, a task's own output, is
printed byte for byte, as ``docker logs`` and ``kubectl logs`` do.

Results go to standard output, notes about them to standard error. On a terminal there
are tables, colours and progress lines; elsewhere the same comes as plain lines, one fact
each, that scripts can read. ``--json`` gives documents, or one object a line for streams; ``-o
yaml`` the same as YAML, and ``-o name`` the ids of what a document lists.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING, Any, Generator, Iterable, Mapping, Sequence

from shiftwork.cli import parse

if TYPE_CHECKING:
    from shiftwork.cli.failures import Failure

STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "green",
    "preempting": "magenta",
    "killing": "magenta",
    "paused": "blue",
    "succeeded": "bold green",
    "failed": "bold red",
    "stopped": "dim",
    "rejected": "bold red",
    "ready": "green",
    "cordoned": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "quarantined": "bold red",
    "lost": "bold red",
}
_STEPS = ((60.0, "s", 1.0), (3600.0, "m", 60.0), (86_400.0, "h", 3600.0))


# What a terminal executes instead of showing: controls (C0 but tab and line feed, DEL, C1), changes
# of direction, other line separators; and halves of surrogate pairs, which nothing can encode.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# A terminal's own commands, such as colours: left out of what is drawn.
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Commands that move the cursor or erase: all but those for colours and for titles and links.
_MOVES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-ln-~]|[78DEHMc])|[\x08\x0b\x0c]")
# So many lines that have not ended are drawn at once.
LINES_DRAWN_MAX = 8
_BREAKS = re.compile("[\t\n]")
_UNINDENTED = re.compile("(?<=[^\n])\n(?! )")


def safe(text: str) -> str:
    r"""The text with everything that a terminal would obey written as ``\x1b`` or ``\u202e``.

    Tabs and line breaks stay.
    """
    return _UNSAFE.sub(_escaped, text)


def without_sequences(text: str) -> str:
    """The text without a terminal's own commands, such as colours."""
    return _SEQUENCE.sub("", text)


def without_moves(text: bytes) -> bytes:
    """A line of output without commands that reach beyond it; its colours stay."""
    return _MOVES.sub(b"", text)


def one_line(text: str) -> str:
    """The same, with tabs and line breaks escaped, too: a value cannot pretend to be a line."""
    return _BREAKS.sub(_escaped, safe(text))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found.group())
    return _SHORT.get(number) or (f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}")  # noqa: PLR2004 - one byte


_SHORT = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


class _Mode:
    form = ""
    name = "id"
    quiet = False
    verbose = False
    # Takes documents instead of standard output.
    documents: list[Any] | None = None


# The forms of ``-o`` that are made of the API's documents; the others are for people.
DOCUMENTS = ("json", "yaml", "name")


def configure(*, form: str, quiet: bool, verbose: bool, name: str = "id") -> None:
    """Set once for each command line.

    Args:
        form: a word of ``-o``, or an empty text.
        quiet: no notes.
        verbose: details, too.
        name: the field that ``-o name`` prints.
    """
    _Mode.form, _Mode.quiet, _Mode.verbose, _Mode.name = form, quiet, verbose, name


def wants_json() -> bool:
    """True if the result is a document, and nothing else: ``--json``, ``-o yaml``, ``-o name``."""
    return _Mode.form in DOCUMENTS


@contextlib.contextmanager
def collected_documents() -> Generator[list[Any], None, None]:
    """The documents of a block, which are not printed."""
    before, _Mode.documents = _Mode.documents, []
    try:
        yield _Mode.documents
    finally:
        _Mode.documents = before


def is_terminal(stream: IO[str]) -> bool:
    """True if the stream is a terminal."""
    return bool(getattr(stream, "isatty", lambda: False)())


def is_narrow() -> bool:
    """True if the result is for a person, in its short form: names and short ids."""
    return is_terminal(sys.stdout) and _Mode.form != "wide"


# Further lines of a text that is broken are indented: none of them can pass for a line of ours.
_HANG = 4


# --- plain output ---------------------------------------------------------------------------


def line(text: str, *, hang: int = _HANG) -> None:
    """One line of the result. On a terminal, a long one is broken between words."""
    block("\n".join(_wrapped(one_line(text), sys.stdout, hang)))


def block(text: str) -> None:
    """Several lines of the result that were written here, such as a script."""
    sys.stdout.write(safe(text) + "\n")
    sys.stdout.flush()


def raw(data: bytes) -> None:
    """Bytes of a task's output, as they are, whatever a terminal makes of them."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode("utf-8", "replace"))
        return
    sys.stdout.flush()
    buffer.write(data)
    buffer.flush()


def document(value: object) -> None:
    """A whole answer in the form that ``-o`` names; without one, JSON."""
    if _Mode.documents is not None:
        _Mode.documents.append(value)
    elif _Mode.form == "name":
        for each in _names(value):
            block(one_line(each))
    elif _Mode.form == "yaml":
        block(_yaml(value))
    else:
        block(_json(value, indent=2))


def record(value: object) -> None:
    """One object of a stream: JSON on a line of its own, or a document of a YAML stream."""
    if _Mode.form == "yaml":
        block(f"---\n{_yaml(value)}")
    else:
        block(_json(value, separators=(",", ":")))


def _names(value: object) -> Iterable[str]:
    """The ids of a list's items, or of the one thing that a document is about."""
    found = parse.fields(value)
    items: list[Any] = [found]
    if "items" in found:
        items = parse.listed(found["items"])
    names = (parse.fields(each).get(_Mode.name, "") for each in items)
    # Null is what the caller may not see.
    return (str(each) for each in names if each is not None)


def _yaml(value: object) -> str:
    """YAML that a reader reads as the same values."""
    import yaml  # noqa: PLC0415 - only this form pays for it

    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"

    def dumped(*, as_it_is: bool) -> str:
        form: dict[str, Any] = {"sort_keys": False, "width": math.inf, "allow_unicode": as_it_is}
        dump: Any = yaml.safe_dump
        text: str = dump(value, **form)
        return text.rstrip("\n")

    text = dumped(as_it_is=encoding.lower().startswith("utf"))
    # What a terminal obeys must stand in quotes to be escaped.
    return dumped(as_it_is=False) if _UNSAFE.search(text) else text


def _json(value: object, **form: Any) -> str:  # noqa: ANN401 - as json.dumps takes it
    """JSON that shows letters as they are if the output's encoding has them and, as JSON's own
    escapes, what a terminal obeys."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    text = json.dumps(value, ensure_ascii=not encoding.lower().startswith("utf"), **form)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def note(text: str) -> None:
    """Something about the result, for people: standard error, unless quiet or JSON."""
    if not (_Mode.quiet or wants_json()):
        _write(text)


def detail(text: str) -> None:
    """The same, only with ``-v``."""
    if _Mode.verbose:
        _write(text)


def warning(text: str) -> None:
    """A problem that does not end the command."""
    _write(f"warning: {text}")


def failure(failed: Failure) -> None:
    """What, where, fix; with ``--json`` one problem object. On standard error."""
    if _Mode.form == "json":
        _write(_json(failed.document()))
        return
    _write(failed.what, prefix="error: ")
    if failed.where:
        _write(f"  where: {one_line(failed.where)}")
    if failed.fix:
        _write(f"  fix:   {failed.fix}")


def help_text(text: str) -> None:
    """The help of a noun whose command is missing, as it is laid out. On standard error."""
    sys.stderr.write(safe(text).rstrip("\n") + "\n")
    sys.stderr.flush()


def _write(text: str, prefix: str = "") -> None:
    lines = _UNINDENTED.sub("\n" + " " * _HANG, prefix + safe(text)).split("\n")
    shown = "\n".join(piece for each in lines for piece in _wrapped(each, sys.stderr, _HANG))
    shown = shown[len(prefix) :]
    with Progress.cleared():
        sys.stderr.write((_styled(prefix, "bold red") if prefix else "") + shown + "\n")
        sys.stderr.flush()


_ANSI = {"bold red": "1;31", "bold": "1", "dim": "2"}


def _styled(text: str, style: str) -> str:
    if not is_terminal(sys.stderr):
        return text
    return f"\x1b[{_ANSI[style]}m{text}\x1b[0m"


# --- tables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """One column of a table, and what becomes of it where a terminal is narrow."""

    name: str
    # Of the columns with a number, the one with the highest is left out first. 0: never.
    drop: int = 0
    # Its cells are cut to no fewer than so many characters. 0: never.
    least: int = 0
    # Instead of being cut, its cells go on in further lines. For the last column only.
    wrap: bool = False


@dataclass(frozen=True)
class Cell:
    """A value in two forms: for a terminal, and in full for ``--wide`` and for programs."""

    short: str
    full: str


def table(
    columns: Sequence[str | Column], rows: Iterable[Sequence[str | Cell]], empty: str
) -> None:
    """Rows of cells under columns. A cell that is a known state is coloured on a terminal.

    A terminal's width is kept: columns are left out by their importance and long cells are cut,
    so that a row is a line. With ``--wide``, and where no terminal is, everything is shown.
    """
    wanted = [Column(each) if isinstance(each, str) else each for each in columns]
    narrow = is_narrow()
    cells = [[_text(cell, narrow=narrow) for cell in row] for row in rows]
    if not cells:
        note(empty)
        return
    width = shutil.get_terminal_size().columns if narrow else None
    shown = fitted(wanted, cells, width)
    if is_terminal(sys.stdout):
        _rich_table(shown)
        return
    for row in shown:
        line("".join(row).rstrip())


def _text(cell: str | Cell, *, narrow: bool) -> str:
    if isinstance(cell, Cell):
        cell = cell.short if narrow else cell.full
    return one_line(str(cell))


_GAP = "  "


def fitted(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> list[list[str]]:
    """The header and the rows as cells of equal widths, which together take at most ``width``.

    None: as wide as it comes. What is left out first is the column with the highest ``drop``.
    Columns that may be cut share the width that the others leave, and the narrow ones are not cut.
    If
    nothing more may be left out or cut, the table is wider than the terminal.
    """
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - only tables pay for rich

    texts = [[each.name for each in columns], *rows]
    natural = [max(cell_len(row[n]) for row in texts) for n in range(len(columns))]
    kept = list(range(len(columns)))
    if width is not None:
        # A column without a single value takes no width from others.
        kept = [n for n in kept if not columns[n].drop or any(row[n] for row in rows)]
        while sum(_least(columns[n], natural[n]) for n in kept) + _gaps(kept) > width:
            droppable = [n for n in kept if columns[n].drop]
            if not droppable:
                break
            kept.remove(max(droppable, key=lambda n: (columns[n].drop, n)))
    widths = _shared(columns, natural, kept, width)
    last = kept[-1]

    def cell(text: str, n: int) -> str:
        text = cut(text, widths[n])
        return text if n == last else set_cell_size(text, widths[n]) + _GAP

    shown: list[list[str]] = []
    for row in texts:
        ends = wrapped(row[last], widths[last]) if columns[last].wrap else [cell(row[last], last)]
        before = [cell(row[n], n) for n in kept[:-1]]
        shown += [
            [*(before if number == 0 else (" " * cell_len(each) for each in before)), end]
            for number, end in enumerate(ends)
        ]
    return shown


def _least(column: Column, natural: int) -> int:
    return min(natural, max(column.least, len(column.name))) if column.least else natural


def _gaps(kept: Sequence[int]) -> int:
    return len(_GAP) * (len(kept) - 1)


def _shared(
    columns: Sequence[Column], natural: Sequence[int], kept: Sequence[int], width: int | None
) -> dict[int, int]:
    """The widths of the columns that are shown: the widest that may be cut give way first."""
    widths = {n: natural[n] for n in kept}
    over = 0 if width is None else sum(widths.values()) + _gaps(kept) - width
    while over > 0:
        elastic = [n for n in kept if widths[n] > _least(columns[n], natural[n])]
        if not elastic:
            break
        widest = max(widths[n] for n in elastic)
        wide = [n for n in elastic if widths[n] == widest]
        lower = max(
            [widths[n] for n in elastic if widths[n] < widest]
            + [_least(columns[n], natural[n]) for n in wide]
        )
        step = max(1, min(widest - lower, over // len(wide)))
        for n in wide[: max(1, min(len(wide), over))]:
            widths[n] -= step
            over -= step
    return widths


def _rich_table(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - only a terminal pays for rich
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=sys.stdout, highlight=False)
    for number, row in enumerate(rows):
        drawn = Text.assemble(
            *((text, "bold" if number == 0 else STYLES.get(text.strip(), "")) for text in row)
        )
        drawn.rstrip()
        # The width is right already: nothing is wrapped or cropped here.
        console.print(drawn, soft_wrap=True)


def facts(pairs: Iterable[tuple[str, str]]) -> None:
    """Names and values, one a line; pairs without a value are left out."""
    kept = [(name, one_line(value)) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    coloured = is_terminal(sys.stdout)
    for name, value in kept:
        label = name.ljust(width)
        first, *rest = _wrapped(f"{label}  {value}", sys.stdout, width + len(_GAP))
        # Our own codes; the value is safe already.
        shown = f"\x1b[1m{label}\x1b[0m{first[width:]}" if coloured else first
        sys.stdout.write("\n".join([shown, *rest]) + "\n")
    sys.stdout.flush()


# A word, or a command in backticks: one that is copied must not be broken.
_WORDS = re.compile(r"\S*`[^`\n]*`\S*|\S+")
# The text beside an indent has at least so many columns.
_TEXT_MIN = 20


def wrapped(text: str, width: int, hang: int = 0) -> list[str]:
    """The text in lines of at most ``width`` columns, broken between words; all but the first are
    indented by ``hang``. A word that is longer than a line stands alone, unbroken."""
    from rich.cells import cell_len  # noqa: PLC0415 - only a terminal pays for rich

    if cell_len(text) <= width:
        return [text]
    hang = min(hang, max(0, width - _TEXT_MIN))
    words: list[tuple[int, int]] = []
    for found in _WORDS.finditer(text):
        begin, _ = found.span()
        # Of a command that is longer than a line each word may begin one.
        whole = cell_len(found.group()) <= width - hang
        parts = [found.group()] if whole else found.group().split()
        for part in parts:
            begin = text.index(part, begin)
            words.append((begin, begin + len(part)))
            begin += len(part)
    lines: list[str] = []
    begin, end, width_left = 0, 0, width
    for first, last in words:
        if end > begin and cell_len(text[begin:last]) > width_left:
            lines.append(text[begin:end])
            begin, width_left = first, width - hang
        end = last
    lines.append(text[begin:end])
    return [lines[0], *(" " * hang + line for line in lines[1:])]


def _wrapped(text: str, stream: IO[str], hang: int) -> list[str]:
    """Wrap a text for a terminal, unless the user wants wide output."""
    if _Mode.form == "wide" or not is_terminal(stream):
        return [text]
    return wrapped(text, shutil.get_terminal_size().columns, hang)


# --- words ----------------------------------------------------------------------------------


def counted(number: float, noun: str) -> str:
    """A number with its noun: ``1 task``, ``3 tasks``."""
    shown = str(number) if isinstance(number, int) else f"{round(number, 3):g}"
    return f"{shown} {noun if number == 1 else noun + 's'}"


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(timezone.utc)


def span(seconds: float) -> str:
    """``42s``, ``3m``, ``1h50m``, ``15h``, ``2d3h``, ``40d``."""
    for limit, unit, size in _STEPS:
        if seconds < limit:
            return f"{int(seconds / size)}{unit}" + _rest(seconds, unit, size)
    return f"{int(seconds / 86_400)}d" + _rest(seconds, "d", 86_400.0)


# The smaller unit shown beside hours and days, while they are few.
_SMALLER = {"h": ("m", 60.0), "d": ("h", 3600.0)}
_FEW = 10


def _rest(seconds: float, unit: str, size: float) -> str:
    if unit not in _SMALLER or seconds >= _FEW * size:
        return ""
    smaller, step = _SMALLER[unit]
    count = int(seconds % size / step)
    return f"{count}{smaller}" if count else ""


def ago(text: str | None) -> str:
    """``3m ago``; empty if there is no time."""
    at = parse.at(text)
    if at is None:
        return ""
    seconds = (now() - at).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def when(text: str | None, *, exact: bool = False) -> Cell:
    """A time in a table: ``3m ago``, in full ``2026-11-21 10:00:00Z``; empty if there is none.

    ``exact``: in full with milliseconds.
    """
    at = parse.at(text)
    if at is None:
        return Cell("", "")
    utc = at.astimezone(timezone.utc)
    time = clock(text) if exact else f"{utc:%H:%M:%S}"
    return Cell(ago(text), f"{utc:%Y-%m-%d} {time}Z")


def timestamp(text: str | None) -> str:
    """``2026-11-21 10:00:00Z (3m ago)``; empty if there is none."""
    at = parse.at(text)
    if at is None:
        return ""
    utc = at.astimezone(timezone.utc)
    return f"{utc:%Y-%m-%d %H:%M:%S}Z ({ago(text)})"


def clock(text: str | None) -> str:
    """``10:00:00.123`` in UTC; empty if there is none."""
    at = parse.at(text)
    if at is None:
        return ""
    utc = at.astimezone(timezone.utc)
    return f"{utc:%H:%M:%S}.{utc.microsecond // 1000:03d}"


def labels(values: Mapping[str, Any]) -> str:
    """``a=1 b=2``."""
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


# --- progress -------------------------------------------------------------------------------


class Progress:
    """Status lines at the bottom of a terminal, and nothing elsewhere: lines of output that are
    being rewritten, and one about the whole.

    They are drawn below the last line of output, and the cursor goes back to where they begin.
    Whatever is printed next begins there. Nothing above the cursor is ever erased, so no height
    has to be remembered: output stays, however tall the lines were.
    """

    _shown: Progress | None = None
    # Reader threads write, too, so a lock serializes the writes.
    _lock = threading.RLock()

    def __init__(self) -> None:
        self.wanted = (
            is_terminal(sys.stderr) and obeys_commands() and not (_Mode.quiet or wants_json())
        )
        self._text = ""
        self.drawn: Sequence[str] = []

    def __enter__(self) -> Progress:  # noqa: PYI034 - typing.Self needs a newer Python
        Progress._shown = self
        return self

    def __exit__(self, *ignored: object) -> None:
        with self._lock:
            self.hide()
            Progress._shown = None

    def show(self, text: str) -> None:
        """Replace the line about the whole."""
        self._text = text
        self.redraw()

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the lines of output. No text moves the cursor or changes colours."""
        drawn = [one_line(without_sequences(line)) for line in lines[:LINES_DRAWN_MAX]]
        if self.wanted and drawn != self.drawn:
            self.drawn = drawn
            self.redraw()

    def redraw(self) -> None:
        """Draw the lines at the cursor."""
        if not self.wanted:
            return
        with self._lock:
            lines = self._lines()
            if not lines:
                self.hide()
                return
            back = f"\r\x1b[{len(lines) - 1}A" if len(lines) > 1 else "\r"
            # Each line is cut at the edge: a terminal that takes a character for wider than it is
            # here wraps nothing.
            text = "\x1b[K\r\n".join(lines) + "\x1b[J"
            _to_terminal(f"\x1b[?25l\x1b[?7l\r{text}{back}\x1b[?7h")

    def _lines(self) -> list[str]:
        columns, rows = terminal_size(sys.stderr)
        spinner = _SPINNER[int(time.monotonic() / _SPINNER_SECONDS) % len(_SPINNER)]
        about = f"{spinner} {one_line(self._text)}" if self._text else ""
        lines = [*self.drawn, *textwrap.wrap(about, max(2, columns - 1))]
        return [cut(line, columns - 1) for line in lines[-max(1, rows - 1) :]]

    def hide(self) -> None:
        """Take the lines away, so that others can write."""
        if self.wanted:
            _to_terminal("\r\x1b[J\x1b[?25h")

    @classmethod
    @contextlib.contextmanager
    def cleared(cls) -> Generator[None, None, None]:
        """A block in which the terminal is free for whole lines."""
        with cls._lock:
            shown = cls._shown
            if shown is None:
                yield
                return
            shown.hide()
            try:
                yield
            finally:
                shown.redraw()


# Terminals that obey no commands.
_DUMB = ("dumb", "unknown")


def obeys_commands() -> bool:
    """True unless the terminal is known to obey no commands."""
    return os.environ.get("TERM") not in _DUMB


_SPINNER = "\u280b\u2819\u2839\u2838\u283c\u2834\u2826\u2827\u2807\u280f"
_SPINNER_SECONDS = 0.08


def _to_terminal(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def terminal_size(stream: IO[str]) -> tuple[int, int]:
    """Columns and rows of the terminal that the stream is."""
    with contextlib.suppress(OSError, ValueError):
        columns, rows = os.get_terminal_size(stream.fileno())
        if columns and rows:
            return columns, rows
    return shutil.get_terminal_size()


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` columns."""
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - only a terminal pays for rich

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "\u2026"
