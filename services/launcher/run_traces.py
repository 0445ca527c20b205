"""The spans of runs: a launch, and a run from its start to its end. Called by ``loop.py``.

A run's span has an id that is known before it starts, so that the task's own spans can hang below
it: they get it in ``TRACEPARENT``. The span itself is exported when the run has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from libs.contracts.ids import RunId
from libs.store.port import Tx, UnreadableRowError
from libs.store.task_traces import TaskTrace
from libs.tracing.context import read
from libs.tracing.spans import EXIT, NODES, OFF, Attributes, Tracing, attributes_of, reserved
from services.launcher.domain.model import Run

# By run: the span below which it runs.
Traceparents = Mapping[RunId, str]
# The variable in which OpenTelemetry passes a span to a program.
VARIABLE = "TRACEPARENT"


@dataclass(frozen=True, slots=True)
class RunTraces:
    """Spans of runs, where the task of a run is traced."""

    tracing: Tracing = OFF

    async def of(self, tx: Tx, run_ids: Iterable[RunId]) -> dict[RunId, str]:
        """The spans of these runs."""
        wanted = list(run_ids) if self.tracing.on else []
        if not wanted:
            return {}
        await tx.load(TaskTrace, *((run_id.task_id,) for run_id in wanted))
        found: dict[RunId, str] = {}
        for run_id in wanted:
            with suppress(UnreadableRowError):
                row = await tx.get(TaskTrace, run_id.task_id)
                if row is not None:
                    found[run_id] = row.traceparent
        return found

    def launch(self, run: Run, traceparent: str) -> AbstractContextManager[object]:
        """The span of one try to launch a run."""
        above = read(run_traceparent(run.id, traceparent))
        return self.tracing.span("launch", attributes=_attributes(run), parent=above)

    async def record_ends(self, tx: Tx, before: Mapping[RunId, Run], runs: Iterable[Run]) -> None:
        """Export the spans of runs whose end is recorded now. If that is not committed, they are
        exported again, as the same spans."""
        ended = [run for run in runs if before[run.id].exit is None and run.exit is not None]
        traceparents = await self.of(tx, (run.id for run in ended if run.started_at is not None))
        for run in ended:
            if run.started_at is None or run.id not in traceparents:
                continue
            self.tracing.record(
                _name(run.id),
                {**_attributes(run), EXIT: run.exit.kind.name.lower() if run.exit else ""},
                parent=traceparents[run.id],
                started_at=run.started_at,
                ended_at=run.exited_at or tx.now,
            )


def run_traceparent(run_id: RunId, traceparent: str) -> str:
    """The span of a run, below that of its assignment; empty where that names none."""
    return reserved(traceparent, _name(run_id))


def _name(run_id: RunId) -> str:
    return f"run {run_id.attempt}"


def _attributes(run: Run) -> Attributes:
    return {**attributes_of(run), NODES: len({place.node_id for place in run.placements})}
