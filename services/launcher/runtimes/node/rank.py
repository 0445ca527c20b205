"""One rank: its process and what is known of it. Used by ``ranks.py`` and ``starting.py``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from libs.contracts.ids import RunId
from services.launcher.runtimes.node.spawn import Gated

CONTEXT_VARIABLE = "SHIFTWORK_CONTEXT"
DELAY_FIRST_S = 0.001


def context_path(runs_folder: str, run: str, rank: int) -> str:
    """Where the context file of a rank is. The folder is the rank's, and ours to write."""
    return f"{runs_folder}/{run}/{rank}/context.json"


def rank_of_context(rest: str) -> tuple[str, int] | None:
    """The run and rank of a ``context_path`` below its runs folder; None for any other text."""
    run, _, more = rest.partition("/")
    number, _, _ = more.partition("/")
    try:
        found = str(RunId.parse(run)), int(number)
    except ValueError:
        return None
    return found if context_path("", *found) == f"/{rest}" else None


class RefusedError(Exception):
    """The order cannot be carried out; the text says why."""


class EndedError(RefusedError):
    """The run was ended, so none of it may start any more."""


@dataclass
class Rank:
    """One rank's process and what is known of it."""

    run: str
    rank: int
    pid: int
    ticks: int
    boot: str
    context: str
    started_at: float
    # As whom it runs.
    uid: int
    # False: a supervisor before us started it, and only its parent could have learned its end.
    ours: bool = True
    # How the main process ended, while its group is being ended.
    status: dict[str, Any] | None = None
    exit: dict[str, Any] | None = None
    ending: bool = False
    delay_s: float = DELAY_FIRST_S
    # The number of its output, while that is not finished.
    output: int = 0
    # It waits until its start is on disk.
    gated: Gated | None = None
    # Its exit is on the way to the disk.
    recording: bool = False
    # Some process of it may not be ended by us, and that has been reported.
    refused: bool = False

    @property
    def folder(self) -> str:
        """Where its files are."""
        return os.path.dirname(self.context)  # noqa: PTH120 - small imports

    @property
    def name(self) -> str:
        """The name of its control group."""
        return f"{self.run}.{self.rank}"

    def start_record(self) -> dict[str, Any]:
        """Its start, for the journal."""
        return {
            "t": "start",
            "run": self.run,
            "rank": self.rank,
            "pid": self.pid,
            "ticks": self.ticks,
            "boot": self.boot,
            "context": self.context,
            "at": self.started_at,
            "uid": self.uid,
        }

    def exit_record(self) -> dict[str, Any]:
        """Its end, for the journal."""
        assert self.exit is not None, "only an ended rank has an exit record"
        return {"t": "exit", "run": self.run, "rank": self.rank, "exit": self.exit}
