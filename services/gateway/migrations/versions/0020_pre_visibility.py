"""Events know whose they are; lists of tasks have an index for each order and filter."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# Events of tasks that are not kept any more stay without an owner: operators alone see them. So do
# those that a process of the version before writes from now on, until a leader of this version adds
# what is missing (``eventlog.claim_all``).
BACKFILL = """
UPDATE gateway.event AS e
SET owner = t.owner, team = t.team, "group" = t."group"
FROM gateway.task AS t
WHERE e.task_id = t.task_id AND t.submitted_at IS NOT NULL
"""
OF_NO_TASK = """
UPDATE gateway.event
SET "group" = coalesce(data #>> '{node,group}', data #>> '{quota,group}', data ->> 'group', '')
WHERE task_id = ''
"""


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    for name in ("owner", "team", "group"):
        column = sa.Column(name, TEXT, nullable=False, server_default=sa.text("''"))
        op.add_column("event", column, schema="gateway")
    op.execute(BACKFILL)
    op.execute(OF_NO_TASK)
    op.drop_index("event_task_id_idx", "event", schema="gateway")
    for name in ("task_id", "owner", "team", "group"):
        op.create_index(f"event_{name}_position_idx", "event", [name, "position"], schema="gateway")
    op.create_index(
        "event_ownerless",
        "event",
        ["position"],
        schema="gateway",
        postgresql_where=sa.text("owner = '' AND task_id <> ''"),
    )
    for name in ("owner", "name", "state"):
        op.drop_index(f"task_{name}_idx", "task", schema="gateway")
    for name in ("owner", "team", "group", "name"):
        op.create_index(f"task_{name}_task_id_idx", "task", [name, "task_id"], schema="gateway")
    for name, *columns in (
        ("task_priority", "priority_order DESC", "task_id"),
        ("task_state", "state", "task_id DESC"),
    ):
        op.create_index(name, "task", [sa.text(each) for each in columns], schema="gateway")
