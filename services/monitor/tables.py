"""The monitor's schema, ``monitor``: one table for each row of ``store.py``."""

from __future__ import annotations

from libs.store.retention import Retention, deleted_by_age, goes_with
from libs.store.tables import Tables, index, table
from services.monitor.abnormal.store import ActionRow, FindingRow
from services.monitor.activities import ActivityRow
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.steady_clock import SteadyClockRow
from services.monitor.series.store import SeriesRow
from services.monitor.store import (
    MailboxRow,
    MessageRow,
    NotificationRow,
    ReceiverRow,
    TaskRow,
)

TABLES = Tables(
    "monitor",
    table(
        TaskRow,
        "task",
        index("ended_at", name="task_ended", where="ended_at IS NOT NULL"),
        index(
            "queued_since",
            name="task_waiting",
            where="queued_since IS NOT NULL AND NOT waiting_notified",
        ),
        key="task_id",
        recent=True,
        retention=deleted_by_age("ended_tasks_keep_seconds", "the task's end", rule="ended tasks"),
    ),
    table(
        NotificationRow,
        "notification",
        key=("owner", "name"),
        retention=Retention(
            "their owners remove them; there are no more than the settings allow",
            ("notifications_per_owner_max", "notifications_max"),
        ),
    ),
    table(
        ReceiverRow,
        "receiver",
        key=("owner", "name"),
        retention=goes_with(NotificationRow),
    ),
    table(
        MessageRow,
        "message",
        index("channel", "due_at", name="message_due_by", where="stage = 'waiting'"),
        index("due_at", name="message_due", where="stage = 'waiting'"),
        index("channel", "happened_at", name="message_oldest", where="stage = 'waiting'"),
        index("due_at", name="message_old", where="stage <> 'waiting'"),
        index("owner", "name", "stage", "due_at", name="message_of"),
        key="id",
        retention=deleted_by_age(
            "messages_keep_seconds", "its delivery, or the last try", rule="messages"
        ),
    ),
    table(
        MailboxRow,
        "mailbox",
        index("rate_until"),
        key="owner",
        retention=deleted_by_age("messages_keep_seconds", "the last mail", rule="mailboxes"),
    ),
    table(
        ActivityRow,
        "activity",
        index("measured_until"),
        index("measured_until", name="activity_unpublished", where="unpublished"),
        key=("task_id", "attempt"),
        retention=deleted_by_age("ended_tasks_keep_seconds", "its last sample", rule="activity"),
    ),
    table(
        SeriesRow,
        "series",
        index("expires_at"),
        index("step_seconds", "begins_at", name="series_unfolded", where="NOT folded"),
        key=("subject", "step_seconds", "begins_at", "part"),
        retention=Retention(
            "by age after the block's end, the finer the sooner, and by number",
            (
                "series_fine_keep_seconds",
                "series_middle_keep_seconds",
                "series_keep_seconds",
                "kept_rows_max",
            ),
            rules=("series",),
        ),
    ),
    table(
        SteadyClockRow,
        "steady_clock",
        key="name",
        retention=Retention("one row"),
    ),
    table(
        FactsRow,
        "facts",
        index("task_id", name="facts_watched", where="watched"),
        index("closed_at", name="facts_closed", where="closed_at IS NOT NULL"),
        key="task_id",
        recent=True,
        retention=Retention(
            "by age after the task's end, and by number",
            ("findings_keep_seconds", "ended_tasks_keep_seconds", "kept_rows_max"),
            rules=("facts",),
        ),
    ),
    table(
        FindingRow,
        "finding",
        index("id", name="finding_open", where="ended_at IS NULL"),
        index("owner", "id"),
        index("team", "id"),
        index("task_id"),
        key="id",
        retention=goes_with(FactsRow, "with the facts of its task, after the task's end"),
    ),
    table(
        ActionRow,
        "action",
        index(
            "decided_at", "id", name="action_waiting", where="outcome = 'ABNORMAL_OUTCOME_WAITING'"
        ),
        index("decided_at", name="action_old", where="outcome <> 'ABNORMAL_OUTCOME_WAITING'"),
        index("acted_s", where="acted_s IS NOT NULL", name="action_acted"),
        index("finding_id"),
        index(
            "node_id",
            "decided_at",
            name="action_cordon",
            where="action = 'ABNORMAL_ACTION_CORDON'",
        ),
        key="id",
        retention=deleted_by_age(
            "findings_keep_seconds", "the begin of the finding", rule="actions"
        ),
    ),
)
