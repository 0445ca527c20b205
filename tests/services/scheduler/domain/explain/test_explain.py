from __future__ import annotations

from dataclasses import replace

import pytest

from libs.contracts.messages import (
    ExplainReply,
    Goal,
    PreemptMode,
    Priority,
    ReasonCode,
    TaskState,
    Unit,
)
from libs.contracts.reasons import render
from services.scheduler.domain.allocate import Allocation
from services.scheduler.domain.decide import decide
from services.scheduler.domain.explain.explanation import BOUNDS, explain
from services.scheduler.domain.explain.group_simulation import Bounds
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.changes import applied
from services.scheduler.domain.model.group_policy import (
    GroupPolicy,
    PolicySettings,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.domain.model.rows import Inventory, Limit, Node, Task
from services.scheduler.domain.model.values import LEVELS
from services.scheduler.domain.round import Round
from tests.kit.builders import (
    a_limit,
    a_node,
    a_snapshot,
    a_spec,
    a_task,
    played,
    running,
    some_nodes,
)
from tests.kit.clock import START, at
from tests.services.scheduler.domain.explain.copies import Copies, copy_of

ALL = tuple(range(8))


def about(
    task_id: str,
    *tasks: Task,
    nodes: list[Node] | int = 1,
    limits: tuple[Limit, ...] = (),
    listed: bool = True,
    settings: PolicySettings | None = None,
) -> ExplainReply:
    """Decide once, then explain; first come, first served, unless a policy is given."""
    some = some_nodes(nodes) if isinstance(nodes, int) else nodes
    settings = settings or PolicySettings(policy="fifo")
    snapshot = a_snapshot(tasks, some, limits=limits, listed=listed, settings=settings)
    after = played(snapshot, decide(snapshot, at(10)))
    return explain(copy_of(after.index), after.tasks[task_id], at(12), Copies()).reply


BUSY = running(a_task("busy"), {"n0": ALL})


def test_a_task_that_waits_for_capacity() -> None:
    reply = about("b", BUSY, a_task("b", submitted=1), a_task("c", submitted=2))
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_CAPACITY
    assert (reply.position, reply.queue_length) == (1, 2)
    assert reply.remedies == (
        (
            "raise its priority to above_normal (`shiftwork priority b above_normal`):"
            " 1 run would be asked to go (busy)"
        ),
        "1 run ends: busy",
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
    # Neither a node that comes back nor a queue without the two before it is enough: "high" needs
    # both nodes, and "busy" runs on.
    assert reply.remedies == (
        (
            "raise its priority to above_normal (`shiftwork priority me above_normal`):"
            " 1 run would be asked to go (busy)"
        ),
    )


def test_a_task_that_waits_for_victims_names_them() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL})
    reply = about("hi", low, a_task("hi", priority=Priority.HIGH))
    assert reply.victims == ("low",)
    assert reply.remedies == (
        "the run that still holds what it is promised ends",
        "at the latest in 58 s it is ended by force",
    )


def test_the_reason_for_waiting_for_quota_has_the_numbers() -> None:
    held = running(a_task("held", gpus=4), {"n0": (0, 1, 2, 3)})
    reply = about("q", held, a_task("q", gpus=4), limits=(a_limit(6, user="ann"),))
    assert reply.remedies == (
        "2 of the 4 GPUs held under this quota come free",
        "raise the quota from 6 to 8 GPUs (`shiftwork quota set --user ann --gpus 8`)",
        # A run of the same owner frees quota for the owner's higher task.
        (
            "raise its priority to above_normal (`shiftwork priority q above_normal`):"
            " 1 run would be asked to go (held)"
        ),
    )


def test_a_grant_that_binds_is_named_and_may_be_raised() -> None:
    held = running(a_task("held", gpus=4), {"n0": (0, 1, 2, 3)})
    own = a_limit(6, user="ann", grant=True)
    reply = about("q", held, a_task("q", gpus=4), limits=(own,))
    assert reply.reason is not None
    assert render(reply.reason) == (
        "waits for ann's grant of 6 GPUs in each group: it needs 4 GPUs"
    )
    assert reply.remedies[:2] == (
        "2 of the 4 GPUs held under this quota come free",
        "raise the quota from 6 to 8 GPUs (`shiftwork quota set --grant --user ann --gpus 8`)",
    )
    assert [each.task_id for each in reply.holders] == ["held"]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("grant", [True, False], ids=["grant", "cap"])
def test_nothing_that_ends_helps_a_task_whose_quota_never_allows_it(
    nodes: int, *, grant: bool
) -> None:
    """A run began before its owner's row was set to nothing; the task was accepted before, too."""
    held = running(a_task("held", priority=Priority.HIGH), {"n0": ALL})
    none = a_limit(0, user="ann", unit=Unit.NODES, grant=grant)
    waits = a_task("q", submitted=1, priority=Priority.HIGH)
    reply = about("q", held, waits, nodes=nodes, limits=(none,))
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert (reply.holders, reply.holders_count) == ((), 0)
    assert reply.forecast is not None
    assert reply.forecast.unknown == "its quota never allows it"
    raised = (
        "raise the quota from 0 to 2 nodes"
        f" (`shiftwork quota set {'--grant ' * grant}--user ann --nodes 2`)"
    )
    assert reply.remedies[0] == raised + ("; and 1 run ends: held" if nodes == 1 else "")


def test_who_is_not_permitted_a_level_needs_a_grant_of_their_own() -> None:
    site = a_limit(
        0,
        unit=Unit.UNSPECIFIED,
        grant=True,
        unlimited=True,
        level_max=Priority.NORMAL,
    )
    reply = about("q", a_task("q", gpus=4, priority=Priority.HIGH), limits=(site,))
    assert reply.reason is not None
    assert render(reply.reason) == (
        "is not permitted at high in group default:"
        " the site's default (any amount, nothing above normal)"
    )
    assert reply.remedies == (
        (
            "give ann a grant of 4 GPUs at high in group default"
            " (`shiftwork quota set --grant --user ann --priority high --group default --gpus 4`)"
        ),
    )


def site_default(*, up_to: Priority, number: int | None) -> Limit:
    """What `shiftwork quota default` sets."""
    unit = Unit.UNSPECIFIED if number is None else Unit.GPUS_OR_NODES
    most = {"unit": unit, "unlimited": number is None, "level_max": up_to}
    return a_limit(number or 0, grant=True, **most)


@pytest.mark.parametrize("number", [None, 4], ids=["unlimited", "4"])
@pytest.mark.parametrize(
    "up_to", [Priority.UNSPECIFIED, LEVELS[0], Priority.NORMAL, LEVELS[-1]], ids=lambda at: at.name
)
@pytest.mark.parametrize(
    "binding",
    [
        a_limit(4, user="ann", priority=Priority.NORMAL, grant=True),
        a_limit(4, priority=Priority.NORMAL, grant=True),
        a_limit(4, user="ann", grant=True),
        a_limit(4, user="ann", priority=Priority.NORMAL),
        a_limit(4),
    ],
    ids=["own at a level", "each at a level", "own", "cap at a level", "cap"],
)
@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.AUTO], ids=["normal", "auto"])
def test_a_task_that_waits_for_quota_is_explained_under_every_default_of_the_site(
    number: int | None, up_to: Priority, binding: Limit, priority: Priority
) -> None:
    """A waiting task has no level yet, and a default may name the highest one."""
    held = running(a_task("held", gpus=4, priority=Priority.NORMAL), {"n0": (0, 1, 2, 3)})
    limits = (site_default(up_to=up_to, number=number), binding)
    # The task counts at normal, or not at all: other levels take nothing.
    others = (level for level in LEVELS if level is not Priority.NORMAL)
    closed = [a_limit(0, user="ann", priority=level, grant=True) for level in others]
    waits = a_task("q", gpus=4, priority=priority, submitted=1)
    reply = about("q", held, waits, nodes=2, limits=(*limits, *closed))
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_QUOTA
    assert (reply.position, reply.queue_length) == (1, 1)
    assert reply.order is not None
    assert reply.forecast is not None
    if reply.order.level is Priority.NORMAL:
        # Under a cap the site's default still decides.
        never = up_to is LEVELS[-1] and not binding.grant and priority is Priority.NORMAL
        assert [each.task_id for each in reply.holders] == ([] if never else ["held"])
        unknown = "its quota never allows it" if never else "nobody knows how long"
        assert reply.forecast.unknown.startswith(unknown)


def test_a_quota_that_can_never_be_met_is_not_waited_for() -> None:
    reply = about("q", a_task("q", gpus=4), limits=(a_limit(2, user="ann"),))
    assert reply.remedies == (
        "raise the quota from 2 to 4 GPUs (`shiftwork quota set --user ann --gpus 4`)",
    )


def test_the_reason_for_waiting_for_a_retry_has_its_time() -> None:
    task = replace(a_task("r", spec=a_spec(retries=2)), not_before_at=at(40), retries_used=1)
    assert about("r", task).remedies == (
        "the retry time comes in 28 s",
        "pause and resume it to try at once (`shiftwork pause r`, then `shiftwork resume r`)",
    )


def test_the_remedy_for_protected_lower_runs_has_the_end_of_their_protection() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0)
    settings = PolicySettings(policy="fifo", protected_seconds=60)
    reply = about("hi", low, a_task("hi", priority=Priority.HIGH), settings=settings)
    assert "1 lower run may be preempted from 2026-01-01 00:01:00Z" in reply.remedies


def test_the_remedy_for_a_cluster_that_is_too_small_names_the_missing_nodes() -> None:
    away = about("w", a_task("w"), nodes=[a_node("n0", ready=False)])
    assert away.remedies == ("nodes that are cordoned or not ready come back: n0",)
    both = [a_node("n0"), a_node("n1", schedulable=False)]
    cordoned = about("w", running(a_task("busy"), {"n1": ALL}), a_task("w", nodes=2), nodes=both)
    assert cordoned.remedies[0] == (
        "nodes that are cordoned or not ready come back: n1 (`shiftwork node uncordon n1`);"
        " and 1 run ends: busy"
    )
    sick = about("w", a_task("w"), nodes=[a_node("n0", unusable=(0,))])
    assert sick.remedies == ("GPUs that must not be used become usable: on n0",)
    gone = about("w", a_task("w"), nodes=[a_node("n0", removed=True)])
    assert gone.remedies == ("a node is added to group default",)


def test_a_task_waits_before_the_inventory_is_known() -> None:
    reply = about("w", a_task("w", accepted=False), nodes=[], listed=False)
    assert reply.remedies == ("the launcher lists its nodes",)


def test_a_running_task_waits_for_nothing() -> None:
    reply = about("busy", BUSY)
    assert (reply.state, reply.position, reply.queue_length) == (TaskState.RUNNING, 0, 0)
    assert (reply.victims, reply.remedies) == ((), ())


def test_a_paused_task_and_one_that_loses_its_work() -> None:
    paused = replace(a_task("p", goal=Goal.PAUSE), state=TaskState.PAUSED)
    assert about("p", paused).remedies == ("resume it (`shiftwork resume p`)",)
    loses = replace(BUSY, attempts_without_progress=3)
    assert about("busy", loses).remedies == (
        "save checkpoints more often: 3 attempts in a row ended without a newer one",
    )


def shared(
    *tasks: Task, policy: GroupPolicy, nodes: int = 2, limits: tuple[Limit, ...] = ()
) -> Index:
    """An index that has decided once at ten seconds, as the loop does."""
    index = Index(PolicySettings())
    index.apply(put=[policy, *some_nodes(nodes), *limits, Inventory("process", (), START)])
    index.apply(put=tasks)
    for _ in range(3):
        plan = decide(Snapshot.view(index), at(10))
        index.settle(plan)
        index.apply(put=plan.ledgers)
        for decision in plan.decisions:
            after = applied(index.tasks[decision.task_id], decision, at(10)).task
            index.apply(put=[after])
    return index


def explained(
    index: Index, task_id: str, now: float = 12.0, bounds: Bounds = BOUNDS
) -> ExplainReply:
    return explain(copy_of(index), index.tasks[task_id], at(now), Copies(), bounds).reply


TIMESHARE = GroupPolicy("default")


def test_the_position_is_that_in_the_sorted_list() -> None:
    """Counting by bisection agrees with sorting, for every distribution of tasks to queues."""
    levels = (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.AUTO)
    tasks = [
        a_task(
            f"t{number}",
            submitted=number * 7 % 10,
            owner=f"u{number % 5}",
            nodes=2 + number % 3,
            priority=levels[number % 4],
        )
        for number in range(40)
    ]
    holds = [running(a_task("x", priority=Priority.EXTREME_HIGH), {"n0": ALL})]
    for policy in ("timeshare", "fifo", "backfill", "rotation"):
        index = shared(
            *holds,
            *tasks,
            policy=GroupPolicy("default", policy=policy),
            nodes=4,
            limits=(a_limit(6, user="u1"), a_limit(8, priority=Priority.HIGH)),
        )
        waiting = [t for t in index.tasks.values() if t.state is TaskState.QUEUED]
        sharing = Allocation(Round(Snapshot.view(index), at(12)), index.pools["default"], [], [])
        order = sorted(sharing.entry(t)[:3] for t in waiting if not t.promised)
        promised = len(index.pools["default"].promised)
        for place, (_, _, task_id) in enumerate(order):
            reply = explained(index, task_id, bounds=Bounds(trials_max=0, rounds_max=0))
            assert reply.order is not None
            before = reply.order.above + reply.order.before
            assert place <= before <= place + promised, (policy, task_id)
            assert reply.position == before + 1
            assert reply.queue_length == len(waiting)


def test_the_order_key_is_explained_in_its_parts() -> None:
    index = shared(
        BUSY,
        a_task("first", submitted=0, nodes=2, owner="bob"),
        a_task("second", submitted=5, nodes=2, owner="bob"),
        policy=TIMESHARE,
    )
    order = explained(index, "second").order
    assert order is not None
    assert (order.level, order.policy, order.before) == (Priority.NORMAL, "timeshare", 1)
    assert order.submitted_at == at(5)
    assert order.tag_seconds > 0
    parts = at(5).timestamp() + order.tag_seconds + order.delay_seconds
    assert order.key == pytest.approx(parts)


def test_the_chosen_victims_and_the_promised_nodes_are_listed() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=-90)
    cheap = running(a_task("cheap", priority=Priority.LOW), {"n1": ALL}, since=-30)
    reply = explained(shared(low, cheap, a_task("hi"), policy=TIMESHARE), "hi")
    (chosen,) = reply.chosen
    assert (chosen.task_id, chosen.level, chosen.nodes) == ("cheap", Priority.LOW, 1.0)
    # 40 s since it began, and a restart of 60 s.
    assert chosen.cost_node_seconds == 100.0
    assert chosen.deadline_at == at(70)
    assert chosen.why.startswith("level low is below normal")
    (kept,) = reply.promised
    assert (kept.node_id, kept.gpus, kept.held_by) == ("n1", ALL, ("cheap",))
    assert reply.forecast is not None
    assert reply.forecast.starts_at == at(70)


def test_a_preempted_run_names_its_beneficiary() -> None:
    low = running(a_task("low", priority=Priority.LOW), {"n0": ALL})
    index = shared(low, a_task("hi"), policy=TIMESHARE, nodes=1)
    assert explained(index, "low").beneficiary == "hi"


def test_the_remedy_for_a_virtual_cluster_names_what_it_holds() -> None:
    clusters = (VirtualCluster("red", 1.0, teams=("vision",), nodes_max=1.0),)
    held = running(a_task("held"), {"n0": ALL})
    policy = GroupPolicy("default", policy="backfill", virtual_clusters=clusters)
    reply = explained(shared(held, a_task("more"), policy=policy), "more")
    assert reply.reason is not None
    assert reply.reason.code is ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER
    assert reply.remedies == (
        "1 node of the 1 held by virtual cluster red come free",
        "raise the most that virtual cluster red may hold from 1 to 2 nodes",
        # Its owner's own run goes for it then.
        (
            "raise its priority to above_normal (`shiftwork priority more above_normal`):"
            " 1 run would be asked to go (held)"
        ),
    )
    order = reply.order
    assert order is not None
    assert (order.virtual_cluster, order.guaranteed_nodes, order.held_nodes) == ("red", 1, 1)
    assert not order.covered


def test_the_remedy_for_a_missing_budget_names_the_time_at_which_it_is_enough() -> None:
    policy = GroupPolicy("default", timeshare=Timeshare(budget_share=0.1))
    index = shared(
        replace(running(a_task("runs", mode=PreemptMode.KILL), {"n0": ALL}, since=-90_000)),
        policy=policy,
        nodes=1,
    )
    index.apply(put=[replace(index.ledgers["default"], tokens=40.0, tokens_at=at(10))])
    index.apply(put=[a_task("new", submitted=11, owner="bob")])
    reply = explained(index, "new", 11)
    (turn,) = [each for each in reply.remedies if each.startswith("its turn")]
    # A full account of 4 restarts of 60 s pays for everything; 200 are missing, a tenth a second.
    assert turn.startswith(f"its turn comes at {at(11 + 1999):%Y-%m-%d %H:%M:%SZ}: 1 run of level")
    assert turn.endswith(
        "; the budget for such losses holds 40 s of one node's time now, and enough by then"
    )
