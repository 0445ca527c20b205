"""Findings begin and end once, whatever dies in between, and their actions are carried out once by
the commands of submit and the launcher."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from libs.contracts import messages as m
from libs.contracts.messages import (
    AbnormalAction,
    AbnormalActionSettled,
    AbnormalOutcome,
    AbnormalTaskChanged,
    TaskState,
)
from libs.service.wiring import Wiring
from libs.store.port import Store
from services.monitor.abnormal.isolate import FAILED
from services.monitor.abnormal.store import ActionRow, FindingRow, prune_rules
from services.monitor.activities import ActivityRow
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.main import WIRING
from services.monitor.settings import MonitorSettings
from services.monitor.store import MessageRow
from services.monitor.tables import TABLES
from services.submit import main as submit_main
from services.submit.store import TaskRow as SubmitRow
from tests.kit.memory import MemoryPlatform
from tests.kit.service import ServiceHarness
from tests.kit.specs import asked
from tests.services.monitor.events import a_change
from tests.services.monitor.series.samples import TASK, a_rank, a_sample
from tests.services.monitor.series.test_recording import hearing, send

RULES = """
ranks_missing: {threshold: 60, actions: [notify, tag, stop]}
long_run: {threshold: 600}
restarts_without_progress: {threshold: 2, actions: [tag, cordon]}
groups:
  quiet: {ranks_missing: {enabled: false}}
"""


def settings(folder: Path, rules: str = RULES, **more: Any) -> MonitorSettings:
    path = folder / "rules.yaml"
    path.write_text(rules)
    return MonitorSettings(database_url="-", nats_url="-", rules_file=path, **more)


@pytest.fixture
def wiring() -> Wiring:
    return WIRING


@pytest.fixture
async def service(platform: MemoryPlatform, store: Store, tmp_path: Path) -> ServiceHarness:
    options = settings(tmp_path, prune_days_per_hour=0)
    service = ServiceHarness(platform, WIRING, options, store=store)
    await service.lead()
    return service


async def runs(service: ServiceHarness, task_id: str = "t1", **more: Any) -> None:
    await service.handle(a_change(service, 1, TaskState.RUNNING, task_id, attempt=1, **more))


async def misses_ranks(service: ServiceHarness, ranks: int = 1, task_id: str = "t1") -> None:
    await service.handle(
        m.RunDelayed(
            task_id=task_id,
            attempt=1,
            ranks=ranks,
            detail="rank 1 on n1: no image" if ranks else "",
            noted_at=service.clock.now(),
            running=True,
        )
    )


async def pass_time(service: ServiceHarness, seconds: float) -> None:
    """Steps of the loop, as often as it ticks."""
    for _ in range(round(seconds / 30)):
        await service.step("abnormal")
        service.clock.advance(30)
    await service.step("abnormal")


async def changes(service: ServiceHarness) -> list[tuple[str, int, bool]]:
    return [
        (each.rule, each.version, each.ended_at is None)
        for each in await service.published()
        if isinstance(each, AbnormalTaskChanged)
    ]


async def test_a_finding_begins_once_and_ends_once(service: ServiceHarness) -> None:
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 30)
    assert await changes(service) == []
    await pass_time(service, 90)
    assert await changes(service) == [("ranks_missing", 1, True)]
    # The same report again, and an old state: nothing is raised again.
    await misses_ranks(service)
    await runs(service)
    await pass_time(service, 90)
    assert await changes(service) == []
    (row,) = await service.rows(FindingRow)
    assert (row.owner, row.team, row.attempt, row.ended_at) == ("ann", "vision", 1, None)
    assert "rank 1 on n1: no image" in row.detail
    assert row.suggestion == "shiftwork events t1"
    await misses_ranks(service, 0)
    await pass_time(service, 60)
    assert await changes(service) == [("ranks_missing", 2, False)]
    await misses_ranks(service)
    await pass_time(service, 90)
    assert await changes(service) == [("ranks_missing", 3, True)]


def test_actions_are_kept_for_the_hour_in_which_limits_count_them() -> None:
    keeps = {each.what: each.keep for each in prune_rules(timedelta(0), timedelta(seconds=60))}
    assert keeps == {"facts": timedelta(seconds=60), "actions": timedelta(hours=1)}
    keeps = {each.what: each.keep for each in prune_rules(timedelta(0), timedelta(days=2))}
    assert keeps["actions"] == timedelta(days=2)


async def test_a_finding_of_a_rule_that_another_version_has_ends(service: ServiceHarness) -> None:
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 90)
    (finding,) = await service.rows(FindingRow)
    (facts,) = await service.rows(FactsRow)
    foreign = replace(finding, id="t1.of_later", rule="of_later")
    async with service.store.transaction() as tx:
        tx.put(foreign, replace(facts, open=("of_later", *facts.open)))
    await service.published()
    await pass_time(service, 30)
    assert await changes(service) == [("of_later", 2, False)]
    (facts,) = await service.rows(FactsRow)
    assert facts.open == ("ranks_missing",)


async def test_the_end_of_the_task_ends_its_findings_and_its_evaluation(
    service: ServiceHarness,
) -> None:
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 90)
    await service.published()
    await service.handle(a_change(service, 2, TaskState.FAILED, attempt=1))
    await pass_time(service, 0)
    assert await changes(service) == [("ranks_missing", 2, False)]
    (facts,) = await service.rows(FactsRow)
    assert (facts.watched, facts.open, facts.closed_at) == (False, (), service.clock.now())


async def test_a_clock_that_jumps_raises_nothing(service: ServiceHarness) -> None:
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 30)
    for jump in (10 * 86_400, -20 * 86_400):
        service.clock.advance(jump)
        await service.step("abnormal")
    # A minute at most is counted of a jump.
    assert {rule for rule, _, _ in await changes(service)} <= {"ranks_missing"}


async def test_time_in_the_queue_is_not_running(service: ServiceHarness) -> None:
    await runs(service)
    await pass_time(service, 300)
    await service.handle(a_change(service, 2, TaskState.QUEUED, attempt=1))
    await pass_time(service, 1200)
    assert await changes(service) == []
    await service.handle(a_change(service, 3, TaskState.RUNNING, attempt=2))
    await pass_time(service, 330)
    assert await changes(service) == [("long_run", 1, True)]


async def test_a_group_has_rules_of_its_own(service: ServiceHarness) -> None:
    await runs(service, group="quiet")
    await misses_ranks(service)
    await pass_time(service, 300)
    assert await changes(service) == []


async def test_a_finding_notifies_those_who_asked_for_it_once(service: ServiceHarness) -> None:
    command = m.SetNotification(
        owner="ann",
        name="mine",
        url="https://example.org/hook",
        occasions=(m.Occasion.ABNORMAL,),
        tasks=m.NotifiedTasks.OWN,
    )
    assert (await service.ask(command)).refusal is None
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 300)
    (message,) = await service.rows(MessageRow)
    assert message.id == "t1.abnormal.ranks_missing-1.ann.mine"
    assert '"rule": "ranks_missing"' in message.body


async def test_a_leader_that_dies_before_its_commit_decides_again(
    platform: MemoryPlatform, tmp_path: Path
) -> None:
    service = ServiceHarness(platform, WIRING, settings(tmp_path))
    await service.lead()
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 30)
    service.clock.advance(30)
    with dying(service.store):
        await service.step("abnormal")
    assert await service.rows(FindingRow) == []
    await service.restart()
    await pass_time(service, 60)
    assert await changes(service) == [("ranks_missing", 1, True)]
    await service.restart()
    await pass_time(service, 60)
    assert await changes(service) == []
    (row,) = await service.rows(ActionRow)
    assert (row.action, row.outcome) == (AbnormalAction.STOP, AbnormalOutcome.WAITING)


class DiedError(Exception):
    """The process is gone before a commit."""


@contextlib.contextmanager
def dying(store: Store, after: int = 0) -> Any:
    """The process dies instead of its commit number ``after``."""
    real, count = store.transaction, 0

    @contextlib.asynccontextmanager
    async def transaction(**options: Any) -> AsyncIterator[Any]:
        nonlocal count
        async with real(**options) as tx:
            yield tx
            count += 1
            if count > after:
                raise DiedError

    store.transaction = transaction  # type: ignore[method-assign]
    try:
        yield
    except DiedError:
        pass
    finally:
        store.transaction = real  # type: ignore[method-assign]


class Site:
    """The monitor with a real submit, to which it sends its commands."""

    def __init__(self, platform: MemoryPlatform, options: MonitorSettings) -> None:
        self.platform = platform
        self.monitor = ServiceHarness(platform, WIRING, options)
        self.submit = ServiceHarness(platform, submit_main.WIRING)
        self.nodes: list[m.SetSchedulable] = []
        self.task_id = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Site]:
        async def cordon(command: m.SetSchedulable) -> m.SetSchedulableReply:
            self.nodes.append(command)
            return m.SetSchedulableReply()

        serving: Any = {
            "submit": dict.fromkeys((m.SetGoal, m.SetPriority), self.submit.ask),
            "launcher": {m.SetSchedulable: cordon},
        }
        await self.monitor.lead()
        await self.submit.lead()
        made = await self.submit.ask(m.CreateTask(client_key="k", owner="ann", spec=asked()))
        self.task_id = made.task_id
        async with contextlib.AsyncExitStack() as stack:
            for name, table in serving.items():
                await stack.enter_async_context(self.platform.connection(name).serve(table))
            yield self

    async def moves(self, version: int, state: TaskState, attempt: int = 1, **more: Any) -> None:
        """Both services receive the scheduler's event."""
        event = a_change(self.monitor, version, state, self.task_id, attempt=attempt, **more)
        await self.monitor.handle(event)
        await self.submit.handle(event)

    async def abnormal(self) -> None:
        await self.moves(1, TaskState.RUNNING, priority=m.Priority.NORMAL)
        await misses_ranks(self.monitor, task_id=self.task_id)
        await pass_time(self.monitor, 90)

    async def act(self) -> list[AbnormalActionSettled]:
        """A step of the actions' loop; what was settled."""
        await self.monitor.step("abnormal-actions")
        found = await self.monitor.published()
        return [each for each in found if isinstance(each, AbnormalActionSettled)]

    async def goals(self) -> list[tuple[m.Goal, str]]:
        """The changes that submit published."""
        found = await self.submit.published()
        return [(e.goal, e.changed_by) for e in found if isinstance(e, m.GoalChanged)]

    async def row(self) -> SubmitRow:
        (row,) = await self.submit.rows(SubmitRow)
        return row


def with_actions(*words: str, **more: Any) -> str:
    return f"ranks_missing: {{threshold: 60, actions: [{', '.join(words)}]}}\n"


@contextlib.asynccontextmanager
async def a_site(folder: Path, *words: str, **more: Any) -> AsyncIterator[Site]:
    site = Site(MemoryPlatform(), settings(folder, with_actions(*words), **more))
    async with site.running():
        yield site


async def test_the_default_changes_no_task(tmp_path: Path) -> None:
    async with a_site(tmp_path, "notify", "tag") as site:
        await site.abnormal()
        assert await site.act() == []
        assert await site.goals() == []
        assert await site.monitor.rows(ActionRow) == []


async def test_a_task_is_stopped_once_in_the_rules_name(tmp_path: Path) -> None:
    async with a_site(tmp_path, "tag", "stop") as site:
        await site.abnormal()
        (taken,) = await site.act()
        assert (taken.action, taken.outcome, taken.attempt) == (
            AbnormalAction.STOP,
            AbnormalOutcome.DONE,
            1,
        )
        assert await site.goals() == [(m.Goal.STOP, "rule:ranks_missing")]
        assert await site.act() == []
        assert await site.goals() == []


@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize("action", ["stop", "preempt", "lower_priority"])
async def test_an_action_is_carried_out_once_wherever_the_leader_dies(
    tmp_path: Path, commits: int, action: str
) -> None:
    async with a_site(tmp_path, action) as site:
        await site.abnormal()
        with dying(site.monitor.store, commits):
            await site.monitor.step("abnormal-actions")
        await site.monitor.restart()
        await site.act()
        await site.act()
        row = await site.row()
        assert row.revision == 2
        if action == "preempt":
            (pending,) = await site.monitor.rows(ActionRow)
            assert pending.goal_revision == 2


async def test_what_people_decide_meanwhile_is_not_undone_by_a_repetition(tmp_path: Path) -> None:
    """The leader dies after submit has lowered the priority; its owner raises it again."""
    async with a_site(tmp_path, "lower_priority") as site:
        await site.abnormal()
        with dying(site.monitor.store, 2):
            await site.monitor.step("abnormal-actions")
        assert (await site.row()).priority is m.Priority.LOW
        raised = m.SetPriority(task_id=site.task_id, priority=m.Priority.HIGH, asked_by="ann")
        await site.submit.ask(raised)
        await site.monitor.restart()
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.DONE
        assert (await site.row()).priority is m.Priority.HIGH


async def test_a_preempted_task_goes_back_to_the_queue(tmp_path: Path) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        assert await site.act() == []
        assert await site.goals() == [(m.Goal.PAUSE, "rule:ranks_missing")]
        await site.moves(2, TaskState.PREEMPTING)
        await pass_time(site.monitor, 30)
        assert await site.act() == []
        await site.moves(3, TaskState.PAUSED)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.DONE
        assert await site.goals() == [(m.Goal.RUN, "rule:ranks_missing")]


async def test_a_preemption_does_not_resume_what_its_owner_paused(tmp_path: Path) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        await site.act()
        for goal in (m.Goal.RUN, m.Goal.PAUSE):
            await site.submit.ask(m.SetGoal(task_id=site.task_id, goal=goal, asked_by="ann"))
        await site.goals()
        await site.moves(2, TaskState.PAUSED)
        (taken,) = await site.act()
        assert "another goal was set since" in taken.detail
        assert await site.goals() == []
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        pause = m.SetGoal(task_id=site.task_id, goal=m.Goal.PAUSE, asked_by="ann")
        await site.submit.ask(pause)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.WITHDRAWN


@pytest.mark.parametrize(
    "pause",
    [
        m.SetGoal(goal=m.Goal.PAUSE, asked_by="ann"),
        m.SetMode(mode=m.RunMode.PAUSE, asked_by="ann"),
        m.SetMode(mode=m.RunMode.NORMAL, stay_paused=True, asked_by="ann"),
    ],
)
async def test_a_preemption_does_not_resume_what_its_owner_pauses_meanwhile(
    tmp_path: Path, pause: m.SetGoal | m.SetMode
) -> None:
    async with a_site(tmp_path, "preempt") as site:
        await site.abnormal()
        await site.act()
        reply = await site.submit.ask(pause.model_copy(update={"task_id": site.task_id}))
        assert reply.revision == 3
        assert await site.goals() == [
            (m.Goal.PAUSE, "rule:ranks_missing"),
            (m.Goal.PAUSE, "ann"),
        ]
        # It is that person's now: the same again changes nothing.
        await site.submit.ask(pause.model_copy(update={"task_id": site.task_id}))
        await site.moves(2, TaskState.PAUSED)
        (taken,) = await site.act()
        assert "another goal was set since" in taken.detail
        assert await site.goals() == []


async def test_an_action_for_an_attempt_that_is_over_is_refused(tmp_path: Path) -> None:
    """Submit knows of the next attempt before the monitor does."""
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        later = a_change(site.monitor, 5, TaskState.RUNNING, site.task_id, attempt=2)
        await site.submit.handle(later)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.REFUSED
        assert await site.goals() == []


async def test_an_action_waits_until_submit_knows_of_the_attempt(tmp_path: Path) -> None:
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        (row,) = await site.submit.rows(SubmitRow)
        await site.submit.put(replace(row, attempt=0))
        assert await site.act() == []
        await site.submit.put(row)
        assert len(await site.act()) == 1


async def test_an_action_is_withdrawn_once_the_task_is_no_longer_abnormal(tmp_path: Path) -> None:
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        await misses_ranks(site.monitor, 0, site.task_id)
        await pass_time(site.monitor, 30)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.WITHDRAWN
        assert await site.goals() == []


async def test_an_action_waits_while_its_rule_does_not_hold(tmp_path: Path) -> None:
    """The loop has not evaluated the task since its ranks came back."""
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        await misses_ranks(site.monitor, 0, site.task_id)
        assert await site.act() == []
        (row,) = await site.monitor.rows(ActionRow)
        assert row.detail == "the rule does not hold at the moment"
        assert await site.goals() == []


async def test_a_task_whose_gpus_work_again_is_not_stopped(tmp_path: Path) -> None:
    """What samples show ends its finding late, and no action is sent meanwhile."""
    rules = "idle_gpus: {threshold: 180, actions: [stop]}\n"
    options = settings(tmp_path, rules, idle_gpu_seconds=60, quiet_seconds=60)
    site = Site(MemoryPlatform(), options)
    site.monitor.clock.move_to(0)
    async with site.running(), hearing(site.monitor):
        await site.moves(1, TaskState.RUNNING, held_gpus=1)
        await samples(site.monitor, 0, 240, 3.0, site.task_id)
        await samples(site.monitor, 240, 300, 95.0, site.task_id)
        (finding,) = await site.monitor.rows(FindingRow)
        assert finding.ended_at is None
        assert await site.act() == []


async def test_a_new_leader_does_not_act_on_old_samples(tmp_path: Path) -> None:
    rules = "idle_gpus: {threshold: 180, actions: [stop]}\n"
    options = settings(tmp_path, rules, idle_gpu_seconds=60, quiet_seconds=60)
    site = Site(MemoryPlatform(), options)
    site.monitor.clock.move_to(0)
    async with site.running():
        await site.moves(1, TaskState.RUNNING, held_gpus=1)
        async with hearing(site.monitor):
            await samples(site.monitor, 0, 240, 3.0, site.task_id)
        site.monitor.clock.advance(600)
        await site.monitor.restart()
        await site.monitor.step("abnormal")
        assert await site.act() == []


async def test_an_action_waits_until_its_finding_is_confirmed_for_the_next_attempt(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        await site.moves(2, TaskState.QUEUED)
        await site.moves(3, TaskState.RUNNING, attempt=2)
        assert await site.act() == []
        (row,) = await site.monitor.rows(ActionRow)
        assert row.detail == "attempt 2 is not evaluated yet"
        await pass_time(site.monitor, 0)
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.WITHDRAWN
        assert await site.goals() == []


async def test_a_finding_that_goes_on_in_the_next_attempt_is_acted_on_in_that_one(
    tmp_path: Path,
) -> None:
    rules = "long_run: {threshold: 60, actions: [stop]}\n"
    site = Site(MemoryPlatform(), settings(tmp_path, rules))
    async with site.running():
        await site.moves(1, TaskState.RUNNING)
        await pass_time(site.monitor, 90)
        await site.moves(2, TaskState.QUEUED)
        await site.moves(3, TaskState.RUNNING, attempt=2)
        assert await site.act() == []
        await pass_time(site.monitor, 0)
        (taken,) = await site.act()
        assert (taken.attempt, taken.outcome) == (2, AbnormalOutcome.DONE)


@pytest.mark.parametrize(
    "rules",
    [
        with_actions("notify", "tag"),
        "ranks_missing: {threshold: 60, actions: [stop], enabled: false}\n",
        with_actions("stop") + "groups: {train: {ranks_missing: {actions: [tag]}}}\n",
    ],
)
async def test_an_action_that_the_site_takes_back_is_withdrawn(tmp_path: Path, rules: str) -> None:
    async with a_site(tmp_path, "stop") as site:
        await site.abnormal()
        site.monitor.settings = settings(tmp_path, rules)
        await site.monitor.restart()
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.WITHDRAWN
        assert taken.detail == "the rules no longer have this action"
        assert await site.goals() == []


async def test_a_dry_run_says_what_it_would_do(tmp_path: Path) -> None:
    async with a_site(tmp_path, "stop", "preempt", rules_dry_run=True) as site:
        await site.abnormal()
        taken = await site.act()
        assert {each.outcome for each in taken} == {AbnormalOutcome.DRY_RUN}
        assert taken[1].detail == "would stop it"
        assert await site.goals() == []


async def test_beyond_the_hours_limit_actions_wait(tmp_path: Path) -> None:
    async with a_site(tmp_path, "lower_priority", "stop", rule_actions_per_hour=1) as site:
        await site.abnormal()
        assert len(await site.act()) == 1
        (waits,) = [e for e in await site.monitor.rows(ActionRow) if e.detail.startswith("ranks")]
        assert waits.detail == "ranks_missing has had its 1 action of this hour"
        # A clock that jumps ahead frees nothing.
        site.monitor.clock.advance(86_400)
        assert await site.act() == []
        await pass_time(site.monitor, 3600)
        assert len(await site.act()) == 1


async def test_a_service_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    site = Site(MemoryPlatform(), settings(tmp_path, with_actions("stop")))
    async with site.running():
        await site.abnormal()
    assert await site.act() == []
    (row,) = await site.monitor.rows(ActionRow)
    assert row.outcome is AbnormalOutcome.WAITING
    assert row.detail == "the service that carries it out does not answer"


async def fails_on(site: Site, node_id: str, task_id: str, owner: str) -> None:
    """A task whose rank is restarted in place there, twice."""
    await runs(site.monitor, task_id, owner=owner)
    for restarts in (1, 2):
        await site.monitor.handle(
            m.RankRestarted(
                task_id=task_id,
                attempt=1,
                rank=0,
                role="worker",
                restarts=restarts,
                restarts_max=9,
                noted_at=site.monitor.clock.now(),
                node_id=node_id,
            )
        )
    await pass_time(site.monitor, 0)


@pytest.mark.parametrize("owners_min", [1, 2, 3])
async def test_a_node_is_cordoned_once_tasks_of_enough_owners_fail_there(
    tmp_path: Path, owners_min: int
) -> None:
    site = Site(MemoryPlatform(), settings(tmp_path, cordon_owners_min=owners_min))
    async with site.running():
        for number, owner in enumerate(("ann", "bob", "eve"), 1):
            # One owner fails often, and on other nodes as well.
            for more in range(3):
                await fails_on(site, "n7", f"{owner}{more}", owner)
            await fails_on(site, f"n-{owner}", f"{owner}9", owner)
            taken = await site.act()
            if number < owners_min:
                assert taken == []
                waits = [e for e in await site.monitor.rows(ActionRow) if e.node_id == "n7"]
                (why,) = {each.detail for each in waits}
                assert why.startswith(f"tasks of {number} owner")
                assert why.endswith(f" name n7; it is cordoned once there are {owners_min}")
                assert site.nodes == []
            elif number == owners_min and owners_min > 1:
                assert {(each.action, each.node_id) for each in taken} == {
                    (AbnormalAction.CORDON, "n7")
                }
                command = site.nodes[0]
                assert (command.node_id, command.schedulable) == ("n7", False)
                assert command.asked_by == "rule:restarts_without_progress"


async def test_a_finding_that_is_over_counts_for_no_cordon(tmp_path: Path) -> None:
    site = Site(MemoryPlatform(), settings(tmp_path))
    async with site.running():
        await fails_on(site, "n7", "t1", "ann")
        saved = m.Checkpoint(no=1, attempt=1, step=1, uri="/c", saved_at=site.monitor.clock.now())
        await site.monitor.handle(m.CheckpointSaved(task_id="t1", attempt=1, checkpoint=saved))
        await fails_on(site, "n7", "t2", "bob")
        (taken,) = await site.act()
        assert (taken.task_id, taken.outcome) == ("t1", AbnormalOutcome.WITHDRAWN)
        assert site.nodes == []


async def test_the_nodes_on_which_ranks_cannot_start_are_cordoned(tmp_path: Path) -> None:
    rules = "ranks_missing: {threshold: 60, actions: [cordon]}\n"
    site = Site(MemoryPlatform(), settings(tmp_path, rules))
    async with site.running():
        for task_id, owner in (("t1", "ann"), ("t2", "bob")):
            await site.monitor.handle(
                a_change(site.monitor, 1, TaskState.STARTING, task_id, attempt=1, owner=owner)
            )
            await site.monitor.handle(
                m.RunDelayed(
                    task_id=task_id,
                    attempt=1,
                    ranks=2,
                    detail="rank 1 on n1: no device",
                    noted_at=site.monitor.clock.now(),
                    node_ids=("n1", f"only-{owner}"),
                )
            )
        await pass_time(site.monitor, 90)
        assert {each.node_id for each in await site.act()} == {"n1"}
        assert {each.node_id for each in site.nodes} == {"n1"}


async def test_lists_show_what_a_user_sees(service: ServiceHarness) -> None:
    tasks = {"t1": "ann", "t2": "bob", "t3": "eve"}
    for task_id, owner in tasks.items():
        team = "" if owner == "eve" else "vision"
        await runs(service, task_id, owner=owner, team=team)
        await misses_ranks(service, task_id=task_id)
    await pass_time(service, 90)

    async def listed(**query: Any) -> list[str]:
        reply = await service.ask(m.ListAbnormalTasks(**query))
        return [each.task_id for each in reply.tasks]

    assert await listed() == ["t1", "t2", "t3"]
    assert await listed(seen_by="eve") == ["t3"]
    assert await listed(seen_by="eve", seen_team="vision") == ["t1", "t2", "t3"]
    assert await listed(seen_by="ann", seen_team="vision") == ["t1", "t2"]
    assert await listed(seen_by="ann", owner="bob") == []
    assert await listed(rule="ranks_missing", group="train", limit=2) == ["t1", "t2"]
    first = await service.ask(m.ListAbnormalTasks(limit=2))
    assert await listed(after=first.next) == ["t3"]
    refused = await service.ask(m.ListAbnormalTasks(rule="ranks_mising"))
    assert "did you mean ranks_missing?" in refused.refusal.detail
    await misses_ranks(service, 0, "t1")
    await pass_time(service, 30)
    assert await listed(task_id="t1") == []
    assert await listed(task_id="t1", ended=True) == ["t1"]


async def test_open_findings_are_published_again_for_a_new_read_model(
    service: ServiceHarness,
) -> None:
    await runs(service)
    await misses_ranks(service)
    await pass_time(service, 90)
    await service.published()
    assert (await service.ask(m.Reemit(service="monitor"))).events == 1
    assert await changes(service) == [("ranks_missing", 1, True)]


async def samples(
    monitor: ServiceHarness, begin: int, end: int, percent: float, task_id: str = TASK
) -> None:
    """A GPU of a rank, sampled every 10 s; the loops run every 30 s."""
    for t in range(begin, end, 10):
        rank = a_rank(0, gpus=[0], cores=1.0, task_id=task_id)
        await send(monitor, a_sample(t, gpus=[percent], ranks=[rank]))
        if t % 30 == 20:
            await monitor.step("activity")
            await monitor.step("abnormal")


async def test_a_gpu_that_idles_is_found_and_a_gap_in_the_samples_ends_nothing(
    platform: MemoryPlatform, tmp_path: Path
) -> None:
    rules = "idle_gpus: {threshold: 180}\n"
    options = settings(tmp_path, rules, idle_gpu_seconds=60, quiet_seconds=60)
    monitor = ServiceHarness(platform, WIRING, options)
    monitor.clock.move_to(0)
    await monitor.lead()
    await runs(monitor, TASK, held_gpus=1)
    async with hearing(monitor):
        await samples(monitor, 0, 180, 3.0)
        assert await changes(monitor) == []
        await samples(monitor, 180, 240, 3.0)
        assert await changes(monitor) == [("idle_gpus", 1, True)]
        (row,) = await monitor.rows(FindingRow)
        assert row.detail.startswith("1 of 1 GPUs have been below 10 % for 3.2 min")
        # Nothing is sampled for a while, and idle times begin again: it is the same finding.
        monitor.clock.move_to(330)
        await monitor.step("activity")
        await monitor.step("abnormal")
        await samples(monitor, 330, 600, 3.0)
        assert await changes(monitor) == []
        # It works again, for longer than an idle time takes to count.
        await samples(monitor, 600, 690, 80.0)
        assert await changes(monitor) == []
        await samples(monitor, 690, 780, 80.0)
        assert await changes(monitor) == [("idle_gpus", 2, False)]


async def test_a_gpu_that_idles_again_keeps_its_finding(
    platform: MemoryPlatform, tmp_path: Path
) -> None:
    """Each time that it works counts from its own begin."""
    rules = "idle_gpus: {threshold: 60}\n"
    options = settings(tmp_path, rules, idle_gpu_seconds=60, quiet_seconds=60)
    monitor = ServiceHarness(platform, WIRING, options)
    monitor.clock.move_to(0)
    await monitor.lead()
    await runs(monitor, TASK, held_gpus=1)
    async with hearing(monitor):
        await samples(monitor, 0, 90, 3.0)
        assert await changes(monitor) == [("idle_gpus", 1, True)]
        for begin in (90, 240, 390):
            await samples(monitor, begin, begin + 30, 80.0)
            (row,) = await monitor.rows(FindingRow)
            assert row.clearing_since_s is not None
            await samples(monitor, begin + 30, begin + 150, 3.0)
            (row,) = await monitor.rows(FindingRow)
            assert row.clearing_since_s is None
        assert await changes(monitor) == []


async def test_every_page_of_tasks_is_evaluated(
    service: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.monitor.abnormal.evaluation.TASKS_AT_ONCE", 2)
    for number in range(5):
        await runs(service, f"t{number}")
        await misses_ranks(service, task_id=f"t{number}")
    await pass_time(service, 300)
    found = {row.task_id for row in await service.rows(FindingRow)}
    assert found == {f"t{number}" for number in range(5)}


async def test_a_task_with_an_unreadable_row_leaves_the_others_evaluated(tmp_path: Path) -> None:
    platform = MemoryPlatform()
    monitor = ServiceHarness(platform, WIRING, settings(tmp_path))
    await monitor.lead()
    now = monitor.clock.now()
    await monitor.put(ActivityRow("t2", 1, now, now, 0.0, 0.0, (), (), now, 0, False, False))
    for task_id in ("t1", "t2", "t3"):
        await runs(monitor, task_id)
        await misses_ranks(monitor, task_id=task_id)
    platform.database.break_row(TABLES, ActivityRow, "t2", 1, column="idle")
    before = failures("abnormal")
    await pass_time(monitor, 90)
    found = {row.task_id for row in await monitor.rows(FindingRow)}
    assert found == {"t1", "t3"}
    assert failures("abnormal") > before
    platform.database.schema(TABLES.schema).table(TABLES.shape(ActivityRow)).broken.clear()
    await pass_time(monitor, 0)
    assert len(await monitor.rows(FindingRow)) == 3


async def test_an_action_with_an_unreadable_row_leaves_the_others_done(tmp_path: Path) -> None:
    async with a_site(tmp_path, "stop") as site:
        await runs(site.monitor, "a1")
        await misses_ranks(site.monitor, task_id="a1")
        await site.abnormal()
        key = "a1.ranks_missing"
        site.platform.database.break_row(TABLES, FindingRow, key, column="version")
        before = failures("abnormal-actions")
        (taken,) = await site.act()
        assert (taken.task_id, taken.outcome) == (site.task_id, AbnormalOutcome.DONE)
        assert failures("abnormal-actions") > before


def failures(loop: str) -> float:
    return FAILED.labels(loop)._value.get()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


async def test_actions_at_their_limit_do_not_hold_up_those_of_other_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.monitor.abnormal.acting.ACTIONS_AT_ONCE", 2)
    rules = with_actions("stop") + "long_run: {threshold: 120, actions: [stop]}\n"
    site = Site(MemoryPlatform(), settings(tmp_path, rules, rule_actions_per_hour=1))
    async with site.running():
        await site.abnormal()
        (taken,) = await site.act()
        assert taken.outcome is AbnormalOutcome.DONE
        for number in range(4):
            await runs(site.monitor, f"b{number}")
            await misses_ranks(site.monitor, task_id=f"b{number}")
        await pass_time(site.monitor, 120)
        assert {each.rule for each in await site.act()} == {"long_run"}
        waits = [each.rule for each in await site.monitor.rows(ActionRow) if not each.acted_s]
        assert waits.count("ranks_missing") == 4


async def test_actions_that_only_wait_cost_one_transaction(tmp_path: Path) -> None:
    async with a_site(tmp_path, "lower_priority", "stop", rule_actions_per_hour=0) as site:
        await site.abnormal()
        await site.act()
        real, count = site.monitor.store.transaction, 0

        def transaction(**options: Any) -> Any:
            nonlocal count
            count += 1
            return real(**options)

        site.monitor.store.transaction = transaction  # type: ignore[method-assign]
        await site.monitor.step("abnormal-actions")
        assert count == 1


async def test_findings_are_pruned_after_the_end_of_their_task(service: ServiceHarness) -> None:
    for task_id in ("t1", "t2"):
        await runs(service, task_id)
        await misses_ranks(service, task_id=task_id)
    await pass_time(service, 90)
    await misses_ranks(service, 0, "t2")
    await service.handle(a_change(service, 2, TaskState.FAILED, "t1", attempt=1))
    await pass_time(service, 30)
    await service.step("abnormal-actions")
    service.clock.advance(31 * 86_400)
    await service.step("prune")
    assert [row.task_id for row in await service.rows(FindingRow)] == ["t2"]
    assert [row.task_id for row in await service.rows(FactsRow)] == ["t2"]
    assert await service.rows(ActionRow) == []
    # The next finding of a task that lives counts on.
    await service.published()
    await misses_ranks(service, task_id="t2")
    await pass_time(service, 120)
    assert ("ranks_missing", 3, True) in await changes(service)


async def test_a_task_whose_state_comes_late_is_evaluated_again(service: ServiceHarness) -> None:
    await misses_ranks(service)
    service.clock.advance(86_460)
    await service.step("abnormal")
    (facts,) = await service.rows(FactsRow)
    assert not facts.watched
    await runs(service)
    await pass_time(service, 120)
    assert await changes(service) == [("ranks_missing", 1, True)]
    (facts,) = await service.rows(FactsRow)
    assert (facts.watched, facts.closed_at) == (True, None)
