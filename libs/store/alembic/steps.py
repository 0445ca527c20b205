"""Migration steps that every service's history has: changes of the tables that all services share.

Called by the services' migrations. A step is never changed once it was released, whatever becomes
of the tables.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


def number_outbox_periods(schema: str) -> None:
    """What is published again or dropped goes by numbered periods instead of by a clock."""
    for table in ("outbox", "leader"):
        op.add_column(
            table,
            sa.Column("period", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
            schema=schema,
        )
    # No statement needs it: the code before this one reads the whole table as well.
    op.drop_index("outbox_published_at_idx", table_name="outbox", schema=schema)


def keep_refused_events(schema: str) -> None:
    """What the bus refuses stays in the outbox, and the bodies of dead letters lie apart.

    The code before this one publishes as it did, if slower. An event that it would set apart fails
    at this column, so the event stays on the bus and comes again to the code that replaces it.
    """
    moment, text = sa.DateTime(timezone=True), sa.Text(collation="C")
    op.add_column("outbox", sa.Column("refused_at", moment, nullable=True), schema=schema)
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
        sa.Column("id", text, nullable=False),
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
