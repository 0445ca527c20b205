"""Snapshots as JSON, and ``python -m services.scheduler.replay FILE``: what would be decided.

``loop.py`` writes one when it refuses a plan; replaying it shows the plan and its violations.
A dump holds what ``decide`` reads and nothing else of a task: no variable, command, pod template or
URI, which may contain secrets.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from libs.contracts.messages import Role, TaskSpec
from libs.contracts.rank_sizes import SIZE_FIELDS
from libs.contracts.reasons import render
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Decision
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Inventory, Limit, Node, PoolLedger, Task


@dataclass(frozen=True, slots=True)
class Dump:
    """A snapshot's bare rows and the current time: all inputs of ``decide``."""

    now: datetime
    version: int
    settings: PolicySettings
    tasks: tuple[Task, ...]
    nodes: tuple[Node, ...]
    limits: tuple[Limit, ...]
    inventories: tuple[Inventory, ...]
    policies: tuple[GroupPolicy, ...] = ()
    ledgers: tuple[PoolLedger, ...] = ()

    def snapshot(self) -> Snapshot:
        """The snapshot, with its indexes rebuilt."""
        return Snapshot.of(
            version=self.version,
            tasks=self.tasks,
            nodes=self.nodes,
            limits=self.limits,
            inventories=self.inventories,
            policies=self.policies,
            ledgers=self.ledgers,
            settings=self.settings,
        )


# The fields of a specification that a dump keeps. A new field of a task is left out until it is
# named here, so that none gets into dumps unnoticed.
KEPT_FIELDS = (
    "name",
    "group",
    "priority",
    "gpus_per_node",
    "retry",
    "preemption",
    "max_run_seconds",
    "fence_after_seconds",
    "cpus",
    "memory_bytes",
    "cpus_request",
    "memory_request_bytes",
    "nodes",
    "node_selector",
    "tolerations",
    "wait_for_nodes",
    "run_mode",
)
# The same of each role: what says how large its ranks are, how many share a node, and, by the order
# of start, how long a start may take.
KEPT_ROLE_FIELDS = ("name", "replicas", *SIZE_FIELDS, "starts_after", "ready")
_ADAPTER: TypeAdapter[Dump] = TypeAdapter(Dump)


def redacted(task: Task) -> Task:
    """The task with only what ``decide`` reads of its specification and its checkpoint."""
    kept = {name: getattr(task.spec, name) for name in KEPT_FIELDS}
    roles = tuple(
        Role.model_validate({name: getattr(role, name) for name in KEPT_ROLE_FIELDS})
        for role in task.spec.roles
    )
    checkpoint = task.checkpoint and task.checkpoint.model_copy(update={"uri": "", "digest": ""})
    return replace(task, spec=TaskSpec(roles=roles, **kept), checkpoint=checkpoint)


def dump(snapshot: Snapshot, now: datetime) -> bytes:
    """The snapshot as JSON."""
    listed = (Inventory("replayed", (), now),) if snapshot.inventory_listed else ()
    rows = Dump(
        now=now,
        version=snapshot.version,
        settings=snapshot.settings,
        tasks=tuple(map(redacted, snapshot.tasks.values())),
        nodes=tuple(snapshot.nodes.values()),
        limits=tuple(snapshot.limits.values()),
        inventories=listed,
        policies=tuple(snapshot.index.policies.values()),
        ledgers=tuple(snapshot.index.ledgers.values()),
    )
    return _ADAPTER.dump_json(rows, indent=1)


def read_dump(data: bytes) -> Dump:
    """Read what ``dump`` wrote; pydantic's ValidationError if it is something else."""
    return _ADAPTER.validate_json(data)


def write_dump(folder: Path, snapshot: Snapshot, now: datetime, *, files_max: int) -> Path | None:
    """Write a dump into a folder unless it holds ``files_max`` already; None then, or on failure.

    A full disk must not stop the scheduler: the dump is a courtesy.
    """
    name = f"snapshot-{now:%Y%m%dT%H%M%S}-{snapshot.version}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in folder.glob("snapshot-*.json")) >= files_max:
            return None
        path = folder / name
        path.write_bytes(dump(snapshot, now))
    except OSError:
        return None
    return path


def line(decision: Decision) -> str:
    """One terse line for a decision."""
    attempt = getattr(decision, "attempt", None)
    run = f"{decision.task_id}.{attempt}" if attempt is not None else decision.task_id
    where = " ".join(
        f"{p.node_id}[{','.join(map(str, p.gpus))}]" for p in getattr(decision, "placements", ())
    )
    return " ".join(part for part in (decision.kind, run, where) if part) + (
        f": {render(decision.reason)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Decide on a dump and print plan and violations; 1 if there are any."""
    parser = argparse.ArgumentParser(
        prog="python -m services.scheduler.replay", description="decide again on a dumped snapshot"
    )
    parser.add_argument("file", type=Path)
    path: Path = parser.parse_args(arguments).file
    read = read_dump(path.read_bytes())
    snapshot = read.snapshot()
    plan = decide(snapshot, read.now)
    found = check(snapshot, plan)
    out = [line(decision) for decision in plan.decisions]
    out += [f"VIOLATION {violation}" for violation in found]
    sys.stdout.write("\n".join(out or ["nothing to decide"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
