"""The memory of a leading log-collector: its open runs and their outputs.

Shared by the collector, which moves the sizes forward, and the recorder, which makes them count.
Lost in a crash, and built again from the database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from libs.service.masking import Masker
from services.log_collector.domain import Address, OutputKey
from services.log_collector.store import OutputRow, RunRow

SERVICE = "log_collector"
Run = tuple[str, int]
READ_BYTES_MAX = 1 << 30


@dataclass
class Tail:
    """One output that is being copied."""

    address: Address
    role: str
    # Bytes written to the archive, and bytes known to the database as synced.
    size: int
    recorded: int
    # When this process began to read it.
    opened_at: datetime
    full: bool = False
    # Bytes came that are no text: from there on every byte is kept.
    binary: bool = False
    # Bytes of the source that are not kept, because the rest of their line overwrote them.
    skipped: int = 0
    recorded_skipped: int = 0
    # The archive lost recorded bytes: what it has is to be recorded whatever its size.
    shrunk: bool = False
    # The state of a line that may still be overwritten: read, not kept.
    line: bytes = b""
    # The state of it that was last published to live readers, and when.
    line_published: bytes = b""
    line_published_at: datetime | None = None
    # When it is kept although it goes on, and how many seconds after it began or was kept that is.
    line_due_at: datetime | None = None
    line_seconds: float = 0.0
    # The last bytes that were read from the source, and the last ones that were kept.
    last: bytes = b""
    kept: bytes = b""
    # It is read from a place that may be within a secret.
    may_begin_within: bool = False
    # The archive has it up to here, from a process that did not record that; 0 if it has no more
    # than ``size``.
    unrecorded_size: int = 0
    # What masks the secrets in it; None if its source does, or they are not known yet.
    masker: Masker | None = None
    # So many bytes are read of it at once: fewer while masking takes long.
    read_bytes: int = READ_BYTES_MAX
    # How many time stamps the archive has of it, and the last one.
    timestamps: int = 0
    # How many segments of it are sealed, and of how many nothing is left as it was written.
    sealed: int = 0
    released: int = 0
    written_at: datetime | None = None
    # Its run has exited: the next read without new bytes finds the end.
    exited_at: datetime | None = None
    complete: bool = False
    # The database knows that it is complete.
    closed: bool = False
    problem: str = ""

    @property
    def key(self) -> OutputKey:
        """The rank that the output belongs to."""
        return self.address.key

    @property
    def source_offset(self) -> int:
        """The place in the source of the first byte that is neither kept nor skipped."""
        return self.size + self.skipped

    @property
    def before(self) -> bytes:
        """The last bytes of the source that may be stored: no secret is in them."""
        if self.masker is None:
            return self.last
        pairs = zip(reversed(self.last), reversed(self.kept), strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return self.last[len(self.last) - same :]

    @property
    def is_due(self) -> bool:
        """Whether its state is not recorded yet."""
        moved = self.size != self.recorded or self.skipped != self.recorded_skipped
        return moved or self.shrunk or self.complete is not self.closed

    def mark_recorded(self, row: OutputRow) -> None:
        """Note what the database has now; more may have arrived meanwhile."""
        self.recorded, self.recorded_skipped, self.closed = row.size, row.skipped, row.complete
        self.shrunk = False


class State:
    """The open runs and their tails."""

    def __init__(self) -> None:
        self.tails: dict[OutputKey, Tail] = {}
        self.runs: dict[Run, RunRow] = {}
        self.unrecorded_bytes = 0

    def clear(self) -> None:
        """Start from an empty state."""
        self.tails, self.runs, self.unrecorded_bytes = {}, {}, 0

    def size_of(self, key: OutputKey) -> int | None:
        """Bytes of an output that is being copied; None if it is not."""
        tail = self.tails.get(key)
        return tail.size if tail else None

    def timestamps_of(self, key: OutputKey) -> int | None:
        """Its time stamps; None if it is not being copied."""
        tail = self.tails.get(key)
        return tail.timestamps if tail else None

    def finished(self) -> list[RunRow]:
        """Runs that have exited and whose every output is complete."""
        return [
            row
            for row in self.runs.values()
            if row.exited_at is not None and all(self.tails[key].complete for key in keys_of(row))
        ]

    def close(self, row: RunRow) -> None:
        """Forget a run: the database knows that it is collected."""
        self.runs.pop((row.task_id, row.attempt))
        for key in keys_of(row):
            self.tails.pop(key)


def keys_of(row: RunRow) -> list[OutputKey]:
    """The outputs of a run."""
    return [OutputKey(row.task_id, row.attempt, place.rank) for place in row.placements]
