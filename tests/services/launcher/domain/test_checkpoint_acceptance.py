from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import AckCheckpoint, RefusalCode
from services.launcher.domain.checkpoint_acceptance import Known, decide
from services.launcher.domain.model import RunState
from tests.kit.clock import START, at
from tests.kit.launcher_builders import a_checkpoint, a_run

ACK = AckCheckpoint(task_id="task", attempt=1, step=10, uri="/c", digest="")


def known(**more: object) -> Known:
    return replace(Known(a_run(), newest_attempt=1, last=None, same=None), **more)  # type: ignore[arg-type]


def test_the_first_checkpoint_has_number_one() -> None:
    decision = decide(ACK, known(), at(3))
    assert decision.stored is not None
    assert (decision.stored.no, decision.stored.step, decision.stored.saved_at) == (1, 10, at(3))


def test_checkpoint_numbers_continue_from_the_last_and_from_the_resumed_one() -> None:
    after_last = decide(ACK, known(last=a_checkpoint(4, step=5)), START)
    assert after_last.stored is not None
    assert after_last.stored.no == 5
    resumed = a_run(resume_from=a_checkpoint(9))
    after_resumed = decide(ACK, known(run=resumed, last=a_checkpoint(4, step=5)), START)
    assert after_resumed.stored is not None
    assert after_resumed.stored.no == 10


@pytest.mark.parametrize("state", [RunState.ASSIGNED, RunState.RUNNING, RunState.ENDING])
def test_accepted_until_the_exit_is_recorded(state: RunState) -> None:
    assert decide(ACK, known(run=a_run(state)), START).stored is not None


@pytest.mark.parametrize("state", [RunState.EXITED, RunState.EARLY_REQUEST, RunState.FORGOTTEN])
def test_a_checkpoint_of_a_run_that_is_not_live_is_superseded(state: RunState) -> None:
    refusal = decide(ACK, known(run=a_run(state)), START).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.SUPERSEDED


def test_an_older_attempt_is_superseded() -> None:
    refusal = decide(ACK, known(newest_attempt=2), START).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.SUPERSEDED
    gone = decide(ACK, known(run=None, newest_attempt=2), START).refusal
    assert gone is not None
    assert gone.code is RefusalCode.SUPERSEDED


def test_an_unknown_task_is_not_found() -> None:
    refusal = decide(ACK, Known(None, 0, None, None), START).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.NOT_FOUND


def test_a_lost_answer_is_given_again() -> None:
    saved = a_checkpoint(3)
    assert decide(ACK, known(last=saved, same=saved), at(9)).repeated == saved
    over = a_run(RunState.EXITED)
    assert decide(ACK, known(run=over, last=saved, same=saved), at(9)).repeated == saved


def test_the_same_save_after_the_request_is_the_acknowledgement() -> None:
    saved = a_checkpoint(3)
    asked = a_run(preempt_requested_at=at(5))
    first = decide(ACK, known(run=asked, last=saved, same=saved), at(6))
    assert first.stored is not None
    assert first.stored.no == 4
    acked = a_run(preempt_requested_at=at(5), acked_at=at(6))
    assert decide(ACK, known(run=acked, last=first.stored, same=first.stored), at(7)).repeated


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"uri": ""}, "uri"),
        ({"uri": "x" * 5000}, "uri"),
        ({"step": -1}, "step"),
        ({"digest": "d" * 300}, "digest"),
    ],
)
def test_a_bad_field_is_named(change: dict[str, object], field: str) -> None:
    refusal = decide(ACK.model_copy(update=change), known(), START).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.INVALID
    assert [error.field for error in refusal.errors] == [field]
