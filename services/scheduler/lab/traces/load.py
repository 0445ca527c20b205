"""Opens a trace file, detects its format and fits it to the cluster. Called by ``cli.py``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from shiftwork.cli.input_files import advice

from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces import csv_trace, kueue, swf, task_history
from services.scheduler.lab.traces.fitting import Request, Tally, fit
from services.scheduler.lab.traces.row import Parsed
from services.scheduler.lab.workload import Workload

FORMATS = ("csv", "swf", "kueue", "history")
LINE_LENGTH_MAX = 1024 * 1024
YAML_LENGTH_MAX = 1024 * 1024
_GZIP = b"\x1f\x8b"
_SUFFIXES = {
    ".csv": "csv",
    ".swf": "swf",
    ".yaml": "kueue",
    ".yml": "kueue",
    ".json": "history",
    ".jsonl": "history",
    ".ndjson": "history",
}


def load(path: Path, request: Request) -> Workload:
    """Read a trace and fit it to the cluster. Raises LabError: file, line, value, fix."""
    where = str(path)
    try:
        with path.open("rb") as raw:
            head = raw.read(2)
            raw.seek(0)
            binary = cast("IO[bytes]", gzip.GzipFile(fileobj=raw) if head == _GZIP else raw)
            return _loaded(path, where, _lines(binary, where), request)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LabError(
            f"it cannot be read: {reason}",
            where=where,
            fix="give a trace file that is whole" if path.is_file() else advice(str(path)),
        ) from None


def _lines(stream: IO[bytes], where: str) -> Iterator[str]:
    """The lines as text, of bounded length."""
    line = 0
    while data := stream.readline(LINE_LENGTH_MAX + 1):
        line += 1
        if len(data) > LINE_LENGTH_MAX:
            raise LabError(
                f"the line is longer than {LINE_LENGTH_MAX} bytes",
                where=f"{where}:{line}",
                fix="give one job a line",
            )
        text = data.decode("utf-8", "replace")
        yield text.removeprefix("\ufeff") if line == 1 else text


def _loaded(path: Path, where: str, lines: Iterator[str], request: Request) -> Workload:
    kind = request.format or _SUFFIXES.get(Path(path.name.removesuffix(".gz")).suffix.lower(), "")
    if not kind:
        kind, lines = _guessed(lines, where)
    parsed = _parse(kind, lines, where)
    return fit(path.name, parsed, request, Tally(where))


def _guessed(lines: Iterator[str], where: str) -> tuple[str, Iterator[str]]:
    """The format, detected by the first line that is neither empty nor a comment."""
    seen: list[str] = []
    kind = ""
    for text in lines:
        seen.append(text)
        word = text.strip()
        if word and not word.startswith("#"):
            if word.startswith(("{", "[")):
                kind = "history"
            elif word.startswith("cohorts"):
                kind = "kueue"
            elif "," in word:
                kind = "csv"
            elif word.startswith(";") or len(word.split()) == swf.FIELDS:
                kind = "swf"
            break
    if not kind:
        raise LabError(
            "it is no format that is known", where=where, fix=f"--format {'|'.join(FORMATS)}"
        )

    def again() -> Iterator[str]:
        yield from seen
        yield from lines

    return kind, again()


def _parse(kind: str, lines: Iterator[str], where: str) -> Parsed:
    if kind == "csv":
        return csv_trace.parse(lines, where)
    if kind == "swf":
        return swf.parse(lines)
    if kind == "history":
        return task_history.parse(lines, where)
    size, parts = 0, list[str]()
    for text in lines:
        size += len(text)
        if size > YAML_LENGTH_MAX:
            raise LabError("it is too long for a generator's configuration", where=where)
        parts.append(text)
    return kueue.parse("".join(parts), where)
