"""An example service's rows and tables, with every kind of column, for the tests of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from libs.contracts.messages import (
    Placement,
    PreemptionPolicy,
    Quota,
    QuotaChanged,
    Reason,
    RetryPolicy,
    TaskSpec,
    TaskState,
)
from libs.store.tables import Tables, partial_unique, rule, table, unique
from tests.kit.clock import START
from tests.kit.memory import numbered


@dataclass(frozen=True, slots=True)
class Job:
    job_id: str
    state: TaskState
    spec: TaskSpec
    placements: tuple[Placement, ...]
    gpus: tuple[int, ...]
    labels: Mapping[str, str]
    created_at: datetime
    rank: int
    share: float
    ended: bool
    secret: bytes
    client_key: str | None
    deadline_at: datetime | None
    reason: Reason | None
    previous: TaskState | None


@dataclass(frozen=True, slots=True)
class Slot:
    node: str
    index: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Pair:
    left: str
    right: int


TABLES = Tables(
    "thing",
    table(
        Job,
        "job",
        unique("client_key"),
        partial_unique(
            "job_one_live_per_rank",
            "rank",
            where="NOT ended",
            holds=lambda row: not row.ended,
        ),
        rule("job_share_positive", "share >= 0", lambda row: row.share >= 0),
        key="job_id",
        recent=True,
    ),
    table(Slot, "slot", key=("node", "index")),
    table(Pair, "pair", key=("left", "right")),
)


next_id = numbered("event-")


def a_spec(name: str = "train") -> TaskSpec:
    return TaskSpec(
        name=name,
        retry=RetryPolicy(max_retries=2),
        preemption=PreemptionPolicy(ack_deadline_seconds=60.0),
        memory_bytes=2**53 + 1,
        labels={"team": "vision", "quote": 'it\'s "so"'},
    )


def a_job(job_id: str = "j1", **changes: Any) -> Job:
    rank = int("".join(each for each in job_id if each.isdigit()) or 0)
    values: dict[str, Any] = {
        "job_id": job_id,
        "state": TaskState.QUEUED,
        "spec": a_spec(),
        "placements": (Placement(rank=0, node_id="n.1", gpus=(0, 1)),),
        "gpus": (3, 1, 2),
        "labels": {"a": "1"},
        "created_at": START + timedelta(microseconds=7),
        "rank": rank,
        "share": 0.1,
        "ended": False,
        "secret": b"\x00\xff",
        "client_key": None,
        "deadline_at": None,
        "reason": None,
        "previous": None,
    }
    return Job(**(values | changes))


def an_event(user: str = "ada", version: int = 1) -> QuotaChanged:
    return QuotaChanged(
        group_token="training",
        quota=Quota(group="training", user=user, limit=version),
        version=version,
        changed_at=START,
    )


def create_statements() -> list[str]:
    """The schema's DDL as SQLAlchemy writes it, for tests that need no migrations."""
    dialect = postgresql.dialect()
    found: list[str] = []
    for each in TABLES.metadata.sorted_tables:
        found.append(str(sa.schema.CreateTable(each).compile(dialect=dialect)))
        found += [
            str(sa.schema.CreateIndex(index).compile(dialect=dialect)) for index in each.indexes
        ]
    return found
