"""Limits that several services, or a service and the SDK, hold to."""

from __future__ import annotations

# Of where a checkpoint lies, in UTF-8. It is stored with each checkpoint and in the event log.
CHECKPOINT_URI_BYTES_MAX = 1024
# Of the reason that a program gives when it hands its nodes over, in characters.
YIELD_REASON_MAX = 200
# Of what a task keeps across attempts.
LIFE_STATE_BYTES_MAX = 65_536
# Of the tasks of one CreateTasks command.
CREATE_TASKS_MAX = 1000
# Of a secret, in characters: a shorter value cannot be masked, because it is part of other texts.
SECRET_CHARACTERS_MIN = 6
# Of the variables that a task declares as secrets.
SECRET_ENV_MAX = 64
