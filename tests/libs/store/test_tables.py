from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, NewType

import pytest
from pydantic import PlainSerializer

from libs.contracts.messages import Reason, TaskState
from libs.store.columns import EnumText, JsonOf
from libs.store.tables import Tables, index, partial_unique, rule, table, unique
from tests.libs.store.example import TABLES, Job, Slot

if TYPE_CHECKING:
    from pathlib import Path

Name = NewType("Name", str)
Loud = Annotated[float, PlainSerializer(lambda value: f"{value}!", when_used="json")]


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Part:
    size: int


@dataclass(frozen=True)
class Row:
    row_id: str
    count: int
    share: float
    ended: bool
    secret: bytes
    occurred_at: datetime
    state: TaskState
    colour: Colour
    level: Level
    name: Name
    number: Annotated[int, "a note"]
    reason: Reason
    part: Part
    labels: Mapping[str, str]
    several: tuple[Part, ...]
    either: int | str
    loud: dict[str, Loud]
    maybe_count: int | None
    maybe_state: TaskState | None = None
    maybe_reason: Reason | None = None
    maybe_loud: dict[str, Loud] | None = None


ROWS = Tables("thing", table(Row, "row", key="row_id"))


def test_the_columns_are_the_fields_in_their_order() -> None:
    assert [column.name for column in ROWS.shape(Row).columns] == list(Row.__dataclass_fields__)


@pytest.mark.parametrize(
    ("field", "sql_type"),
    [
        ("row_id", "text"),
        ("count", "bigint"),
        ("share", "double precision"),
        ("ended", "boolean"),
        ("secret", "bytea"),
        ("occurred_at", "timestamptz"),
        ("state", "text"),
        ("colour", "text"),
        ("level", "text"),
        ("name", "text"),
        ("number", "bigint"),
        ("reason", "jsonb"),
        ("part", "jsonb"),
        ("labels", "jsonb"),
        ("several", "jsonb"),
        ("either", "jsonb"),
        ("loud", "jsonb"),
        ("maybe_count", "bigint"),
        ("maybe_state", "text"),
        ("maybe_reason", "jsonb"),
        ("maybe_loud", "jsonb"),
    ],
)
def test_the_type_of_a_column_follows_from_the_annotation(field: str, sql_type: str) -> None:
    column = ROWS.shape(Row).column(field)
    assert column.sql_type == sql_type
    assert column.nullable == field.startswith("maybe_")
    declared = ROWS.metadata.tables["thing.row"].columns[field]
    assert declared.nullable == column.nullable


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("colour", Colour.RED, "red"),
        ("level", Level.LOW, "1"),
        ("part", Part(2), '{"size":2}'),
        ("several", (Part(2),), '[{"size":2}]'),
        ("labels", {"a": "b"}, '{"a":"b"}'),
        ("loud", {"a": 1.5}, '{"a":"1.5!"}'),
        ("maybe_loud", {"a": 1.5}, '{"a":"1.5!"}'),
        ("maybe_loud", None, None),
    ],
)
def test_a_value_is_encoded_according_to_its_annotation(
    field: str, value: Any, stored: Any
) -> None:
    assert ROWS.shape(Row).column(field).encoded(value) == stored


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", "1"),
        ("count", True),
        ("count", None),
        ("maybe_count", "1"),
        ("row_id", 1),
        ("state", "queued"),
        ("occurred_at", "now"),
        ("reason", None),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{field} is "):
        ROWS.shape(Row).column(field).check(value)


def test_the_shape_has_key_and_rules() -> None:
    shape = TABLES.shape(Job)
    assert shape.key == ("job_id",)
    assert [each.name for each in shape.uniques] == ["job_client_key_key", "job_one_live_per_rank"]
    assert [each.name for each in shape.checks] == ["job_share_positive"]
    assert TABLES.shape(Slot).key == ("node", "index")
    assert [each for each in TABLES.shapes.values() if each.recent] == [shape]


def test_rules_are_checked_in_the_order_of_the_database() -> None:
    made = table(
        Row,
        "row",
        rule("b", "count > 0", lambda row: row.count > 0),
        rule("a", "count > 1", lambda row: row.count > 1),
        partial_unique("d", "count", where="ended", holds=lambda row: row.ended),
        unique("name", name="c"),
        key="row_id",
    )
    assert [each.name for each in made.checks] == ["a", "b"]
    assert [each.name for each in made.uniques] == ["c", "d"]


def test_names_are_those_that_postgresql_would_give() -> None:
    made = Tables("thing", table(Row, "row", index("count", "name"), unique("name"), key="row_id"))
    declared = made.metadata.tables["thing.row"]
    assert {each.name for each in declared.indexes} == {"row_count_name_idx"}
    assert {each.name for each in declared.constraints} == {"row_pkey", "row_name_key"}


def test_each_service_has_its_own_plumbing() -> None:
    names = {each.fullname for each in TABLES.metadata.tables.values()}
    assert {"thing.inbox", "thing.outbox", "thing.leader"} <= names
    assert {"thing.dead_letter", "thing.dead_letter_body"} <= names
    other = Tables("other").metadata
    assert other is not TABLES.metadata
    assert "other.job" not in other.tables


def test_a_kind_without_a_table_is_named() -> None:
    with pytest.raises(TypeError, match=r"has no table for .*Part.*; it has .*Row"):
        ROWS.shape(Part)


@dataclass(frozen=True)
class Unresolved:
    path: Path


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (lambda: table(Row, "row", key="id"), "table row: Row has no field id"),
        (lambda: table(Row, "row", index("x"), key="row_id"), "table row: Row has no field x"),
        (lambda: table(Row, "row", unique("x"), key="row_id"), "table row: Row has no field x"),
        (lambda: table(Row, "row", key=()), "table row: it needs a primary key"),
        (lambda: table(Unresolved, "row", key="path"), "Unresolved: name 'Path' is not defined"),
        (lambda: Tables("thing", table(Row, "outbox", key="row_id")), "a table 'outbox'"),
        (lambda: Tables("thing", table(Row, "dead_letter", key="row_id")), "'dead_letter'"),
        (
            lambda: Tables("thing", table(Row, "a", key="row_id"), table(Part, "a", key="size")),
            "schema 'thing' already has a table 'a'",
        ),
        (
            lambda: Tables("thing", table(Row, "a", key="row_id"), table(Row, "b", key="row_id")),
            "Row has two tables",
        ),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_declared(
    declare: Callable[[], object], expected: str
) -> None:
    with pytest.raises(TypeError, match=expected):
        declare()


def test_an_expression_may_be_indexed() -> None:
    made = Tables("thing", table(Row, "row", index("reverse(name)", name="tail"), key="row_id"))
    assert [each.name for each in made.metadata.tables["thing.row"].indexes] == ["tail"]


def test_a_running_service_does_not_import_sqlalchemy() -> None:
    program = (
        "import sys, services.allinone.composition as composition\n"
        "print(len(composition.WIRINGS), 'sqlalchemy' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["7", "False"]


def test_a_value_of_another_type_is_not_encoded() -> None:
    with pytest.raises(Exception, match="Expected `int`"):
        JsonOf(tuple[int, ...]).encode(("x",))
    with pytest.raises(ValueError, match="not a valid TaskState"):
        EnumText(TaskState).decode("GONE")


def test_an_encoded_value_comes_back() -> None:
    numbers = JsonOf(tuple[int, ...])
    assert numbers.decode(numbers.encode((1, 2))) == (1, 2)
    state = EnumText(TaskState)
    assert state.decode(state.encode(TaskState.QUEUED)) is TaskState.QUEUED
