"""Migration steps for the tables that every service's schema has.

The services' migrations call them, some as the whole ``upgrade``. A released step never changes,
even if the tables change later.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

TEXT = sa.Text(collation="C")
TIMESTAMP = sa.DateTime(timezone=True)


def _schema() -> str:
    """Return the schema of the service that is migrated."""
    return str(op.get_context().version_table_schema)


def create_plumbing() -> None:
    """Create inbox, outbox and leader."""
    schema = _schema()
    op.create_table(
        "inbox",
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("seen_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("inbox_pkey")),
        schema=schema,
    )
    op.create_index(
        "inbox_seen_at_idx",
        "inbox",
        ["seen_at"],
        schema=schema,
        postgresql_using="brin",
    )
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("bus_server", TEXT, nullable=False),
        sa.CheckConstraint("id = 1", name="leader_one_row"),
        sa.PrimaryKeyConstraint("id", name=op.f("leader_pkey")),
        schema=schema,
    )
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("source", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("time", TIMESTAMP, nullable=False),
        sa.Column("traceparent", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("created_at", TIMESTAMP, nullable=False),
        sa.Column("published_at", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("outbox_pkey")),
        schema=schema,
    )
    op.create_index(
        "outbox_published_at_idx",
        "outbox",
        ["published_at"],
        schema=schema,
        postgresql_using="brin",
    )
    op.create_index(
        "outbox_unpublished_idx",
        "outbox",
        ["id"],
        schema=schema,
        postgresql_where=sa.text("published_at IS NULL"),
    )


def keep_dead_letters() -> None:
    """Create the table of dead letters, which can be replayed."""
    schema = _schema()
    op.create_table(
        "dead_letter",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("direction", TEXT, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("headers", postgresql.JSONB(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("reason", TEXT, nullable=False),
        sa.Column("set_apart_at", TIMESTAMP, nullable=False),
        sa.Column("replays", sa.BigInteger(), nullable=False),
        sa.Column("replay_at", TIMESTAMP, nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("dead_letter_pkey")),
        schema=schema,
    )
    op.create_index(
        op.f("dead_letter_set_apart_at_idx"),
        "dead_letter",
        ["set_apart_at"],
        schema=schema,
    )


def index_inbox_by_age() -> None:
    """Add an index by which pruning finds old rows of the inbox."""
    schema = _schema()
    op.create_index("inbox_seen_idx", "inbox", ["seen_at"], schema=schema)
    # No statement needs the old index, and the new one serves the code before this version too.
    op.drop_index("inbox_seen_at_idx", table_name="inbox", schema=schema)


def number_outbox_periods() -> None:
    """Add periods: their numbers, not a clock, decide what is published again or dropped."""
    schema = _schema()
    for table in ("outbox", "leader"):
        op.add_column(
            table,
            sa.Column("period", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
            schema=schema,
        )
    # No statement needs this index: the code before this version reads the whole table as well.
    op.drop_index("outbox_published_at_idx", table_name="outbox", schema=schema)


def keep_refused_events() -> None:
    """Keep refused events in the outbox, and move the bodies of dead letters to their own table.

    The code before this version publishes as before, but slower. If it sets an event apart, its
    insert fails because a column is gone; the event stays on the bus and is delivered again to the
    new code.
    """
    schema = _schema()
    op.add_column("outbox", sa.Column("refused_at", TIMESTAMP, nullable=True), schema=schema)
    op.drop_index("outbox_unpublished_idx", table_name="outbox", schema=schema)
    for name, refused in (("outbox_unpublished_idx", "NULL"), ("outbox_refused_idx", "NOT NULL")):
        op.create_index(
            name,
            "outbox",
            ["id"],
            schema=schema,
            postgresql_where=sa.text(f"published_at IS NULL AND refused_at IS {refused}"),
        )
    op.create_table(
        "dead_letter_body",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("dead_letter_body_pkey")),
        schema=schema,
    )
    op.add_column(
        "dead_letter",
        sa.Column("size", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        schema=schema,
    )
    letters = f"{schema}.dead_letter"
    op.execute(f"INSERT INTO {letters}_body (id, body) SELECT id, body FROM {letters}")  # noqa: S608 - our names
    op.execute(f"UPDATE {letters} SET size = octet_length(body)")  # noqa: S608 - our names
    op.drop_column("dead_letter", "body", schema=schema)


def keep_traces_of_tasks() -> None:
    """Create the table of the places of tasks in their traces."""
    schema = _schema()
    op.create_table(
        "tasktrace",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("traceparent", TEXT, nullable=False),
        sa.Column("submitted", TEXT, nullable=False),
        sa.Column("kept_at", TIMESTAMP, nullable=False),
        sa.PrimaryKeyConstraint("task_id", name=op.f("tasktrace_pkey")),
        schema=schema,
    )
    op.create_index("tasktrace_kept_at_idx", "tasktrace", ["kept_at"], schema=schema)
