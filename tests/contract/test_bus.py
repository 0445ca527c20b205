"""What every bus promises, on the memory adapter and on a real NATS server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest

from libs.bus.port import (
    Bus,
    BusDeniedError,
    BusUnavailableError,
)
from libs.contracts import messages as m
from libs.contracts.envelope import BATCH_BYTES_MAX, EVENT_BYTES_MAX, Envelope
from tests.contract.bus_harness import (
    ACK_WAIT_S,
    NOW,
    WAIT_S,
    BusServer,
    ack_all,
    carry_out,
    eventually,
    eventually_all,
    fetch_all,
    goal,
    ids,
    priority,
)
from tests.kit.builders import a_spec, a_task, submitted_event
from tests.kit.waiting import until

# Events


async def test_events_arrive_whole_and_in_order(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    sent = [replace(goal(number), traceparent=f"00-{number}") for number in range(20)]
    await submit.publish(sent)
    got = await fetch_all(scheduler.consumer(), 20)
    assert [each.envelope for each in got] == sent
    assert {each.deliveries for each in got} == {1}
    assert not any(each.problem for each in got)


async def test_a_fetch_takes_no_more_than_asked_and_is_empty_after_the_wait(
    server: BusServer,
) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    consumer = scheduler.consumer()
    await submit.publish([goal(number) for number in range(5)])
    first = await consumer.fetch(3, WAIT_S)
    assert ids(first) == ["t-0", "t-1", "t-2"]
    rest = await consumer.fetch(3, WAIT_S)
    assert ids(rest) == ["t-3", "t-4"]
    await ack_all([*first, *rest])
    start = time.monotonic()
    assert await consumer.fetch(3, 0.3) == []
    assert time.monotonic() - start > 0.25


async def test_a_waiting_fetch_returns_as_soon_as_there_is_something(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    waiting = asyncio.ensure_future(scheduler.consumer().fetch(10, 300.0))
    await asyncio.sleep(0.1)
    await submit.publish([goal(1)])
    # Long before the wait of the fetch is over, however busy the machine is.
    async with asyncio.timeout(30):
        assert ids(await waiting) == ["t-1"]


async def test_what_is_not_acknowledged_comes_again(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(1), goal(2)])
    one, two = await fetch_all(scheduler.consumer(), 2)
    await two.ack()
    again = await scheduler.consumer().fetch(10, WAIT_S)
    assert ids(again) == ids([one])
    assert again[0].deliveries == 2
    await again[0].ack()
    assert await scheduler.consumer().fetch(10, 2 * ACK_WAIT_S) == []


async def test_several_are_acknowledged_at_once(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(number) for number in range(1, 21)])
    consumer = scheduler.consumer()
    got = await fetch_all(consumer, 20)
    await consumer.ack([])
    await consumer.ack([each for each in got if each is not got[7]])
    again = await consumer.fetch(30, WAIT_S)
    assert ids(again) == ids([got[7]])
    await consumer.ack(again)
    assert await consumer.fetch(30, 2 * ACK_WAIT_S) == []


async def test_a_second_process_gets_what_the_first_left_and_nothing_else(
    server: BusServer,
) -> None:
    submit, first = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(1), goal(2), goal(3)])
    await ack_all((await fetch_all(first.consumer(), 3))[:2])
    await first.close()
    second = await server.bus("scheduler")
    assert ids(await second.consumer().fetch(10, WAIT_S)) == ["t-3"]


async def test_a_released_consumer_withholds_nothing_from_the_next(server: BusServer) -> None:
    submit, first = await server.bus("submit"), await server.bus("scheduler")
    assert await first.consumer().fetch(10, 0.2) == []
    await first.consumer().release()
    await submit.publish([goal(1), goal(2)])
    second = await server.bus("scheduler")
    got = await fetch_all(second.consumer(), 2)
    assert ids(got) == ["t-1", "t-2"]
    assert {each.deliveries for each in got} == {1}
    await ack_all(got)
    await submit.publish([goal(3)])
    assert ids(await first.consumer().fetch(10, WAIT_S)) == ["t-3"]


async def test_nak_redelivers_after_the_delay(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(1)])
    (one,) = await scheduler.consumer().fetch(1, WAIT_S)
    start = time.monotonic()
    await one.nak(0.15)
    (again,) = await scheduler.consumer().fetch(1, WAIT_S)
    assert again.deliveries == 2
    assert 0.1 < time.monotonic() - start < ACK_WAIT_S


async def test_the_same_id_is_stored_once(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(1), goal(1)])
    await submit.publish([goal(1), goal(2)])
    assert ids(await fetch_all(scheduler.consumer(), 2)) == ["t-1", "t-2"]
    assert await scheduler.consumer().fetch(10, 0.2) == []


async def test_each_service_receives_its_own_subjects_from_the_beginning(server: BusServer) -> None:
    submit, launcher = await server.bus("submit"), await server.bus("launcher")
    node = m.NodeChanged(
        node_id="gpu-1.rack.2", version=1, node=m.Node(id="gpu-1.rack.2"), changed_at=NOW
    )
    await submit.publish([goal(1), priority(1)])
    await launcher.publish([Envelope(id="n-1", source="launcher", time=NOW, message=node)])
    scheduler, quota = await server.bus("scheduler"), await server.bus("quota")
    assert ids(await fetch_all(scheduler.consumer(), 2)) == ["t-1", "n-1"]
    assert ids(await fetch_all(quota.consumer(), 1)) == ["t-1"]
    assert await quota.consumer().fetch(1, 0.1) == []
    assert await scheduler.consumer().fetch(1, 0.1) == []


async def test_deliveries_of_other_types_are_skipped(server: BusServer) -> None:
    submit, gateway = await server.bus("submit"), await server.bus("gateway")
    await submit.publish([goal(1), priority(2), goal(3), priority(4), goal(5)])
    consumer, got = gateway.consumer(), []
    while len(got) < 2:
        batch = await consumer.fetch(10, WAIT_S)
        got += ids(batch)
        await ack_all(batch)
    assert got == ["p-2", "p-4"]
    # Nothing of it comes again.
    await asyncio.sleep(1.5 * ACK_WAIT_S)
    assert await consumer.fetch(10, 0.1) == []


async def test_a_large_batch_is_published_and_fetched_whole(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(number) for number in range(3000)])
    consumer, got = scheduler.consumer(), []
    while len(got) < 3000:
        batch = await consumer.fetch(256, WAIT_S)
        assert batch
        await ack_all(batch)
        got += ids(batch)
    assert got[:1] == ["t-0"]
    assert set(got) == {f"t-{number}" for number in range(3000)}


async def test_a_fetch_is_bounded_by_bytes(server: BusServer) -> None:
    """Whatever was asked for; what is left comes with the next ones, each once."""
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    consumer, spec = scheduler.consumer(), a_spec()
    env = {"LONG": "x" * (BATCH_BYTES_MAX * 2 // 5)}
    large = a_task(spec=spec.model_copy(update={"roles": (replaced_env(spec.roles[0], env),)}))
    sent = [
        Envelope(id=f"t-{number}", source="submit", time=NOW, message=submitted_event(large))
        for number in range(5)
    ]
    await submit.publish(sent)
    got: list[str] = []
    while len(got) < len(sent):
        batch = await consumer.fetch(10, WAIT_S)
        sizes = [len(each.raw.body) for each in batch]
        assert sum(sizes[:-1]) < BATCH_BYTES_MAX
        await ack_all(batch)
        got += ids(batch)
    assert got == [each.id for each in sent]
    # A pull that stays open has brought its bytes at some time: the next one goes on.
    for number in range(5, 9):
        await submit.publish([replace(sent[0], id=f"t-{number}")])
        batch = await consumer.fetch(10, WAIT_S)
        assert ids(batch) == [f"t-{number}"]
        await ack_all(batch)
    assert await consumer.fetch(10, 0.1) == []


def replaced_env(role: m.Role, env: dict[str, str]) -> m.Role:
    return role.model_copy(update={"env": env})


async def test_publishing_an_empty_batch_does_nothing(server: BusServer) -> None:
    await (await server.bus("submit")).publish([])


# What cannot be handled


async def test_dead_letters_keep_the_message_and_the_reason_and_never_come_again(
    server: BusServer,
) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    await submit.publish([goal(1)])
    (one,) = await scheduler.consumer().fetch(1, WAIT_S)
    await one.dead_letter("no such thing:\nsecond line")
    assert await scheduler.consumer().fetch(1, 2 * ACK_WAIT_S) == []
    ((subject, reason, body),) = await server.dead_letters()
    assert subject == f"dlq.scheduler.{goal(1).subject}"
    assert reason.startswith("no such thing:")
    assert body == goal(1).body()


@pytest.mark.parametrize(
    ("headers", "body", "problem"),
    [
        ({}, b"{}", "ce-type"),
        ({**goal(1).headers(), "ce-type": "shiftwork.task.v9.Unheard"}, b"{}", "Unheard"),
        (goal(1).headers(), b"\xff\x00 no json", "does not fit"),
        (goal(1).headers(), b'{"task_id": "t"}', "changed_at"),
    ],
)
async def test_an_undecodable_message_has_its_problem_and_can_be_dead_lettered(
    server: BusServer, headers: dict[str, str], body: bytes, problem: str
) -> None:
    scheduler = await server.bus("scheduler")
    await server.send_raw(goal(1).subject, headers, body)
    (bad,) = await scheduler.consumer().fetch(10, WAIT_S)
    assert bad.envelope is None
    assert problem in bad.problem
    await bad.dead_letter(bad.problem)
    ((_, reason, kept),) = await server.dead_letters()
    assert problem in reason
    assert kept == body


async def test_a_message_on_the_subject_of_another_service_is_not_read(server: BusServer) -> None:
    """Headers and body are the publisher's claim; the server checks only the subject."""
    gateway = await server.bus("gateway")
    usage = m.UsageRecorded(group="g", task_id="t", started_at=NOW, ended_at=NOW)
    state, assigned = "evt.task.t.state_changed", "evt.run.t.assigned"
    await server.send_raw(state, goal(1).headers(), goal(1).body())
    honest = Envelope(id="u", source="quota", time=NOW, message=usage)
    await server.send_raw(assigned, honest.headers(), honest.body())
    found = await fetch_all(gateway.consumer(), 2)
    assert [each.envelope for each in found] == [None, None]
    assert "belongs on" in found[0].problem
    assert "was published on" in found[1].problem


async def test_a_message_of_a_service_that_does_not_own_it_is_not_read(server: BusServer) -> None:
    scheduler = await server.bus("scheduler")
    await server.send_raw(
        goal(1).subject, goal(1).headers() | {"ce-source": "quota"}, goal(1).body()
    )
    (bad,) = await scheduler.consumer().fetch(10, WAIT_S)
    assert bad.envelope is None
    assert "is published by submit, not by 'quota'" in bad.problem


async def test_a_service_publishes_only_what_it_owns(server: BusServer) -> None:
    scheduler, quota = await server.bus("scheduler"), await server.bus("quota")
    with pytest.raises(BusDeniedError, match=r"evt\.task\.t\.goal_changed"):
        await scheduler.publish([goal(1)])
    assert await quota.consumer().fetch(1, 0.1) == []


async def test_an_assignment_of_8000_nodes_is_an_event_like_any_other(server: BusServer) -> None:
    placements = tuple(
        m.Placement(
            rank=rank,
            role="worker",
            role_index=rank,
            node_id=f"node-{rank:05}.rack-{rank // 32:03}.hall-3.cluster-a.example.org",
            gpus=tuple(range(8)),
        )
        for rank in range(8_000)
    )
    message = m.RunAssigned(
        task_id="t",
        owner="ann",
        attempt=1,
        spec=m.TaskSpec(retry=m.RetryPolicy(), preemption=m.PreemptionPolicy()),
        placements=placements,
        assigned_at=NOW,
        start_deadline_at=NOW,
    )
    sent = Envelope(id="large", source="scheduler", time=NOW, message=message)
    # More than servers take by default.
    assert 1 << 20 < len(sent.body()) < EVENT_BYTES_MAX
    scheduler, gateway = await server.bus("scheduler"), await server.bus("gateway")
    # In one batch with others, as the relay publishes.
    await scheduler.publish([replace(sent, id=f"large-{number}") for number in range(20)])
    got = await fetch_all(gateway.consumer(), 20, seconds=30.0)
    assert [each.envelope and each.envelope.message for each in got] == [message] * 20
    await gateway.consumer().ack(got)


async def test_only_events_that_a_service_has_not_received_are_kept(server: BusServer) -> None:
    submit, quota = await server.bus("submit"), await server.bus("quota")
    gateway, scheduler = await server.bus("gateway"), await server.bus("scheduler")
    assert (await gateway.backlog()).messages == 0
    await submit.publish([goal(number) for number in range(10)])
    full = await gateway.backlog()
    assert full.messages == 10
    assert full.stored_bytes > 10 * 50
    assert 0 < full.share < 0.01

    async def consume(bus: Bus) -> None:
        consumer = bus.consumer()
        await consumer.ack(await fetch_all(consumer, 10))

    assert full.consumers["quota"] == full.consumers["gateway"] == 10
    await consume(scheduler)
    await consume(quota)
    lag = (await gateway.backlog()).consumers
    assert (lag["scheduler"], lag["quota"], lag["gateway"]) == (0, 0, 10)
    assert (await gateway.backlog()).messages == 10
    # The gateway receives everything and skips these.
    await gateway.consumer().fetch(100, 1.0)
    async with asyncio.timeout(10):
        while (await gateway.backlog()).messages:  # noqa: ASYNC110 - a server has no event for it
            await asyncio.sleep(0.05)


# Telemetry


def chunk(rank: int, task_id: str = "t") -> Envelope:
    message = m.LogChunk(
        task_id=task_id, attempt=1, rank=rank, data=b"\x00line\n", collected_at=NOW
    )
    return Envelope(id=f"l-{rank}", source="log_collector", time=NOW, message=message)


async def test_telemetry_reaches_only_current_listeners(server: BusServer) -> None:
    collector, gateway = await server.bus("log_collector"), await server.bus("gateway")
    await collector.send_telemetry(chunk(0))
    await asyncio.sleep(0.1)
    async with gateway.listen("log.*.*.*") as stream:
        await collector.send_telemetry(chunk(1))
        await collector.send_telemetry(chunk(2))
        async with asyncio.timeout(WAIT_S):
            assert [await anext(stream), await anext(stream)] == [chunk(1), chunk(2)]


async def test_a_slow_listener_loses_the_oldest(server: BusServer) -> None:
    collector, gateway = await server.bus("log_collector"), await server.bus("gateway")
    async with gateway.listen("log.t.>") as stream, gateway.listen("log.last.>") as last:
        for rank in range(1500):
            await collector.send_telemetry(chunk(rank))
        await collector.send_telemetry(chunk(0, "last"))
        async with asyncio.timeout(WAIT_S):
            # It came to this connection after all others.
            await anext(last)
            await asyncio.sleep(0.3)
            got = [await anext(stream) for _ in range(1000)]
    assert got[0] == chunk(500)
    assert got[-1] == chunk(1499)


# The server goes and comes back


async def test_everything_goes_on_after_the_server_was_killed(server: BusServer) -> None:
    submit, scheduler = await server.bus("submit"), await server.bus("scheduler")
    gateway = await server.bus("gateway")
    await submit.publish([goal(1), goal(2)])
    one, two = await fetch_all(scheduler.consumer(), 2)
    await one.ack()
    before = submit.server_id
    assert before
    async with submit.serve({m.SetGoal: carry_out}):
        waiting = asyncio.ensure_future(scheduler.consumer().fetch(10, 30.0))
        # The server writes a durable's place to the disk soon, not at once; dying before that
        # would bring the acknowledged message again.
        await asyncio.sleep(0.6)
        server.kill()
        await until(lambda: not (submit.connected or scheduler.connected or gateway.connected))
        with contextlib.suppress(BusUnavailableError):
            await waiting
        for attempt in (
            submit.publish([goal(3)]),
            scheduler.consumer().fetch(1, 0.5),
            two.ack(),
            gateway.request(m.SetGoal(task_id="t"), timeout_s=0.5),
        ):
            with pytest.raises(BusUnavailableError):
                await attempt
        await submit.send_telemetry(chunk(1))
        await server.start()
        await until(lambda: submit.connected and scheduler.connected and gateway.connected, 10)
        assert submit.server_id not in ("", before)
        await eventually(lambda: submit.publish([goal(3)]))
        got = await eventually_all(scheduler.consumer(), {"t-2", "t-3"})
        assert "t-1" not in got
        reply = await eventually(lambda: gateway.request(m.SetGoal(task_id="t"), timeout_s=WAIT_S))
        assert reply == m.SetGoalReply(revision=1)


async def test_a_closed_bus_raises(server: BusServer) -> None:
    submit = await server.bus("submit")
    await submit.close()
    assert not submit.connected
    with pytest.raises(BusUnavailableError):
        await submit.publish([goal(1)])
