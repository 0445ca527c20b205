"""What every bus promises of commands and their replies, in memory and on NATS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from libs.bus.command_replies import COMMANDS_MAX, COMMANDS_WAITING_MAX
from libs.bus.port import (
    BusUnavailableError,
    InvalidCommandError,
    NotNowError,
)
from libs.contracts import messages as m
from libs.contracts.base import Message
from tests.contract.bus_harness import (
    WAIT_S,
    BusServer,
    carry_out,
)


async def test_a_command_is_answered_or_refused(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    async with submit.serve({m.SetGoal: carry_out}):
        done = await gateway.request(m.SetGoal(task_id="abc", goal=m.Goal.RUN), timeout_s=WAIT_S)
        refused = await gateway.request(m.SetGoal(task_id="nobody"), timeout_s=WAIT_S)
    assert done == m.SetGoalReply(revision=3)
    assert isinstance(refused, m.SetGoalReply)
    assert refused.refusal
    assert refused.refusal.code is m.RefusalCode.NOT_FOUND


async def test_a_command_without_a_server_fails_at_once(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    async with submit.serve({m.SetGoal: carry_out}):
        pass
    # Long before the time for an answer is over, however busy the machine is.
    async with asyncio.timeout(30):
        with pytest.raises(BusUnavailableError, match=r"nobody takes cmd\.submit\.set_goal"):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=300.0)


async def test_no_answer_in_time_is_unavailable(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")

    async def slow(_: Message) -> Message:
        await asyncio.sleep(1.0)
        return m.SetGoalReply()

    async with submit.serve({m.SetGoal: slow}):
        with pytest.raises(BusUnavailableError, match="within"):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=0.2)


async def test_a_handler_that_raises_is_a_refusal_and_the_next_command_is_served(
    server: BusServer,
) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")

    async def breaks(command: Message) -> Message:
        if command == m.SetGoal(task_id="bad"):
            raise RuntimeError("broken inside")
        return await carry_out(command)

    async with submit.serve({m.SetGoal: breaks}):
        bad = await gateway.request(m.SetGoal(task_id="bad"), timeout_s=WAIT_S)
        good = await gateway.request(m.SetGoal(task_id="good"), timeout_s=WAIT_S)
    assert isinstance(bad, m.SetGoalReply)
    assert bad.refusal
    assert bad.refusal.code is m.RefusalCode.FAILED
    assert "broken inside" not in bad.refusal.detail
    assert good == m.SetGoalReply(revision=4)


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (NotNowError("the database is away"), m.RefusalCode.UNAVAILABLE),
        (InvalidCommandError("a NUL character"), m.RefusalCode.INVALID),
        (ValueError("a defect"), m.RefusalCode.FAILED),
    ],
)
async def test_a_refusal_states_whether_trying_again_helps(
    server: BusServer, problem: Exception, code: m.RefusalCode
) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")

    async def breaks(_: Message) -> Message:
        raise problem

    async with submit.serve({m.SetGoal: breaks}):
        reply = await gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S)
    assert isinstance(reply, m.SetGoalReply)
    assert reply.refusal
    assert reply.refusal.code is code
    assert ("try again" in reply.refusal.detail) == (code is m.RefusalCode.UNAVAILABLE)


@pytest.mark.parametrize(
    ("kind", "body", "problem"),
    [
        ("shiftwork.command.v1.SetGoal", b"no json", "does not fit"),
        ("shiftwork.command.v1.SetGoal", b'{"goal": "GOAL_DANCE"}', "does not fit"),
        ("shiftwork.command.v1.SetQuota", b"{}", "ce-type"),
        (None, b"{}", "ce-type"),
    ],
)
async def test_a_command_that_cannot_be_read_gets_a_refusal_as_its_reply(
    server: BusServer, kind: str | None, body: bytes, problem: str
) -> None:
    submit = await server.bus("submit")
    async with submit.serve({m.SetGoal: carry_out}):
        headers, answer = await server.ask(
            "cmd.submit.set_goal", {"ce-type": kind} if kind else {}, body
        )
    assert headers["ce-type"] == "shiftwork.command.v1.SetGoalReply"
    refusal = m.SetGoalReply.model_validate_json(answer).refusal
    assert refusal
    assert refusal.code is m.RefusalCode.INVALID
    assert problem in refusal.detail
    if b"DANCE" in body:
        assert [(each.field, each.value) for each in refusal.errors] == [("goal", "GOAL_DANCE")]


async def test_commands_are_carried_out_side_by_side(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    together = asyncio.Barrier(5)

    async def meet(command: Message) -> Message:
        async with asyncio.timeout(WAIT_S):
            await together.wait()
        return await carry_out(command)

    async with submit.serve({m.SetGoal: meet}):
        replies = await asyncio.gather(
            *(gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S) for _ in range(5))
        )
    assert replies == [m.SetGoalReply(revision=1)] * 5


async def test_leaving_finishes_what_is_under_way(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    begun = asyncio.Event()

    async def slow(command: Message) -> Message:
        begun.set()
        await asyncio.sleep(0.3)
        return await carry_out(command)

    async with submit.serve({m.SetGoal: slow}):
        asked = asyncio.ensure_future(gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S))
        await begun.wait()
    assert await asked == m.SetGoalReply(revision=1)


async def test_two_processes_share_the_commands(server: BusServer) -> None:
    gateway = await server.bus("gateway")
    served: dict[str, int] = {"one": 0, "two": 0}

    def counting(name: str) -> Callable[[Message], object]:
        async def count(command: Message) -> Message:
            served[name] += 1
            return await carry_out(command)

        return count

    async with contextlib.AsyncExitStack() as stack:
        for name in served:
            bus = await server.bus("submit")
            await stack.enter_async_context(bus.serve({m.SetGoal: counting(name)}))
        for _ in range(40):
            await gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S)
    assert sum(served.values()) == 40
    assert min(served.values()) > 0


async def test_a_request_whose_requester_has_gone_is_not_carried_out(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    carried_out: list[str] = []
    all_begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(command: Message) -> Message:
        assert isinstance(command, m.SetGoal)
        carried_out.append(command.task_id)
        if len(carried_out) == COMMANDS_MAX:
            all_begun.set()
        await go_on.wait()
        return m.SetGoalReply()

    async def ask(name: str, timeout_s: float) -> Message:
        return await gateway.request(m.SetGoal(task_id=name), timeout_s=timeout_s)

    async with submit.serve({m.SetGoal: slow}):
        # As many as are answered at once, so that the others wait.
        first = [asyncio.ensure_future(ask("first", WAIT_S * 2)) for _ in range(COMMANDS_MAX)]
        await all_begun.wait()
        gone = await asyncio.gather(*(ask("gone", 0.2) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(each, BusUnavailableError) for each in gone)
        # A requester counts from its sending, the service from the arrival.
        await asyncio.sleep(0.5)
        go_on.set()
        await asyncio.gather(*first)
        assert await ask("last", WAIT_S) == m.SetGoalReply()
    assert carried_out == ["first"] * COMMANDS_MAX + ["last"]


async def test_a_request_that_finds_too_many_waiting_is_refused_as_busy(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    carried_out = 0
    go_on = asyncio.Event()

    async def slow(_: Message) -> Message:
        nonlocal carried_out
        carried_out += 1
        await go_on.wait()
        return m.SetGoalReply()

    too_many = 10
    async with submit.serve({m.SetGoal: slow}):
        asked = [
            asyncio.ensure_future(gateway.request(m.SetGoal(task_id="t"), timeout_s=30.0))
            for _ in range(COMMANDS_MAX + COMMANDS_WAITING_MAX + too_many)
        ]
        first = asyncio.as_completed(asked)
        for _ in range(too_many):
            await next(first)
        busy = [each.result() for each in asked if each.done()]
        go_on.set()
        answers = await asyncio.gather(*asked)
    assert len(busy) == too_many
    for reply in busy:
        assert isinstance(reply, m.SetGoalReply)
        assert reply.refusal
        assert reply.refusal.code is m.RefusalCode.UNAVAILABLE
        assert "busy" in reply.refusal.detail
    assert carried_out == COMMANDS_MAX + COMMANDS_WAITING_MAX
    assert answers.count(m.SetGoalReply()) == carried_out


async def test_every_service_answers_its_own_reemit(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    gateway = await server.bus("gateway")

    async def reemit(command: Message) -> Message:
        assert isinstance(command, m.Reemit)
        return m.ReemitReply(events=len(command.service))

    async with submit.serve({m.Reemit: reemit}), scheduler.serve({m.Reemit: reemit}):
        for service in ("submit", "scheduler"):
            reply = await gateway.request(m.Reemit(service=service), timeout_s=WAIT_S)
            assert reply == m.ReemitReply(events=len(service))


async def test_a_service_serves_only_its_own_commands(server: BusServer) -> None:
    scheduler = await server.bus("scheduler")
    with pytest.raises(ValueError, match="SetGoal"):
        async with scheduler.serve({m.SetGoal: carry_out}):
            pass


async def test_an_exception_of_the_serving_body_comes_out_as_it_is(server: BusServer) -> None:
    submit = await server.bus("submit")
    with pytest.raises(LookupError, match="mine"):
        async with submit.serve({m.SetGoal: carry_out}):
            raise LookupError("mine")
