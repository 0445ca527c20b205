"""How a live run is made to leave: requested with a deadline, or ended by force.

Used by ``urgent.py``, ``victims.py`` and ``defragment.py``, so that every run leaves the same way.
"""

from __future__ import annotations

from libs.contracts.messages import Placement, PreemptMode, Reason
from services.scheduler.domain.model.decisions import Kill, Preempt
from services.scheduler.domain.model.lifecycle import RUNNING
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.round import Round


def request_release(
    round_: Round,
    task: Task,
    why: Reason,
    *,
    beneficiary: str = "",
    end_reason: Reason | None = None,
    moves_to: tuple[Placement, ...] = (),
) -> None:
    """Decide that the task's live run leaves. It is ended by force if it has nothing to save,
    cannot be requested, or its owner wants it to end now.

    A silent run is requested, too, and may begin to listen: then it has the whole deadline.
    ``moves_to``: where there is a place for it, if it is only to move.
    """
    assert task.live_attempt is not None, "a task that holds capacity has a live attempt"
    requests = task.preempt_mode is not PreemptMode.KILL and not task.ends_now
    if task.state is RUNNING and requests:
        settings = round_.settings
        deadline_at = round_.after(task.ack_seconds(settings))
        round_.wake_at(deadline_at)
        silent_at = None
        if task.is_silent:
            round_.wake_at(at := round_.after(settings.silent_ack_seconds_max))
            silent_at = at if at < deadline_at else None
        round_.decide(
            Preempt(
                task.id,
                task.live_attempt,
                why,
                deadline_at,
                beneficiary,
                end_reason,
                moves_to,
                silent_at,
            )
        )
    else:
        round_.decide(
            Kill(
                task.id,
                task.live_attempt,
                why,
                beneficiary=beneficiary,
                end_reason=end_reason,
                moves_to=moves_to,
            )
        )
