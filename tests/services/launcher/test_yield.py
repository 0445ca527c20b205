"""Runs that hand their nodes over on their own, and life states: the launcher's commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.limits import LIFE_STATE_BYTES_MAX, YIELD_REASON_MAX
from libs.contracts.messages import (
    Continuation,
    ExitKind,
    GetLifeState,
    GetLifeStateReply,
    LifeStateSaved,
    PrepareContinuation,
    PrepareContinuationReply,
    Reemit,
    RefusalCode,
    RunExit,
    RunYielded,
    SetLifeState,
    SetLifeStateReply,
    YieldRun,
    YieldRunReply,
)
from services.launcher import store as tables
from services.launcher.domain.model import (
    EndCause,
    LifeStateContent,
    LifeStateRow,
    PastRun,
    RunState,
)
from tests.kit.clock import START, at
from tests.kit.launcher_builders import (
    a_checkpoint,
    a_preemption,
    a_run,
    a_spec,
    an_assignment,
)
from tests.services.launcher.test_handlers import Handlers, ack, past, service, wiring

__all__ = ["service", "wiring"]
END = RunExit(attempt=1, kind=ExitKind.OK, exited_at=START)


def wish(attempt: int = 1, reason: str = "no data") -> YieldRun:
    return YieldRun(task_id="task", attempt=attempt, reason=reason)


def new_state(
    data: bytes = b"7", attempt: int = 1, media_type: str = "application/json"
) -> SetLifeState:
    return SetLifeState(task_id="task", attempt=attempt, media_type=media_type, data=data)


async def read(service: Handlers, task_id: str = "task") -> GetLifeStateReply:
    reply: GetLifeStateReply = await service.ask(GetLifeState(task_id=task_id))
    return reply


async def test_a_yield_is_recorded_and_published_once(service: Handlers) -> None:
    await service.put(a_run())
    service.clock.move_to(3)
    assert await service.ask(wish()) == YieldRunReply()
    run = await service.run()
    assert run is not None
    assert (run.yield_requested_at, run.yield_reason) == (at(3), "no data")
    event = RunYielded(task_id="task", attempt=1, reason="no data", requested_at=at(3))
    assert await service.published() == [event]
    service.clock.move_to(9)
    assert await service.ask(wish(reason="again")) == YieldRunReply()
    assert (await service.run(), await service.published()) == (run, [])


async def test_a_reason_of_a_yield_has_no_secret(service: Handlers) -> None:
    spec = a_spec(env={"DSN": "postgres://me:geheim"}, secret_env=("DSN",))
    await service.put(a_run(spec=spec))
    await service.ask(wish(reason="lost postgres://me:geheim again"))
    (event,) = await service.published()
    assert isinstance(event, RunYielded)
    assert event.reason == "lost *** again"


async def test_a_reason_of_a_yield_is_bounded_and_one_line(service: Handlers) -> None:
    await service.put(a_run())
    await service.ask(wish(reason="a\nb " + "x" * 5000))
    run = await service.run()
    assert run is not None
    assert run.yield_reason.startswith("a b xxx")
    assert len(run.yield_reason) == YIELD_REASON_MAX


async def test_a_yield_during_a_preemption_is_its_acknowledgement(service: Handlers) -> None:
    await service.put(a_run())
    await service.handle(a_preemption())
    service.clock.move_to(4)
    await service.ask(wish())
    run = await service.run()
    assert run is not None
    assert (run.acked_at, run.yield_requested_at) == (at(4), None)
    assert await service.published() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"kill_requested_at": START},
        {"state": RunState.ENDING, "end_cause": EndCause.KILL, "ending_at": START},
    ],
)
async def test_the_wish_of_a_run_that_is_being_ended_is_only_noted(
    service: Handlers, changes: dict
) -> None:
    before = replace(a_run(), **changes)
    await service.put(before)
    service.clock.move_to(3)
    assert await service.ask(wish()) == YieldRunReply()
    assert await service.run() == replace(before, yield_requested_at=at(3))
    assert await service.published() == []


async def test_an_attempt_that_is_over_can_neither_yield_nor_keep_anything(
    service: Handlers,
) -> None:
    await service.put(past(1))
    await service.handle(an_assignment(2))
    for command in (wish(1), new_state(attempt=1)):
        reply = await service.ask(command)
        assert reply.refusal.code is RefusalCode.SUPERSEDED
    for command in (wish(1), new_state()):
        reply = await service.ask(command.model_copy(update={"task_id": "other"}))
        assert reply.refusal.code is RefusalCode.NOT_FOUND


async def test_a_new_launcher_publishes_the_wishes_of_live_runs_again(service: Handlers) -> None:
    await service.put(a_run())
    await service.ask(wish())
    await service.ask(new_state())
    told = await service.published()
    assert {type(event) for event in told} == {RunYielded, LifeStateSaved}
    await service.ask(Reemit())
    again = await service.published()
    assert [event for event in again if type(event) in (RunYielded, LifeStateSaved)] == told


async def test_a_life_state_is_kept_and_read(service: Handlers) -> None:
    assert await read(service) == GetLifeStateReply()
    await service.put(a_run())
    service.clock.move_to(2)
    reply: SetLifeStateReply = await service.ask(new_state(b'{"seen": 3}'))
    assert (reply.version, reply.refusal) == (1, None)
    assert await service.published() == [
        LifeStateSaved(task_id="task", attempt=1, version=1, size=11, saved_at=at(2))
    ]
    found = (await read(service)).state
    assert found is not None
    assert (found.version, found.attempt, found.data) == (1, 1, b'{"seen": 3}')
    assert (found.media_type, found.saved_at) == ("application/json", at(2))


async def test_of_life_states_the_last_one_wins_also_across_attempts(service: Handlers) -> None:
    await service.put(past(1))
    await service.handle(an_assignment(2))
    for number, data in enumerate((b"1", b"2"), 1):
        assert (await service.ask(new_state(data, attempt=2))).version == number
    found = (await read(service)).state
    assert found is not None
    assert (found.data, found.attempt) == (b"2", 2)


async def test_a_life_state_that_is_too_large_is_refused_by_name(service: Handlers) -> None:
    await service.put(a_run())
    assert (await service.ask(new_state(b"x" * LIFE_STATE_BYTES_MAX))).version == 1
    reply: SetLifeStateReply = await service.ask(new_state(b"x" * (LIFE_STATE_BYTES_MAX + 1)))
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.INVALID
    assert [error.field for error in reply.refusal.errors] == ["data"]
    assert "x" * 10 not in repr(reply)
    reply = await service.ask(new_state(media_type="text/html"))
    assert reply.refusal is not None
    assert [error.field for error in reply.refusal.errors] == ["media_type"]


async def test_the_content_of_a_life_state_is_in_no_representation() -> None:
    assert "secret" not in repr(LifeStateContent("task", b"secret"))


async def keep(service: Handlers, task_id: str, data: bytes) -> None:
    row = LifeStateRow(task_id, 4, 2, "application/json", len(data), START)
    await service.put(row, LifeStateContent(task_id, data))


async def test_a_task_that_goes_on_begins_with_the_life_state_of_the_one_before(
    service: Handlers,
) -> None:
    await keep(service, "before", b"5")
    continues = Continuation(task_id="before", chain="first", state_of="before")
    event = an_assignment(spec=a_spec(continues=continues))
    await service.handle(event)
    found = (await read(service)).state
    assert found is not None
    assert (found.version, found.attempt, found.data) == (1, 0, b"5")
    # Its own is not overwritten by that of the task before.
    await service.ask(new_state(b"6"))
    await service.handle(event, an_assignment(2, spec=event.spec))
    found = (await read(service)).state
    assert found is not None
    assert (found.version, found.data) == (2, b"6")


async def test_a_continuation_begins_at_the_last_checkpoint_and_keeps_it_longer(
    service: Handlers,
) -> None:
    await service.put(past(1))
    service.clock.move_to(50)
    reply: PrepareContinuationReply = await service.ask(PrepareContinuation(task_id="task"))
    assert reply == PrepareContinuationReply(checkpoint=a_checkpoint(5))
    async with service.store.transaction(epoch=service.epoch) as tx:
        kept = await tx.get(PastRun, "task")
        assert kept is not None
        assert kept.forgotten_at == at(50)


async def test_a_continuation_of_a_run_that_the_runtime_still_keeps(service: Handlers) -> None:
    await service.put(a_run(resume_from=a_checkpoint(2)))
    prepare = PrepareContinuation(task_id="task")
    assert (await service.ask(prepare)).checkpoint == a_checkpoint(2)
    await service.ask(ack(10))
    saved = (await service.ask(prepare)).checkpoint
    assert (saved.no, saved.step) == (3, 10)


async def test_a_continuation_of_what_is_forgotten_is_refused(service: Handlers) -> None:
    reply: PrepareContinuationReply = await service.ask(PrepareContinuation(task_id="task"))
    assert reply.refusal is not None
    assert reply.refusal.code is RefusalCode.NOT_FOUND


async def test_life_states_are_forgotten_with_their_tasks(service: Handlers) -> None:
    await service.put(replace(past(1), forgotten_at=at(-9)))
    await keep(service, "task", b"1")
    await keep(service, "other", b"2")
    async with service.store.transaction(epoch=service.epoch) as tx:
        await tables.drop_past_runs(tx, at(-5), 3)
    assert (await read(service)).state is None
    assert (await read(service, "other")).state is not None


async def test_an_inherited_checkpoint_is_not_published_as_one_of_the_task(
    service: Handlers,
) -> None:
    inherited = a_checkpoint(5).model_copy(update={"task_id": "before"})
    await service.put(replace(past(1), checkpoint=inherited))
    await service.ask(Reemit())
    names = [type(event).__name__ for event in await service.published()]
    assert names == ["RunStarted", "RunExited"]
