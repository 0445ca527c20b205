"""The gateway's schema, ``gateway``: one table for each row of ``rows.py``."""

from __future__ import annotations

from libs.store.retention import Retention, deleted_by_age, goes_with, one_per
from libs.store.tables import Tables, index, table, unique
from services.gateway import rows

TABLES = Tables(
    "gateway",
    table(
        rows.TaskRow,
        "task",
        # For each order of lists (``api/tasks.py``), and for those of one owner, team or group.
        index("owner", "task_id"),
        index("team", "task_id"),
        index("group", "task_id"),
        index("name", "task_id"),
        index("state", "task_id DESC", name="task_state"),
        index("priority_order DESC", "task_id", name="task_priority"),
        index("chain"),
        # Tasks that have not ended are not in it.
        index("finished_at", name="task_finished", where="finished_at IS NOT NULL"),
        # Finds tasks by an id's end.
        index("reverse(task_id)", name="task_id_tail"),
        key="task_id",
        recent=True,
        retention=deleted_by_age("tasks_keep_seconds", "the task's end", rule="tasks"),
    ),
    table(
        rows.AcceptedRow,
        "accepted",
        index("owner"),
        index("name"),
        index("state"),
        key="task_id",
        retention=Retention(
            "by age once the task's event is projected; without that, as old as an ended task",
            ("accepted_keep_seconds", "tasks_keep_seconds"),
        ),
    ),
    table(
        rows.RunRow,
        "run",
        index("live"),
        key=("task_id", "attempt"),
        recent=True,
        retention=goes_with(rows.TaskRow),
    ),
    table(
        rows.UsageRow,
        "usage",
        # Finds what was held in a period, and what is old.
        index("held_until"),
        # Finds out whether a user or a team may be removed.
        index("user"),
        index("team"),
        key=("task_id", "attempt"),
        recent=True,
        retention=deleted_by_age("usage_keep_seconds", "the attempt's end", rule="usage"),
    ),
    table(
        rows.NodeRow,
        "node",
        key="node_id",
        retention=one_per(
            "node of the inventory", setting="removed_node_keep_seconds", rule="removed nodes"
        ),
    ),
    table(
        rows.QuotaRow,
        "quota",
        key=("group", "user", "team", "priority", "unit", "grant"),
        retention=one_per(
            "cap and grant", setting="removed_quota_keep_seconds", rule="removed quotas"
        ),
    ),
    table(
        rows.EventRow,
        "event",
        index("fact"),
        index("task_id", "position"),
        index("owner", "position"),
        index("team", "position"),
        index("group", "position"),
        # Those whose owner is found when the task's submission is projected, or by the next leader.
        index("position", name="event_ownerless", where="owner = '' AND task_id <> ''"),
        key="position",
        retention=Retention(
            "the newest so many, of so many bytes, and by age",
            ("events_kept_max", "events_bytes_max", "events_keep_seconds"),
        ),
    ),
    table(rows.EventHeadRow, "eventhead", key="name", recent=True, retention=Retention("one")),
    table(rows.RebuildRow, "rebuild", key="service", retention=one_per("service")),
    table(rows.MetricsRow, "metrics", key=("task_id", "rank"), retention=goes_with(rows.TaskRow)),
    table(
        rows.MetricTailRow,
        "metrictail",
        key=("task_id", "rank"),
        retention=goes_with(rows.MetricsRow),
    ),
    table(rows.ProgressRow, "progress", key="task_id", retention=goes_with(rows.TaskRow)),
    table(rows.UserRow, "user", key="name", retention=one_per("user", setting="users_max")),
    table(
        rows.TeamRow,
        "team",
        key="name",
        retention=one_per("team, which an administrator adds and removes"),
    ),
    table(
        rows.TokenRow,
        "token",
        unique("id"),
        index("user"),
        # What pruning reads; tokens that are good for ever and not revoked are in neither.
        index("revoked_at", name="token_revoked", where="revoked_at IS NOT NULL"),
        index("expires_at", name="token_expires", where="expires_at IS NOT NULL"),
        key="token_hash",
        retention=Retention(
            "so many of a user; by age after the revocation or expiry, and by number",
            ("tokens_per_user_max", "tokens_keep_seconds", "kept_rows_max"),
            ("tokens by revoked_at", "tokens by expires_at"),
        ),
    ),
    table(
        rows.TokenUseRow,
        "tokenuse",
        index("used_at"),
        key="token_id",
        retention=deleted_by_age("audit_keep_seconds", "the last use", rule="uses of tokens"),
    ),
    table(
        rows.AuditRow,
        "audit",
        index("at"),
        index("who"),
        key="id",
        retention=deleted_by_age("audit_keep_seconds", "the change", rule="audit"),
    ),
    table(
        rows.SessionRow,
        "session",
        unique("id"),
        index("user"),
        key="secret_hash",
        retention=Retention(
            "so many of a user; a day after the end",
            ("sessions_per_user_max", "session_seconds"),
            ("sessions",),
        ),
    ),
    table(
        rows.ExternalIdentityRow,
        "externalidentity",
        index("user"),
        key=("issuer", "subject"),
        retention=one_per("user and login provider"),
    ),
    table(rows.PasswordRow, "password", key="user", retention=one_per("user")),
    table(
        rows.LoginUseRow,
        "loginuse",
        key="state_hash",
        retention=Retention("a day after the login", rules=("uses of logins",)),
    ),
    table(
        rows.LoginCodeRow,
        "logincode",
        index("user"),
        key="code_hash",
        retention=Retention("a day after the end", ("login_seconds",), ("login codes",)),
    ),
)
