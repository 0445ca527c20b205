"""The usage ledger: one entry for each attempt, made from the attempts that are known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from libs.store.alembic.steps import TEXT, TIMESTAMP

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# As the events would have made them. The priority is the task's of now, the checkpoint the run's.
BACKFILL = """
INSERT INTO gateway.usage
SELECT r.task_id, r.attempt, coalesce(t.owner, ''), coalesce(t.team, ''), coalesce(t."group", ''),
       coalesce(t.priority, ''), 0, p.gpus, p.nodes, r.assigned_at, r.started_at,
       (r.checkpoint ->> 'saved_at')::timestamptz, a.asked_at, a.asked_for, e.ended,
       coalesce(r.assigned_at, r.started_at), (r.exit ->> 'exited_at')::timestamptz,
       CASE
         WHEN r.exit IS NULL AND r.started_at IS NULL THEN 'starting'
         WHEN r.exit IS NULL THEN 'running'
         WHEN e.ended = 'ok' THEN 'succeeded'
         WHEN e.ended IN ('failed', 'lost', 'yielded', 'debug') THEN e.ended
         WHEN a.asked_for = 'goal_pause' THEN 'paused'
         WHEN a.asked_for = 'goal_stop' THEN 'stopped'
         WHEN a.asked_for = 'mode_changed' THEN 'mode_changed'
         WHEN a.asked_for IN ('max_run_time', 'debug_ended') THEN 'timed_out'
         WHEN a.asked_for IN ('start_expired', 'start_attempts_used_up') THEN 'lost'
         WHEN a.asked_for = '' AND e.ended <> 'preempted' THEN 'unknown'
         ELSE 'preempted'
       END
FROM gateway.run AS r
LEFT JOIN gateway.task AS t USING (task_id)
CROSS JOIN LATERAL (
  SELECT coalesce(sum(jsonb_array_length(placed -> 'gpus')), 0) AS gpus,
         count(DISTINCT placed ->> 'node_id') AS nodes
  FROM jsonb_array_elements(r.placements) AS placed
) AS p
CROSS JOIN LATERAL (
  SELECT least(r.preempt_requested_at, r.kill_requested_at) AS asked_at,
         coalesce(lower(replace(
           CASE WHEN r.kill_requested_at < r.preempt_requested_at THEN r.kill_reason
                ELSE coalesce(r.preempt_reason, r.kill_reason) END ->> 'code',
           'REASON_CODE_', '')), '') AS asked_for
) AS a
CROSS JOIN LATERAL (
  SELECT CASE
    WHEN r.exit IS NULL THEN ''
    WHEN (r.exit ->> 'yielded')::boolean THEN 'yielded'
    WHEN (r.exit ->> 'debug')::boolean
     AND r.exit ->> 'kind' IN ('EXIT_KIND_OK', 'EXIT_KIND_FAILED') THEN 'debug'
    ELSE lower(replace(r.exit ->> 'kind', 'EXIT_KIND_', ''))
  END AS ended
) AS e
WHERE r.attempt > 0
"""


def upgrade() -> None:
    """Forward; there is no way back, restore a backup instead."""
    op.create_table(
        "usage",
        sa.Column("task_id", TEXT, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        *(sa.Column(name, TEXT, nullable=False) for name in ("user", "team", "group", "priority")),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False)
            for name in ("priority_version", "gpus", "nodes")
        ),
        *(
            sa.Column(name, TIMESTAMP, nullable=True)
            for name in ("assigned_at", "started_at", "saved_at", "asked_at")
        ),
        *(sa.Column(name, TEXT, nullable=False) for name in ("asked_for", "ended")),
        *(sa.Column(name, TIMESTAMP, nullable=True) for name in ("held_from", "held_until")),
        sa.Column("outcome", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "attempt", name="usage_pkey"),
        schema="gateway",
    )
    op.create_index("usage_held_until_idx", "usage", ["held_until"], schema="gateway")
    op.execute(BACKFILL)
    # What a process of the version before projects from now on reaches no ledger. The next leader of
    # this version has every service publish its facts again, as for a new read model.
    op.execute("DELETE FROM gateway.rebuild")
