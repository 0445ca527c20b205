"""Which occasions an event of a task is."""

from __future__ import annotations

from libs.contracts.messages import Occasion, ReasonCode, TaskState, TaskStateChanged

_OF_STATE = {
    TaskState.RUNNING: Occasion.STARTED,
    TaskState.PREEMPTING: Occasion.PREEMPTED,
    TaskState.FAILED: Occasion.FAILED,
    TaskState.REJECTED: Occasion.FAILED,
    TaskState.SUCCEEDED: Occasion.FINISHED,
    TaskState.STOPPED: Occasion.FINISHED,
}
_QUOTA = frozenset({ReasonCode.WAITS_FOR_QUOTA, ReasonCode.QUOTA_NEVER_FITS})


def occasions_of(
    event: TaskStateChanged, before: TaskState | None, *, quota_notified: bool
) -> tuple[Occasion, ...]:
    """Return what the event is an occasion of. ``before``: the state that is known from an earlier
    event. ``quota_notified``: this wait for a quota has been notified already."""
    found: list[Occasion] = []
    if event.state is not before and event.state in _OF_STATE:
        found.append(_OF_STATE[event.state])
    if waits_for_quota(event) and not quota_notified:
        found.append(Occasion.QUOTA_REACHED)
    return tuple(found)


def waits_for_quota(event: TaskStateChanged) -> bool:
    """True for a task in the queue that has no nodes because a quota is used up."""
    return event.state is TaskState.QUEUED and event.reason.code in _QUOTA
