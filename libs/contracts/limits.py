"""Limits that several services, or a service and the SDK, hold to."""

from __future__ import annotations

# Of where a checkpoint lies, in UTF-8. It is stored with each checkpoint and in the event log.
CHECKPOINT_URI_BYTES_MAX = 1024
# Of the tasks of one CreateTasks command.
CREATE_TASKS_MAX = 1000
