"""The nouns of scheduling, and how one task changes. Imports no other room.

- ``values.py``: *shape* (what a gang needs), *node resources*, *order key* (a task's place in the
  order of its level), *reason*.
- ``lifecycle.py``: *state*, *trigger*, *transition*, *goal*, and the *exit rule*.
- ``group_policy.py``: *policy settings*, *group policy*, *virtual cluster*, *demotion*.
- ``rows.py``: *task*, *node*, *limit*, *inventory*, *pool ledger*: what ``store.py`` keeps.
- ``decisions.py``: *decision* (assign, preempt, kill, reject, move, hold, reorder) and *plan*.
- ``changes.py``: what a decision does to its task, and the messages that report it.
- ``observations.py``: what an event does to its task.
"""
