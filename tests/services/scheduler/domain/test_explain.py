from __future__ import annotations

from dataclasses import replace

from libs.contracts.messages import ExplainReply, Goal, Priority, ReasonCode, TaskState
from services.scheduler.domain.decide import decide
from services.scheduler.domain.explain import explain
from services.scheduler.domain.model import Limit, Node, PolicySettings, Task
from tests.builders import (
    a_limit,
    a_node,
    a_snapshot,
    a_spec,
    a_task,
    at,
    played,
    running,
    some_nodes,
)

ALL = tuple(range(8))


def about(
    task_id: str,
    *tasks: Task,
    nodes: list[Node] | int = 1,
    limits: tuple[Limit, ...] = (),
    listed: bool = True,
    settings: PolicySettings | None = None,
) -> ExplainReply:
    """Decide once, then explain."""
    some = some_nodes(nodes) if isinstance(nodes, int) else nodes
    snapshot = a_snapshot(tasks, some, limits=limits, listed=listed, settings=settings)
    after = played(snapshot, decide(snapshot, at(10)))
    return explain(after, after.tasks[task_id], at(12))


BUSY = running(a_task("busy"), {"n0": ALL})


def test_a_task_that_waits_for_capacity() -> None:
    reply = about("b", BUSY, a_task("b", submitted=1), a_task("c", submitted=2))
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert (reply.position, reply.queue_length) == (1, 2)
    assert reply.remedies == (
        "1 more of its 1 nodes come free",
        "a priority above normal could preempt some of the 1 running tasks that are not below it",
    )
    assert reply.explained_at == at(12)


def test_the_place_in_line_is_counted_in_the_tasks_group_with_auto_tasks() -> None:
    tasks = [
        BUSY,
        a_task("d", group="dev", submitted=0),
        a_task("auto", priority=Priority.AUTO, submitted=1),
        a_task("me", submitted=2),
        a_task("high", priority=Priority.HIGH, nodes=2, submitted=3),
    ]
    nodes = [a_node("n0"), a_node("n1", schedulable=False), a_node("d0", group="dev", ready=False)]
    reply = about("me", *tasks, nodes=nodes)
    assert (reply.position, reply.queue_length) == (3, 3)
    assert reply.remedies[0] == "the 2 tasks before it start or leave the queue"
    assert "nodes that are cordoned or not ready come back: n1" in reply.remedies


def test_a_task_that_waits_for_victims_names_them() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL})
    reply = about("hi", low, a_task("hi", priority=Priority.HIGH))
    assert reply.victims == ("low",)
    assert reply.remedies == (
        "1 runs that are leaving end",
        "at the latest in 58 s they are ended by force",
    )


def test_a_task_that_waits_for_quota_hears_the_numbers() -> None:
    held = running(a_task("held", gpus=4), {"n0": (0, 1, 2, 3)})
    reply = about("q", held, a_task("q", gpus=4), limits=(a_limit(6, user="ann"),))
    assert reply.remedies == (
        "2 of the 4 GPUs held under this quota come free",
        "raise the quota from 6 to 8 GPUs",
    )


def test_a_quota_that_can_never_be_met_is_not_waited_for() -> None:
    reply = about("q", a_task("q", gpus=4), limits=(a_limit(2, user="ann"),))
    assert reply.remedies == ("raise the quota from 2 to 4 GPUs",)


def test_a_retry_says_when() -> None:
    task = replace(a_task("r", spec=a_spec(retries=2)), not_before_at=at(40), retries_used=1)
    assert about("r", task).remedies == (
        "the retry time comes in 28 s",
        "pause and resume it to try at once",
    )


def test_protected_runs_say_until_when() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0)
    settings = PolicySettings(protected_seconds=60)
    reply = about("hi", low, a_task("hi", priority=Priority.HIGH), settings=settings)
    assert "1 lower runs may be preempted from 2026-01-01T00:01:00+00:00" in reply.remedies


def test_a_cluster_that_is_too_small_says_what_is_away() -> None:
    away = about("w", a_task("w"), nodes=[a_node("n0", ready=False)])
    assert away.remedies == ("nodes that are cordoned or not ready come back: n0",)
    sick = about("w", a_task("w"), nodes=[a_node("n0", unusable=(0,))])
    assert sick.remedies == ("GPUs that must not be used become usable: on n0",)
    gone = about("w", a_task("w"), nodes=[a_node("n0", removed=True)])
    assert gone.remedies == ("nodes are added to group default",)


def test_before_the_inventory_is_known() -> None:
    reply = about("w", a_task("w", accepted=False), nodes=[], listed=False)
    assert reply.remedies == ("the launcher lists its nodes",)


def test_a_running_task_waits_for_nothing() -> None:
    reply = about("busy", BUSY)
    assert (reply.state, reply.position, reply.queue_length) == (TaskState.RUNNING, 0, 0)
    assert (reply.victims, reply.remedies) == ((), ())


def test_a_paused_task_and_one_that_loses_its_work() -> None:
    paused = replace(a_task("p", goal=Goal.PAUSE), state=TaskState.PAUSED)
    assert about("p", paused).remedies == ("resume it",)
    loses = replace(BUSY, attempts_without_progress=3)
    assert about("busy", loses).remedies == (
        "save checkpoints more often: 3 attempts in a row ended without a newer one",
    )
