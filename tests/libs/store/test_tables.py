from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from sqlmodel import Field

from libs.contracts.messages import TaskState
from libs.store.columns import EnumText, JsonOf, enum_column, json_column, key_column, time_column
from libs.store.memory import MemoryDatabase, MemoryStore
from libs.store.tables import Tables, check_tables, table_base
from tests.libs.store.example import TABLES, Hands, Job, next_id


def test_the_example_is_in_order() -> None:
    assert check_tables(TABLES) == []


def test_the_shape_is_read_off_the_table() -> None:
    shape = TABLES.shape(Job)
    assert shape.key == ("job_id",)
    types = {column.name: column.sql_type for column in shape.columns}
    assert types["rank"] == "bigint"
    assert types["share"] == "double precision"
    assert types["state"] == types["client_key"] == "text"
    assert types["spec"] == types["labels"] == "jsonb"
    assert types["created_at"] == "timestamptz"
    assert [unique.name for unique in shape.uniques] == [
        "job_client_key_key",
        "job_one_live_per_rank",
    ]


def test_each_service_has_its_own_plumbing() -> None:
    names = {table.fullname for table in TABLES.metadata.tables.values()}
    assert {"thing.inbox", "thing.outbox", "thing.leader"} <= names
    assert table_base("other").metadata is not TABLES.metadata
    assert "other.job" not in table_base("other").metadata.tables


@dataclass(frozen=True)
class Row:
    row_id: str
    count: int
    state: TaskState
    moment: datetime


def problems(**columns: Any) -> str:
    """What is wrong with a table for ``Row`` of these columns (name=(annotation, field))."""
    base = table_base("thing")
    body = {name: field for name, (_, field) in columns.items() if field is not None}
    annotations = {name: annotation for name, (annotation, _) in columns.items()}
    body |= {"__annotations__": annotations, "__tablename__": "row", "__module__": __name__}
    made: Any = type(base)("RowTable", (base,), body, table=True)
    return "; ".join(check_tables(Tables("thing", {Row: made})))


GOOD: dict[str, Any] = {
    "row_id": (str, key_column()),
    "count": (int, None),
    "state": (TaskState, enum_column(TaskState)),
    "moment": (datetime, time_column()),
}


def changed(**changes: Any) -> dict[str, Any]:
    """``GOOD`` with other columns; fields are used up by a table, so they are made anew."""
    fresh = {
        "row_id": (str, key_column()),
        "count": (int, None),
        "state": (TaskState, enum_column(TaskState)),
        "moment": (datetime, time_column()),
    }
    return {name: value for name, value in (fresh | changes).items() if value is not None}


def test_a_good_table_has_no_problems() -> None:
    assert problems(**GOOD) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"count": None}, "field count of Row has no column"),
        ({"extra": (int, None)}, "column extra has no field in Row"),
        ({"count": (str, None)}, "field count is"),
        ({"count": (int | None, None)}, "or NULL"),
        ({"state": (str, None)}, "field state is"),
        ({"moment": (str, None)}, "field moment is"),
        ({"count": (int, Field(foreign_key="thing.row.row_id"))}, "foreign keys are not supported"),
    ],
)
def test_what_does_not_agree_is_named(change: dict[str, Any], expected: str) -> None:
    assert expected in problems(**changed(**change))


def test_a_native_enum_is_refused_with_the_fix() -> None:
    with pytest.raises(TypeError, match="use enum_column"):
        problems(**changed(state=(TaskState, None)))


def test_a_condition_without_its_function_is_named() -> None:
    base = table_base("thing")

    class RowTable(base, table=True):  # type: ignore[valid-type, misc]
        __tablename__ = "row"
        __table_args__ = (
            sa.Index("row_some", "count", unique=True, postgresql_where=sa.text("count > 1")),
            sa.CheckConstraint("count > 0", name="row_count"),
        )
        row_id: str = key_column()
        count: int
        state: TaskState = enum_column(TaskState)
        moment: datetime = time_column()

    found = "; ".join(check_tables(Tables("thing", {Row: RowTable})))
    assert "use partial_unique()" in found
    assert "use rule()" in found
    with pytest.raises(TypeError, match="partial_unique"):
        MemoryStore(
            MemoryDatabase(),
            Tables("thing", {Row: RowTable}),
            clock=Hands(),
            source="thing",
            new_id=next_id,
        )


def test_a_value_of_another_type_is_not_encoded() -> None:
    with pytest.raises(Exception, match="Expected `int`"):
        JsonOf(tuple[int, ...]).encode(("x",))
    with pytest.raises(ValueError, match="not a valid TaskState"):
        EnumText(TaskState).decode("GONE")


def test_columns_work_in_plain_sqlalchemy_too() -> None:
    engine_free: Any = sa.engine.default.DefaultDialect()
    kind = JsonOf(tuple[int, ...])
    assert kind.process_result_value(kind.process_bind_param((1, 2), engine_free), engine_free) == (
        1,
        2,
    )
    state = EnumText(TaskState)
    stored = state.process_bind_param(TaskState.QUEUED, engine_free)
    assert state.process_result_value(stored, engine_free) is TaskState.QUEUED
    assert json_column(TaskState) is not None
