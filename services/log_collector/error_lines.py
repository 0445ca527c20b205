"""The last error lines of a rank's output: which ranks are searched, and what counts as an error.

Pure. ``error_finder.py`` reads the output. A site adds patterns in a file, or replaces those here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, Field, field_validator

from libs.contracts.messages import ExitKind, Placement, RankErrorLines, RunExit
from services.log_collector.domain import NEWLINE, RETURN
from services.log_collector.lines import Pattern, PatternError, compiled

# What one pattern may take of memory.
PATTERN_BYTES_MAX = 262_144
NAME_CHARACTERS_MAX = 40
PATTERNS_MAX = 100
# A traceback goes on to the first line that is not indented: its exception.
TRACEBACK = "traceback"
# The patterns by name, in the syntax of RE2. The first one that matches a line names it.
PATTERNS: Mapping[str, str] = {
    TRACEBACK: r"^\s*(?:\[rank\d+\]: ?)?Traceback \(most recent call last\):",
    "out-of-memory": r"(?i)out of memory|OutOfMemoryError|\bMemoryError\b|\boom-kill|^Killed$",
    "nccl": r"\bNCCL (?:WARN|error|failure)|\bnccl[A-Z]\w*Error"
    r"|Watchdog caught collective operation"
    r"|ProcessGroupNCCL.*(?:timeout|timed out|abort|exception)",
    "cuda": r"CUDA (?:error|failure|driver)|\bcudaError"
    r"|CUDNN_STATUS_[A-RT-Z]|CUBLAS_STATUS_[A-RT-Z]|device-side assert|uncorrectable ECC|\bXid\b",
    "segmentation-fault": r"Segmentation fault|\bSIGSEGV\b|Bus error|Fatal Python error"
    r"|core dumped|double free or corruption|stack smashing detected",
    "exception": r"^(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*"
    r"[A-Z]\w*(?:Error|Exception|Interrupt)\b(?::|$)",
    "fatal": r"\b(?:FATAL|CRITICAL)\b|^(?:fatal|panic): |terminate called",
}


class ErrorSearch(BaseModel):
    """The limits of the search for error lines."""

    # Patterns of this site, YAML: a name and a regular expression (RE2) each. They come before
    # those that are built in; one with the same name replaces that, and an empty one removes it.
    error_patterns_file: Path | None = None
    # How many ranks of a run are searched, and how many of them are kept; how much of the end of
    # each output is searched.
    error_search_ranks_max: int = Field(default=64, ge=1, le=4096)
    error_ranks_max: int = Field(default=8, ge=1, le=64)
    error_search_bytes: int = Field(default=262_144, ge=4096, le=16_777_216)
    # What is kept: lines of one rank, characters of a line, and characters of a run in all.
    error_lines_max: int = Field(default=20, ge=1, le=200)
    error_line_characters_max: int = Field(default=500, ge=20, le=4096)
    error_characters_max: int = Field(default=16_384, ge=100, le=65_536)

    @field_validator("error_patterns_file")
    @classmethod
    def _patterns_are_good(cls, path: Path | None) -> Path | None:
        """The file is read at the start, and not when a run fails."""
        patterns_of(path)
        return path


class ErrorPatternsError(ValueError):
    """The file of a site's patterns cannot be used."""


@dataclass(frozen=True, slots=True)
class ErrorPatterns:
    """What counts as an error, by name."""

    patterns: tuple[tuple[str, Pattern], ...]

    def kind_of(self, line: bytes) -> str:
        """The name of the first pattern that matches a line; empty: it is no error."""
        for name, pattern in self.patterns:
            if next(pattern.lines(line, max(1, len(line))), None) is not None:
                return name
        return ""


def ranks_to_search(ended: RunExit, placements: Sequence[Placement]) -> tuple[int, ...]:
    """The ranks of a run that failed or was lost: first the one that failed first, then others that
    ended badly, then the rest. None of any other run."""
    if ended.kind not in (ExitKind.FAILED, ExitKind.LOST) or ended.debug:
        return ()
    first = [] if ended.failed_rank is None else [ended.failed_rank]
    bad = [each.rank for each in ended.ranks if each.code or each.signal or each.fault]
    every = [place.rank for place in placements]
    known = set(every)
    return tuple(rank for rank in dict.fromkeys([*first, *bad, *every]) if rank in known)


def patterns_of(path: Path | None) -> ErrorPatterns:
    """The patterns, with those of a site's file. Raises ErrorPatternsError."""
    own = _of_site(path) if path else {}
    merged = {**own, **{name: text for name, text in PATTERNS.items() if name not in own}}
    found: list[tuple[str, Pattern]] = []
    for name, text in merged.items():
        if not text:
            continue
        try:
            found.append((name, _compiled(text)))
        except PatternError as error:
            raise ErrorPatternsError(
                f"{path}: {name} {text!r} {error.message}; {error.fix}"
            ) from None
    return ErrorPatterns(tuple(found))


def _compiled(text: str) -> Pattern:
    return compiled(text, literal=False, ignore_case=False, memory_bytes_max=PATTERN_BYTES_MAX)


def _of_site(path: Path) -> dict[str, str]:
    fix = "write a line NAME: 'REGULAR EXPRESSION' for each"
    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ErrorPatternsError(f"{path} cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise ErrorPatternsError(f"{path} has no names; {fix}")
    found = cast("dict[Any, Any]", read)
    if len(found) > PATTERNS_MAX:
        raise ErrorPatternsError(f"{path} has {len(found)} patterns; give at most {PATTERNS_MAX}")
    for name, text in found.items():
        if not (isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX):
            raise ErrorPatternsError(
                f"{path}: {name!r} is no name;"
                f" give text of at most {NAME_CHARACTERS_MAX} characters"
            )
        if not isinstance(text, str):
            raise ErrorPatternsError(f"{path}: {name} is no text; {fix}")
    return found


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """A line that matched, or belongs to a traceback."""

    kind: str
    offset: int
    text: str


def find(data: bytes, offset: int, patterns: ErrorPatterns, limits: ErrorSearch) -> list[ErrorLine]:
    """The last error lines of the end of an output, which begins at ``offset``."""
    found: deque[ErrorLine] = deque(maxlen=limits.error_lines_max)
    in_traceback = False
    for begin, written in _lines(data, whole=offset == 0):
        # Of a line that was rewritten, its last state.
        line = written.rstrip(RETURN).rpartition(RETURN)[2]
        if in_traceback:
            in_traceback = _is_inside(line)
            kind = TRACEBACK
        else:
            kind = patterns.kind_of(line)
            in_traceback = kind == TRACEBACK
        if kind:
            text = _shown(line, limits.error_line_characters_max)
            found.append(ErrorLine(kind, offset + begin, text))
    return list(found)


def message_of(
    place: Placement, found: Sequence[ErrorLine], characters_max: int
) -> RankErrorLines | None:
    """The lines of one rank, of which as many from the end as fit; None: none."""
    left, kept = characters_max, list[ErrorLine]()
    for each in reversed(found):
        left -= len(each.text) + 1
        if left < 0:
            break
        kept.insert(0, each)
    if not kept:
        return None
    return RankErrorLines(
        rank=place.rank,
        role=place.role,
        kind=kept[-1].kind,
        offset=kept[0].offset,
        lines=tuple(each.text for each in kept),
    )


def _lines(data: bytes, *, whole: bool) -> Iterator[tuple[int, bytes]]:
    """Lines with their offsets; the first one is left out unless ``data`` begins with a line."""
    at = 0 if whole else data.find(NEWLINE) + 1
    while at < len(data):
        end = data.find(NEWLINE, at)
        end = len(data) if end < 0 else end
        yield at, data[at:end]
        at = end + 1


def _is_inside(line: bytes) -> bool:
    """A traceback goes on with what is indented, behind the prefix that PyTorch gives a rank."""
    if line.startswith(b"[rank"):
        line = line.partition(b"]: ")[2]
    return line[:1] in (b" ", b"\t")


def _shown(line: bytes, characters_max: int) -> str:
    """As it is kept: cut, and without NUL, which no database stores."""
    text = line[: characters_max * 4].decode(errors="replace").replace("\0", "\ufffd")
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."
