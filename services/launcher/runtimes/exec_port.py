"""The interface to commands inside ranks. Adapters: ``node_exec`` (processes) and
``kubernetes/pod_exec`` (pods). A runtime without ``open_exec`` has none.

Used by ``services/launcher/exec_sessions.py``.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from libs.contracts.ids import RunId
from libs.contracts.messages import ExecEnd, ExecStream, Placement

# So much of a command's output is read at once.
READ_BYTES = 32 * 1024


class ExecRefusedError(Exception):
    """The command cannot be started; the text has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class ExecOrder:
    """A command in one rank of a run."""

    # A name that nobody can guess.
    session: str
    run_id: RunId
    place: Placement
    owner: str
    # Empty: a shell.
    argv: tuple[str, ...]
    terminal: bool
    rows: int
    columns: int
    # The kind of the user's terminal, as in TERM.
    term: str


class ExecProcess(Protocol):
    """A command that runs, and its streams."""

    async def read(self) -> tuple[ExecStream, bytes] | None:
        """The next output; None when there is no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to its standard input; returns once it is taken. What it no longer reads is
        dropped."""
        ...

    async def close_input(self) -> None:
        """Its standard input has no more data."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        ...

    async def wait(self) -> ExecEnd:
        """How it ended; called after its output was read."""
        ...


@runtime_checkable
class ExecRuntime(Protocol):
    """A runtime that can run commands in ranks."""

    def open_exec(self, order: ExecOrder) -> AbstractAsyncContextManager[ExecProcess]:
        """Start a command; nothing of it is left when the context is closed. Raises
        ``ExecRefusedError``, or ``RuntimeUnavailableError`` if it may work later."""
        ...
