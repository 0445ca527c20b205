"""The shape of a service under faults, on virtual time."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from libs.bus.memory_broker import Faults
from libs.bus.port import BusError
from libs.contracts import messages as m
from libs.service import observability
from libs.service.loop import Loop
from libs.service.runner import Runner
from libs.store.port import (
    Delta,
    NotLeaderError,
    StoreUnavailableError,
    Tx,
    UnreadableRow,
    UnreadableRowError,
)
from tests.kit.virtual_time import virtually
from tests.libs.service.service_harness import TABLES, Count, CountingService, until


async def stopped(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_events_become_rows_and_events_once() -> None:
    async def main() -> None:
        platform = CountingService()
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs("a", "b", "a")
        await until(lambda: len(platform.usages()) == 3)
        assert platform.counts() == {"a": 2, "b": 1}
        await stopped(task)

    virtually(main())


@pytest.mark.parametrize("seed", range(6))
def test_duplicates_losses_and_outages_change_nothing(seed: int) -> None:
    faults = Faults(
        lose_delivery=0.2,
        duplicate_delivery=0.3,
        delay_delivery=0.2,
        reorder=0.3,
        lose_ack=0.3,
        fail_publish=0.3,
        latency_s_max=0.01,
    )

    async def main() -> None:
        platform = CountingService(faults=faults, seed=seed)
        task = asyncio.ensure_future(platform.runner().run())
        for number in range(20):
            while True:
                try:
                    await platform.start_runs(*"abc", prefix=f"p{number}")
                    break
                except BusError:
                    await asyncio.sleep(0.1)
            if number == 10:
                platform.database.stop()
                await asyncio.sleep(30)
                platform.database.start()
        await until(lambda: len({u.model_dump_json() for u in platform.usages()}) == 60)
        assert platform.counts() == dict.fromkeys("abc", 20)
        await stopped(task)

    virtually(main())


def test_a_crash_between_commit_and_publication_loses_nothing() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        platform.broker.partition("quota")
        async with runner.service.ports.store.transaction() as tx:
            await platform.on_run_started(
                tx, m.RunStarted(task_id="a", attempt=1, started_at=tx.now)
            )
        platform.broker.heal()
        task = asyncio.ensure_future(platform.runner().run())
        await until(lambda: len(platform.usages()) == 1)
        await stopped(task)

    virtually(main())


def test_a_bus_server_that_lost_its_data_gets_the_events_again() -> None:
    async def main() -> None:
        platform = CountingService()
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs("a")
        await until(lambda: len(platform.usages()) == 1)
        platform.broker.restart(forget_s=60.0)
        await until(lambda: len(platform.usages()) == 2)
        first, second = platform.usages()
        assert first == second
        await stopped(task)

    virtually(main())


def test_a_message_that_breaks_its_handler_is_set_apart_alone() -> None:
    async def broken(event: m.RunStarted) -> None:
        assert event.task_id != "bad", "this one is bad"

    async def main() -> None:
        platform = CountingService(broken=broken)
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs("a", "bad", "b")
        await until(lambda: len(platform.usages()) == 2 and len(platform.broker.dead_letters) == 1)
        assert platform.counts() == {"a": 1, "b": 1}
        assert "this one is bad" in platform.broker.dead_letters[0].reason
        await stopped(task)

    virtually(main())


def test_a_row_that_cannot_be_read_harms_only_the_events_that_concern_it() -> None:
    async def main() -> None:
        platform = CountingService()
        async with platform.store(TABLES).transaction() as tx:
            tx.put(Count("bad", 1), Count("good", 1))
        platform.database.break_row(TABLES, Count, "bad", column="seen")
        counter = observability.UNREADABLE_ROWS.labels("quota", "Count")
        before = counter._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        task = asyncio.ensure_future(platform.runner().run())
        await platform.start_runs("good", "bad", "other")
        await until(lambda: platform.counts() == {"bad": 1, "good": 2, "other": 1})
        await until(lambda: len(platform.broker.dead_letters) == 1)
        assert "Count bad: column seen" in platform.broker.dead_letters[0].reason
        assert counter._value.get() > before  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        await stopped(task)

    virtually(main())


def test_series_that_alerts_count_begin_before_their_first_event() -> None:
    """An increase over a series that begins at 1 is 0, so the alert would miss the first event."""
    runner = CountingService().runner()
    name = "counts-from-nothing"
    Runner(replace(runner.service, name=name), runner.settings)
    samples = {
        (sample.name, sample.labels.get("kind", "")): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.labels.get("service") == name
    }
    found = {
        ("shiftwork_dead_letters_total", ""): 0.0,
        ("shiftwork_events_set_apart_total", ""): 0.0,
        ("shiftwork_unreadable_rows_total", "Count"): 0.0,
    }
    assert found.items() <= samples.items()


def test_a_leader_that_cannot_do_its_work_is_not_ready_and_reports_why() -> None:
    async def main() -> None:
        problem = ""
        runner = CountingService().runner()
        runner.service = replace(runner.service, problem=lambda: problem)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.ready == (True, "ready"))
        problem = "nodes obey another launcher"
        assert runner.ready == (False, problem)
        await stopped(task)
        # A process that no longer leads reports no problem of a leader.
        assert problem not in runner.ready[1]

    virtually(main())


def test_a_database_that_is_down_sets_nothing_apart() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        platform.database.stop()
        await platform.start_runs("a")
        await asyncio.sleep(120)
        assert not runner.ready[0] or runner.epoch is None
        platform.database.start()
        await until(lambda: len(platform.usages()) == 1)
        assert platform.broker.dead_letters == []
        await stopped(task)

    virtually(main())


def test_two_processes_one_leads_and_a_former_leader_commits_nothing() -> None:
    async def main() -> None:
        platform = CountingService()
        one, two = platform.runner(), platform.runner()
        first = asyncio.ensure_future(one.run())
        await until(lambda: one.epoch is not None)
        second = asyncio.ensure_future(two.run())
        await asyncio.sleep(10)
        assert two.epoch is None
        epoch = one.epoch
        await stopped(first)
        await until(lambda: two.epoch is not None, 5.0)
        with pytest.raises(NotLeaderError):
            async with one.service.ports.store.transaction(epoch=epoch) as tx:
                tx.put(Count("stolen", 1))
        assert "stolen" not in platform.counts()
        await stopped(second)

    virtually(main())


def test_a_query_is_answered_while_another_has_the_turn() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()

        async def answer(query: m.SetQuota) -> m.SetQuotaReply:
            return m.SetQuotaReply(version=query.quota.limit)

        del runner.service.commands[m.SetQuota]  # type: ignore[attr-defined]
        runner.service.queries[m.SetQuota] = answer  # type: ignore[index]
        task = asyncio.ensure_future(runner.run())
        await asyncio.sleep(1)
        async with runner.turn:
            query = m.SetQuota(quota=m.Quota(group="g", limit=7))
            reply = await platform.gateway.request(query, timeout_s=5)
        assert reply == m.SetQuotaReply(version=7)
        await stopped(task)

    virtually(main())


def test_commands_that_wait_share_a_transaction_and_one_that_fails_is_alone_with_it() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        honest, versions = platform.on_set_quota, list[int]()

        async def on_set_quota(tx: Tx, command: m.SetQuota) -> m.SetQuotaReply:
            if command.quota.limit == 13:
                tx.put(Count("never", 13))
                raise RuntimeError("a bug")
            versions.append(tx.version)
            return await honest(tx, command)

        runner.service.commands[m.SetQuota] = on_set_quota  # type: ignore[index]
        task = asyncio.ensure_future(runner.run())
        await asyncio.sleep(1)

        async def ask(limit: int) -> m.SetQuotaReply:
            quota = m.Quota(group=f"g{limit}", limit=limit)
            reply = await platform.gateway.request(m.SetQuota(quota=quota), timeout_s=5)
            assert isinstance(reply, m.SetQuotaReply)
            return reply

        async with runner.turn:
            good = [asyncio.ensure_future(ask(limit)) for limit in range(5)]
            await asyncio.sleep(1)
        assert {(await each).version for each in good} == {7}
        assert len(versions) == 5
        assert len(set(versions)) == 1
        async with runner.turn:
            mixed = [asyncio.ensure_future(ask(limit)) for limit in (11, 13, 12)]
            await asyncio.sleep(1)
        eleven, thirteen, twelve = [await each for each in mixed]
        assert (eleven.version, twelve.version) == (7, 7)
        assert thirteen.refusal is not None
        assert set(platform.counts()) == {"g0", "g1", "g2", "g3", "g4", "g11", "g12"}
        await stopped(task)

    virtually(main())


def test_commands_are_answered_refused_and_wait_for_a_leader() -> None:
    async def main() -> None:
        platform = CountingService()
        task = asyncio.ensure_future(platform.runner().run())
        await asyncio.sleep(1)
        ask = lambda limit: platform.gateway.request(  # noqa: E731
            m.SetQuota(quota=m.Quota(group="g", limit=limit)), timeout_s=5
        )
        reply = await ask(3)
        assert isinstance(reply, m.SetQuotaReply)
        assert reply.version == 7
        assert platform.counts() == {"g": 3}
        refused = await ask(-1)
        assert isinstance(refused, m.SetQuotaReply)
        assert refused.refusal is not None
        await stopped(task)

    virtually(main())


def test_loops_run_at_ticks_and_at_commits_and_survive_an_outage() -> None:
    steps: list[float] = []
    fail = [False]

    async def step(epoch: int) -> None:
        assert epoch >= 1
        steps.append(asyncio.get_running_loop().time())
        if fail[0]:
            raise StoreUnavailableError("down")

    async def main() -> None:
        platform = CountingService()
        loop = Loop(name="count", step=step, tick_seconds=100.0, exclusive=True)
        task = asyncio.ensure_future(platform.runner(loops=(loop,)).run())
        await until(lambda: len(steps) == 1)
        await platform.start_runs("a")
        await until(lambda: len(steps) == 2, 5.0)
        await asyncio.sleep(101)
        assert len(steps) == 3
        fail[0] = True
        await platform.start_runs("b")
        await asyncio.sleep(60)
        fail[0] = False
        before = len(steps)
        assert before > 5
        await until(lambda: len(steps) > before, 10.0)
        await stopped(task)

    virtually(main())


def test_a_loop_that_meets_a_row_that_cannot_be_read_tries_again() -> None:
    steps: list[float] = []
    bad = UnreadableRow(m.Message, ("a",), "column spec cannot be decoded")

    async def step(epoch: int) -> None:
        assert epoch >= 1
        steps.append(asyncio.get_running_loop().time())
        if len(steps) < 4:
            raise UnreadableRowError(bad)

    async def main() -> None:
        loop = Loop(name="count", step=step, tick_seconds=100.0, exclusive=True)
        task = asyncio.ensure_future(CountingService().runner(loops=(loop,)).run())
        await until(lambda: len(steps) == 4 or task.done(), 60.0)
        assert not task.done()
        pauses = [later - earlier for earlier, later in itertools.pairwise(steps)]
        assert all(pause > 0 for pause in pauses)
        await stopped(task)

    virtually(main())


def test_a_part_that_dies_takes_the_service_down() -> None:
    async def step(epoch: int) -> None:
        raise ZeroDivisionError(epoch)

    async def main() -> None:
        platform = CountingService()
        with pytest.raises(BaseExceptionGroup) as caught:
            await platform.runner(loops=(Loop(name="bad", step=step),)).run()
        assert caught.group_contains(ZeroDivisionError, depth=2)

    virtually(main())


def test_a_stop_during_an_outage_is_a_stop() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        platform.database.stop()
        platform.database.cut_leader("quota")
        task.cancel()
        done, _ = await asyncio.wait((task,), timeout=60)
        assert task in done

    virtually(main())


def test_a_failing_observer_ends_the_term_and_nothing_is_acknowledged_for_it() -> None:
    """What follows the rows in memory is loaded again; the event is handled once."""
    loaded: list[dict[str, int]] = []
    failed: list[str] = []

    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()

        async def on_lead(epoch: int) -> None:
            assert epoch > len(loaded)
            loaded.append(platform.counts())

        def observe(delta: Delta) -> None:
            for row in delta.put:
                if isinstance(row, Count) and row.group == "poison" and not failed:
                    failed.append(row.group)
                    raise KeyError(row.group)

        runner.service = replace(runner.service, on_lead=on_lead)
        runner.service.ports.store.observe(observe)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await platform.start_runs("a", "poison", "b")
        await until(lambda: len(loaded) == 2, 60)
        assert loaded == [{}, {"a": 1, "poison": 1, "b": 1}]
        await platform.start_runs("c", prefix="later")
        await until(lambda: platform.counts().get("c") == 1, 60)
        assert platform.counts() == {"a": 1, "poison": 1, "b": 1, "c": 1}
        assert platform.broker.dead_letters == []
        await stopped(task)

    virtually(main())


def test_a_command_whose_commit_cannot_be_followed_ends_the_term_too() -> None:
    failed: list[str] = []

    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()

        def observe(delta: Delta) -> None:
            if delta.put and not failed:
                failed.append("once")
                raise KeyError("once")

        runner.service.ports.store.observe(observe)
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch == 1)
        quota = m.SetQuota(quota=m.Quota(group="g", limit=3))
        reply = await platform.gateway.request(quota, timeout_s=5)
        assert isinstance(reply, m.SetQuotaReply)
        assert reply.refusal is not None, "the requester learns that the outcome is not certain"
        await until(lambda: runner.epoch == 2, 60)
        assert platform.counts() == {"g": 3}
        await stopped(task)

    virtually(main())


def test_a_term_that_lasted_resets_the_pause_before_the_next() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        for number in range(12):
            await until(lambda epoch=number + 1: runner.epoch == epoch, 60)
            await asyncio.sleep(60)
            ended = asyncio.get_running_loop().time()
            platform.database.cut_leader("quota")
            await until(lambda epoch=number + 2: runner.epoch == epoch, 60)
            assert asyncio.get_running_loop().time() - ended < 1.0
        await stopped(task)

    virtually(main())


def test_terms_that_end_at_once_are_begun_ever_more_slowly() -> None:
    begun: list[float] = []

    async def on_lead(_epoch: int) -> None:
        begun.append(asyncio.get_running_loop().time())
        raise StoreUnavailableError("canceling statement due to statement timeout")

    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        runner.service = replace(runner.service, on_lead=on_lead)
        task = asyncio.ensure_future(runner.run())
        await asyncio.sleep(60)
        assert len(begun) < 25
        ready, why = runner.ready
        assert not ready
        assert "cannot begin to lead" in why
        assert "statement timeout" in why
        await stopped(task)

    virtually(main())


def test_a_leader_that_loads_is_not_ready_and_does_not_report_that_it_stands_by() -> None:
    async def on_lead(_epoch: int) -> None:
        await asyncio.sleep(30)

    async def main() -> None:
        platform = CountingService()
        one, two = platform.runner(), platform.runner()
        one.service = replace(one.service, on_lead=on_lead)
        first = asyncio.ensure_future(one.run())
        await asyncio.sleep(1)
        second = asyncio.ensure_future(two.run())
        await asyncio.sleep(10)
        assert one.ready == (False, "begins to lead: loads what it needs from the database")
        assert two.ready == (True, "waiting: another process leads")
        await asyncio.sleep(30)
        assert one.ready == (True, "ready")
        await stopped(first, second)

    virtually(main())


@pytest.mark.parametrize("leader_commands", [True, False])
def test_a_service_is_ready_once_its_commands_are_taken(leader_commands: bool) -> None:
    async def main() -> None:
        platform = CountingService(faults=Faults(latency_s_max=3.0))
        runner = platform.runner(leader_commands=leader_commands)
        task = asyncio.ensure_future(runner.run())
        command = m.SetQuota(quota=m.Quota(group="g", limit=1))
        for _ in range(20):
            await until(lambda: runner.epoch is not None and runner.ready[0])
            reply = await platform.gateway.request(command, timeout_s=60.0)
            assert isinstance(reply, m.SetQuotaReply)
            await stopped(task)
            assert not runner.serving
            task = asyncio.ensure_future(runner.run())
        await stopped(task)

    virtually(main())


def test_a_command_that_waits_longer_than_its_requester_is_not_carried_out() -> None:
    async def main() -> None:
        platform = CountingService()
        runner = platform.runner()
        task = asyncio.ensure_future(runner.run())
        await until(lambda: runner.epoch is not None)
        await asyncio.sleep(1)
        command = m.SetQuota(quota=m.Quota(group="g", unit=m.Unit.NODES, limit=1))
        async with runner.turn:
            with pytest.raises(BusError, match="within"):
                await platform.gateway.request(command, timeout_s=1.0)
            late = asyncio.ensure_future(platform.gateway.request(command, timeout_s=60.0))
            await asyncio.sleep(1)
        reply = await late
        assert isinstance(reply, m.SetQuotaReply)
        assert reply.refusal is None
        assert platform.commands_carried_out == 1
        await stopped(task)

    virtually(main())
