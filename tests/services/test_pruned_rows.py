"""Every service deletes exactly the rows whose time is over, on both stores.

The rows are generated from the tables. Of each one that forgets by age there are rows just beyond
their time, just within it, and of a clock that was ahead, and rows that never grow old with times
long past. Of each other table there is a row with times long past, which stays. Rows that go with
others stand beside each of these.

``AGES`` says what grows old, independently of the services' rules. A table that declares an age and
is not in it fails. The dead letters, which every service has, are ``libs/service``'s.
"""

from __future__ import annotations

import dataclasses
import types
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import pytest

from libs.contracts.base import Message
from libs.contracts.messages import AbnormalOutcome, TaskSpec
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow
from libs.store.retention import deleted_by_age
from libs.store.rows import Shape
from libs.store.tables import Tables, table
from libs.store.task_traces import TaskTrace
from services.allinone.composition import WIRINGS
from services.gateway import rows as gateway
from services.gateway.store import HEAD
from services.launcher.domain import model as launcher
from services.log_collector import store as log_collector
from services.monitor import store as monitor
from services.monitor.abnormal import store as abnormal
from services.monitor.activities import ActivityRow
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.series.store import SeriesRow
from services.quota import store as quota
from services.scheduler import store as scheduler
from services.scheduler.domain.model import rows as scheduling
from services.submit import store as submit
from tests.kit.clock import START
from tests.kit.example_messages import example_of
from tests.libs.store.test_tables import Row
from tests.services.test_retention import built

if TYPE_CHECKING:
    from libs.service.settings import BaseServiceSettings
    from libs.service.wiring import Wiring
    from libs.store.port import Store
    from tests.kit.memory import MemoryPlatform

SECOND, DAY, YEARS = timedelta(seconds=1), timedelta(days=1), timedelta(days=3650)
PAST, FUTURE = START - YEARS, START + YEARS
# The loops that delete what is old.
LOOPS = {"prune", "housekeeping", "drop"}
# Fewer than the rows of one kind that go, so that no batch is the whole.
BATCH = 2
COMMON = {DeadLetterRow, DeadLetterBody}
Fields = Mapping[str, Any]
Kind = type[Any]


@dataclass(frozen=True)
class Neighbour:
    """A row of another table with the same key."""

    kind: Kind
    fields: Fields
    # It is deleted together with the row beside it.
    goes: bool


@dataclass(frozen=True)
class Ages:
    """Rows that are deleted so long after the time in one column."""

    column: str
    # A setting, or the time itself.
    keep: str | timedelta
    # What is true of the rows that grow old at all.
    ended: Fields = field(default_factory=dict[str, Any])
    # Of rows that never do.
    live: Sequence[Fields] = ()
    beside: Neighbour | None = None

    def seconds(self, settings: BaseServiceSettings) -> timedelta:
        """How long the rows are kept."""
        if isinstance(self.keep, timedelta):
            return self.keep
        amount: float = getattr(settings, self.keep)
        return timedelta(days=amount) if self.keep.endswith("_days") else timedelta(seconds=amount)


def removed(setting: str) -> list[Ages]:
    return [Ages("changed_at", setting, {"removed": True}, [{"removed": False}])]


def request(column: str, other: str) -> Ages:
    """A request for a run that never came."""
    state = launcher.RunState
    assigned = {"state": state.ASSIGNED, "spec": example_of(TaskSpec), "ending_at": None}
    early = {"state": state.EARLY_REQUEST, other: None, "ending_at": None}
    return Ages(column, "inbox_keep_seconds", early, [assigned])


REMOVED_NODES, REMOVED_QUOTAS = "removed_node_keep_seconds", "removed_quota_keep_seconds"
AGES: Mapping[Kind, Sequence[Ages]] = {
    submit.TaskRow: [Ages("ended_at", "tasks_keep_seconds", live=[{"ended_at": None}])],
    TaskTrace: [Ages("kept_at", "trace_keep_seconds")],
    submit.NodeRow: removed(REMOVED_NODES),
    submit.QuotaRow: removed(REMOVED_QUOTAS),
    scheduling.Node: removed(REMOVED_NODES),
    scheduling.Limit: removed(REMOVED_QUOTAS),
    scheduling.EarlyFacts: [Ages("first_at", "early_keep_seconds")],
    scheduling.EndedTask: [Ages("ended_at", "ended_keep_seconds")],
    scheduler.DecisionRow: [Ages("decided_at", "decisions_keep_seconds")],
    launcher.Run: [
        request("preempt_requested_at", "kill_requested_at"),
        request("kill_requested_at", "preempt_requested_at"),
    ],
    launcher.PastRun: [Ages("forgotten_at", "past_keep_seconds")],
    launcher.NodeRow: removed(REMOVED_NODES),
    log_collector.RunRow: [
        Ages("exited_at", "keep_days", {"collected": True}, [{"collected": False}]),
    ],
    quota.QuotaRow: removed("ledger_keep_seconds"),
    # Those without a run; the others go with their last one, whenever they became known.
    quota.TaskRow: [Ages("heard_at", "ledger_keep_seconds", live=[{"heard_at": None}])],
    quota.RunRow: [
        Ages(
            "ended_at",
            "ledger_keep_seconds",
            live=[{"ended_at": None}],
            beside=Neighbour(quota.TaskRow, {"heard_at": heard_at}, goes=True),
        )
        for heard_at in (None, PAST)
    ],
    monitor.TaskRow: [Ages("ended_at", "ended_tasks_keep_seconds", live=[{"ended_at": None}])],
    monitor.MessageRow: [
        Ages(
            "due_at",
            "messages_keep_seconds",
            {"stage": stage},
            [{"stage": monitor.Stage.WAITING}],
        )
        for stage in (monitor.Stage.DELIVERED, monitor.Stage.DEAD)
    ],
    monitor.MailboxRow: [Ages("rate_until", "messages_keep_seconds")],
    ActivityRow: [Ages("measured_until", "ended_tasks_keep_seconds")],
    FactsRow: [Ages("closed_at", "findings_keep_seconds", live=[{"closed_at": None}])],
    abnormal.ActionRow: [
        Ages("decided_at", "findings_keep_seconds", {"outcome": outcome}, [{"outcome": waiting}])
        for waiting in (AbnormalOutcome.WAITING,)
        for outcome in AbnormalOutcome
        if outcome is not waiting
    ],
    SeriesRow: [Ages("expires_at", timedelta(0))],
    gateway.TaskRow: [Ages("finished_at", "tasks_keep_seconds", live=[{"finished_at": None}])],
    gateway.AcceptedRow: [
        # Without an event, and with one.
        Ages("submitted_at", "tasks_keep_seconds"),
        Ages(
            "submitted_at",
            "accepted_keep_seconds",
            beside=Neighbour(gateway.TaskRow, {"finished_at": None}, goes=False),
        ),
    ],
    gateway.UsageRow: [Ages("held_until", "usage_keep_seconds", live=[{"held_until": None}])],
    gateway.NodeRow: removed(REMOVED_NODES),
    gateway.QuotaRow: removed(REMOVED_QUOTAS),
    gateway.EventRow: [Ages("entered_at", "events_keep_seconds")],
    gateway.TokenRow: [
        Ages(
            column,
            "tokens_keep_seconds",
            {other: None},
            [{"revoked_at": None, "expires_at": None}],
        )
        for column, other in (("revoked_at", "expires_at"), ("expires_at", "revoked_at"))
    ],
    gateway.TokenUseRow: [Ages("used_at", "audit_keep_seconds")],
    gateway.AuditRow: [Ages("at", "audit_keep_seconds")],
    gateway.SessionRow: [Ages("expires_at", DAY)],
    gateway.LoginUseRow: [Ages("used_at", DAY)],
    gateway.LoginCodeRow: [Ages("expires_at", DAY)],
}
# What rows need to be stored at all, or to be consistent.
NEEDED: Mapping[Kind, Fields] = {
    # The events are at the positions 1 to 4, in the order in which they are generated.
    gateway.EventHeadRow: {"name": HEAD, "position": 4, "oldest": 1},
}
# Rows that belong to others, but not to those that are deleted by age.
ONLY_OF_LIVE = {launcher.ReadyReport}


def own(tables: Tables) -> list[Shape]:
    return [shape for shape in tables.shapes.values() if shape.kind not in COMMON]


def without_data(tables: Tables) -> list[str]:
    """The tables that forget by age and of which this test knows nothing."""
    found = [shape for shape in own(tables) if shape.retention and shape.kind not in AGES]
    return [
        shape.table
        for shape in found
        if shape.retention is not None
        and (shape.retention.rules or "by age" in shape.retention.text)
    ]


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.name)
def test_every_table_that_forgets_by_age_is_tested_here(wiring: Wiring) -> None:
    assert without_data(wiring.tables) == []


def test_a_new_table_without_data_is_found() -> None:
    forgets = deleted_by_age("keep_seconds", "its end", rule="rows")
    tables = Tables("thing", table(Row, "row", key="row_id", retention=forgets))
    assert without_data(tables) == ["row"]


@dataclass
class Made:
    """Generated rows, and what is to become of each."""

    tables: Tables
    rows: list[object] = field(default_factory=list[object])
    what: dict[tuple[Kind, tuple[Any, ...]], str] = field(
        default_factory=dict[tuple[Kind, tuple[Any, ...]], str]
    )
    gone: set[tuple[Kind, tuple[Any, ...]]] = field(
        default_factory=set[tuple[Kind, tuple[Any, ...]]]
    )
    counts: defaultdict[Kind, int] = field(default_factory=lambda: defaultdict[Kind, int](int))

    def add(self, kind: Kind, times: datetime, fields: Fields, what: str, *, goes: bool) -> Any:
        """A new row; ``times``: what is in each column of times that ``fields`` does not name."""
        self.counts[kind] += 1
        shape = self.tables.shape(kind)
        row = filled(shape, self.counts[kind], times, {**NEEDED.get(kind, {}), **fields})
        name = kind, key_of(shape, row)
        assert name not in self.what, f"two rows are {name}"
        self.rows.append(row)
        self.what[name] = what
        if goes:
            self.gone.add(name)
        return row

    def beside(self, row: object, kind: Kind, fields: Fields, what: str, *, goes: bool) -> Any:
        """A row of another kind whose key begins as this one's, or is the beginning of it."""
        shared = key_of(self.tables.shape(type(row)), row)
        named = dict(zip(self.tables.shape(type(row)).key, shared, strict=True))
        # Its columns of the same names say of which row it is.
        columns = {each.name for each in dataclasses.fields(kind)}
        key = {name: value for name, value in named.items() if name in columns}
        key |= dict(zip(self.tables.shape(kind).key, shared, strict=False))
        return self.add(kind, FUTURE if goes else PAST, {**key, **fields}, what, goes=goes)


def key_of(shape: Shape, row: object) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in shape.key)


def filled(shape: Shape, number: int, times: datetime, fields: Fields) -> Any:
    """A row with these fields; of the others, those without a default get a value of their type.
    Rows of different tables or numbers have different keys, names and numbers."""
    hints = get_type_hints(shape.kind)
    values = dict(fields)
    for each in dataclasses.fields(shape.kind):
        hint = hints[each.name]
        is_time = datetime in (hint, *get_args(hint))
        has_default = (each.default, each.default_factory) != (dataclasses.MISSING,) * 2
        if each.name in fields or (has_default and not is_time):
            continue
        values[each.name] = times if is_time else _value(hint, shape.table, number)
    return shape.kind(**values)


def _value(hint: Any, name: str, number: int) -> Any:
    """A value of this type, as it is in the row of this number."""
    hint = getattr(hint, "__supertype__", hint)
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return None
    if origin is str:
        return f"{name}-{number}"
    if origin in (int, float, bool):
        return origin(0 if origin is bool else number)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(iter(hint))
    if isinstance(hint, type) and issubclass(hint, Message):
        return example_of(hint)
    return dict[str, Any]() if origin is Mapping else origin()


def generated(tables: Tables, settings: BaseServiceSettings) -> Made:
    """The rows of every table of a service."""
    made = Made(tables)
    shapes = own(tables)
    for shape in shapes:
        if shape.retention is not None and shape.retention.parent is None:
            if shape.kind in AGES:
                for ages in AGES[shape.kind]:
                    _of_age(made, shape.kind, ages, settings)
            else:
                made.add(shape.kind, PAST, {}, "never grows old", goes=False)
    for shape in _parents_first(shapes):
        assert shape.retention is not None
        for row in [each for each in made.rows if type(each) is shape.retention.parent]:
            name = type(row), key_of(tables.shape(type(row)), row)
            goes = name in made.gone
            if not (goes and shape.kind in ONLY_OF_LIVE):
                made.beside(row, shape.kind, {}, f"of one that {made.what[name]}", goes=goes)
    return made


def _of_age(made: Made, kind: Kind, ages: Ages, settings: BaseServiceSettings) -> None:
    end = START - ages.seconds(settings)
    for at, times, what, goes in (
        # The other times say the opposite: none of them decides.
        (end - SECOND, FUTURE, "is past its time", True),
        (end - YEARS, FUTURE, "is long past its time", True),
        (end + SECOND, PAST, "is within its time", False),
        (FUTURE, PAST, "is of a clock that was ahead", False),
    ):
        fields = {**ages.ended, ages.column: at}
        _with_neighbour(made, made.add(kind, times, fields, what, goes=goes), ages, what, goes=goes)
    for live in ages.live:
        what = f"never grows old: {live}"
        row = made.add(kind, PAST, {ages.column: PAST, **live}, what, goes=False)
        _with_neighbour(made, row, ages, what, goes=False)


def _with_neighbour(made: Made, row: object, ages: Ages, what: str, *, goes: bool) -> None:
    if ages.beside is not None:
        near = ages.beside
        goes = goes and near.goes
        made.beside(row, near.kind, near.fields, f"of one that {what}", goes=goes)


def _parents_first(shapes: Iterable[Shape]) -> list[Shape]:
    """The tables whose rows go with others, each behind the one that it goes with."""
    left = {each.kind: each for each in shapes if each.retention and each.retention.parent}
    found: list[Shape] = []
    while left:
        ready = [
            each
            for each in left.values()
            if each.retention is not None and each.retention.parent not in left
        ]
        assert ready, f"rows that go with one another: {list(left)}"
        found += ready
        for each in ready:
            del left[each.kind]
    return found


@pytest.fixture(params=WIRINGS, ids=lambda wiring: wiring.name)
def wiring(request: pytest.FixtureRequest) -> Wiring:
    return request.param


async def test_exactly_the_rows_whose_time_is_over_are_deleted(
    platform: MemoryPlatform, wiring: Wiring, store: Store
) -> None:
    service, settings = built(
        wiring, platform, store=store, prune_days_per_hour=0, prune_rows_max=BATCH
    )
    made = generated(wiring.tables, settings)
    assert made.gone, "the service forgets something"
    leadership = await store.lead()
    async with store.transaction() as tx:
        tx.put(*made.rows)

    loops = [each for each in service.loops if each.name in LOOPS]
    for loop in loops:
        while True:
            if loop.prepare is not None:
                await loop.prepare()
            if await loop.step(leadership.epoch) is None:
                break

    left: set[tuple[Kind, tuple[Any, ...]]] = set()
    async with store.transaction() as tx:
        for shape in own(wiring.tables):
            left |= {(shape.kind, key_of(shape, row)) for row in await tx.select(shape.kind)}
    lost = {name: made.what[name] for name in made.what if name not in left | made.gone}
    assert lost == {}, "deleted too early"
    assert {name: made.what[name] for name in left & made.gone} == {}, "kept too long"
