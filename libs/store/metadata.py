"""A service's whole schema as SQLAlchemy metadata, which Alembic compares with a database.

``Tables.metadata`` calls it, for migrations and tests. A running service does not import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from libs.store.tables import INBOX, LEADER, OUTBOX, REFUSED, UNREFUSED

if TYPE_CHECKING:
    from libs.store.rows import Shape
    from libs.store.tables import Tables

# Compares and sorts by code points, as Python does, independently of the database's locale.
TEXT = sa.Text(collation="C")
TIMESTAMP = sa.DateTime(timezone=True)
_TYPES: Mapping[str, Any] = {
    "bigint": sa.BigInteger(),
    "double precision": sa.Double(),
    "boolean": sa.Boolean(),
    "text": TEXT,
    "timestamptz": TIMESTAMP,
    "bytea": sa.LargeBinary(),
    "jsonb": JSONB(),
}


def metadata_of(tables: Tables) -> sa.MetaData:
    """Return every table of the schema, including inbox, outbox and leader."""
    metadata = sa.MetaData(schema=tables.schema, naming_convention={"pk": "%(table_name)s_pkey"})
    _add_common_tables(metadata)
    for shape in tables.shapes.values():
        columns = (
            sa.Column(each.name, _TYPES[each.sql_type], nullable=each.nullable)
            for each in shape.columns
        )
        key = sa.PrimaryKeyConstraint(*shape.key)
        sa.Table(shape.table, metadata, *columns, key, *_rules(shape))
    return metadata


def _rules(shape: Shape) -> Iterable[sa.schema.SchemaItem]:
    """Return the indexes and constraints of one table, without its primary key."""
    for each in shape.indexes:
        parts = (part if part.isidentifier() else sa.text(part) for part in each.columns)
        yield sa.Index(each.name, *parts, postgresql_where=_text(each.where))
    for each in shape.uniques:
        if each.sql is None:
            yield sa.UniqueConstraint(*each.columns, name=each.name)
        else:
            yield sa.Index(each.name, *each.columns, unique=True, postgresql_where=_text(each.sql))
    for each in shape.checks:
        yield sa.CheckConstraint(sa.text(each.sql), name=each.name)


def _text(sql: str | None) -> sa.TextClause | None:
    return None if sql is None else sa.text(sql)


def _add_common_tables(metadata: sa.MetaData) -> None:
    """Declare the tables that every service has."""
    sa.Table(
        INBOX,
        metadata,
        sa.Column("event_id", TEXT, primary_key=True),
        sa.Column("seen_at", TIMESTAMP, nullable=False),
        # For pruning, which deletes the oldest rows first. A block range index does not help: once
        # pruned space is reused, the same blocks hold old and new rows.
        sa.Index("inbox_seen_idx", "seen_at"),
    )
    sa.Table(
        OUTBOX,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=True),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("time", TIMESTAMP, nullable=False),
        sa.Column("traceparent", TEXT, nullable=False),
        # Text and not JSONB, so that an event is published again byte for byte.
        sa.Column("body", TEXT, nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        # For people only: the period, not a clock, decides what is published again or dropped.
        sa.Column("published_at", TIMESTAMP, nullable=True),
        sa.Column("period", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        # When the bus refused the event first; NULL if it did not.
        sa.Column("refused_at", TIMESTAMP, nullable=True),
        # Two indexes, so that no query has to skip refused rows.
        sa.Index(
            "outbox_unpublished_idx",
            "id",
            postgresql_where=sa.text(UNREFUSED),
        ),
        sa.Index(
            "outbox_refused_idx",
            "id",
            postgresql_where=sa.text(REFUSED),
        ),
    )
    sa.Table(
        LEADER,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        # The bus server that the outbox was last published to.
        sa.Column("bus_server", TEXT, nullable=False),
        # The outbox's current period: see ``port.Store.next_period``.
        sa.Column("period", sa.BigInteger, nullable=False, server_default=sa.text("0")),
        sa.CheckConstraint(sa.text("id = 1"), name="leader_one_row"),
    )
