"""Faults of what is given: nodes that do not suit, gangs that cross, promises that are no gang."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from libs.contracts.messages import Placement, Priority, ReasonCode, Role
from libs.contracts.reasons import render
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Hold, Plan, Preempt, Reject
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_snapshot, a_spec, a_task, running
from tests.kit.clock import at
from tests.services.scheduler.domain.check.test_check import (
    ALL,
    WHY,
    changed,
    faults,
    good,
    the_snapshot,
)

LABELS = {"gpu": "a100"}


def picky(promised: bool, **asked: Any) -> tuple[Snapshot, Plan]:
    """A task that requires something of its node, and a plan that gives or promises it one."""
    nodes = [a_node("n0", labels=LABELS, taints=("old=yes",))]
    others = [running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0)]
    task = a_task("picky", spec=a_spec(priority=Priority.HIGH))
    plan = good(a_snapshot([task, *(others if promised else ())], [a_node("n0")]))
    task = replace(task, spec=a_spec(priority=Priority.HIGH, **asked))
    return a_snapshot([task, *(others if promised else ())], nodes), plan


@pytest.mark.parametrize("promised", [False, True])
def test_nodes_that_do_not_match_selector_or_taints_are_refused(promised: bool) -> None:
    tolerant = {"selector": LABELS, "tolerations": ("old",)}
    assert faults(*picky(promised, **tolerant)) == set()
    assert faults(*picky(promised, tolerations=("old=yes",))) == set()
    for asked in (
        {"selector": LABELS},
        {"selector": {"gpu": "h100"}, "tolerations": ("old",)},
        {"selector": {"disk": "fast"}, "tolerations": ("old",)},
        {"tolerations": ("old=no",)},
    ):
        assert faults(*picky(promised, **asked)) == {Fault.NOT_SUITING}


def test_a_promise_of_less_than_the_gang_or_of_a_node_that_takes_nothing() -> None:
    plan = good(the_snapshot())
    (held,) = [each for each in plan.decisions if isinstance(each, Hold) and each.reserved]
    placements = held.reserved or ()
    for changes, fault in (
        ({"gpus": (0, 1)}, Fault.GANG),
        ({"node_id": "cordoned"}, Fault.NODE),
        ({"node_id": "other"}, Fault.NODE),
    ):
        other = replace(held, reserved=(placements[0].model_copy(update=changes),))
        others = [each for each in plan.decisions if each is not held]
        assert fault in faults(the_snapshot(), replace(plan, decisions=(*others, other)))


def zones(*tasks: Task, most: int, promised: Task | None = None) -> Snapshot:
    """Two zones of two nodes each, and how many gangs may lie in both."""
    nodes = [a_node(f"{zone}{place}", labels={"zone": zone}) for zone in "ab" for place in (0, 1)]
    policy = GroupPolicy("default", policy="backfill", cross_zone_gangs_max=most)
    more = [] if promised is None else [promised]
    return a_snapshot([*tasks, *more], nodes, policies=[policy])


def test_gangs_that_cross_zones_are_counted() -> None:
    there = running(a_task("there", nodes=2), {"a0": ALL, "b0": ALL}, since=0)
    comes = a_task("comes", nodes=2)
    # One lies across already: another may, if two may.
    plan = good(zones(there, comes, most=2))
    assert [each.task_id for each in plan.decisions if isinstance(each, Assign)] == ["comes"]
    assert faults(zones(there, comes, most=1), plan) == {Fault.CROSSING}
    assert not any(isinstance(d, Assign) for d in good(zones(there, comes, most=1)).decisions)
    # None may: not even the first, and not one that is only promised its nodes.
    alone = zones(comes, running(a_task("a", priority=Priority.LOW), {"a0": ALL}), most=0)
    assert [d.task_id for d in good(alone).decisions if isinstance(d, Assign)] == ["comes"]
    crossing = (
        Placement(rank=0, role="worker", node_id="a1", gpus=ALL),
        Placement(rank=1, role="worker", role_index=1, node_id="b0", gpus=ALL),
    )
    across = changed(good(alone), "comes", lambda d: replace(d, placements=crossing))
    assert faults(alone, across) == {Fault.CROSSING}
    hold = Hold(comes.id, WHY, accepted=True, reserved=crossing, level=Priority.NORMAL)
    kept = replace(good(alone), decisions=(hold,))
    assert faults(alone, kept) == {Fault.CROSSING}


def test_a_promise_across_zones_is_kept_when_fewer_may_cross_from_now_on() -> None:
    """The limit counted it when it was made; the next promise is not made."""
    crossing = (
        Placement(rank=0, role="worker", node_id="a1", gpus=ALL),
        Placement(rank=1, role="worker", role_index=1, node_id="b0", gpus=ALL),
    )
    waits = replace(a_task("waits", nodes=2), promised=crossing, level=Priority.NORMAL)
    plan = good(zones(a_task("comes", nodes=2), most=0, promised=waits))
    assert [each.task_id for each in plan.decisions if isinstance(each, Assign)] == ["waits"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"selector": {"gpu": "h100"}, "tolerations": ("old",)},
            "no nodes of group default with the labels gpu=h100 could ever hold 1 whole node",
        ),
        (
            {"selector": {"gpu": "h100"}},
            (
                "no nodes of group default with the labels gpu=h100 and without taints that it does"
                " not tolerate (old=yes) could ever hold 1 whole node"
            ),
        ),
        (
            {},
            (
                "no nodes of group default without taints that it does not tolerate (old=yes) could"
                " ever hold 1 whole node"
            ),
        ),
        (
            {"nodes": 2, "selector": LABELS, "tolerations": ("old",)},
            "no nodes of group default could ever hold 2 whole nodes",
        ),
    ],
)
def test_a_task_that_never_fits_names_the_cause(asked: dict[str, Any], sentence: str) -> None:
    """The selector or the taints if without them it would fit, else nothing but the size."""
    task = a_task("picky", spec=a_spec(**asked), accepted=False)
    nodes = [a_node("n0", labels=LABELS, taints=("old=yes",))]
    plan = decide(a_snapshot([task], nodes), at(10))
    (reject,) = [each for each in plan.decisions if isinstance(each, Reject)]
    assert reject.reason.code is ReasonCode.NEVER_FITS
    assert render(reject.reason) == sentence


def test_a_task_that_no_longer_fits_names_the_cause_too() -> None:
    """The task fitted once; the nodes with its label are absent."""
    task = a_task("picky", spec=a_spec(selector=LABELS))
    nodes = [a_node("n0", labels=LABELS, ready=False), a_node("n1")]
    plan = decide(a_snapshot([task], nodes), at(10))
    assert render(plan.explanations["picky"]) == (
        "waits for nodes to be added or to come back: those of group default with the labels"
        " gpu=a100 cannot hold 1 whole node now"
    )


def test_a_promise_is_void_when_its_node_suits_no_longer() -> None:
    """A taint that comes between the promise and the start keeps new runs away."""
    low = replace(running(a_task("low", priority=Priority.LOW), {"n0": ALL}, since=0))
    waits = a_task("waits", priority=Priority.HIGH)
    plan = good(a_snapshot([low, waits], [a_node("n0")]))
    (held,) = [each for each in plan.decisions if isinstance(each, Hold)]
    kept = replace(waits, promised=held.reserved or (), level=Priority.HIGH)
    tainted = a_snapshot([kept], [a_node("n0", taints=("old",)), a_node("n1")])
    (start,) = [each for each in good(tainted).decisions if isinstance(each, Assign)]
    assert [each.node_id for each in start.placements] == ["n1"]


def test_a_start_with_more_memory_than_is_left() -> None:
    """For a start and for a promise; CPUs behave the same."""
    for asked, offered in (
        ({"memory_bytes": 6}, {"memory_bytes": 10}),
        ({"cpus": 0.6}, {"cpus": 1}),
    ):
        there = running(a_task("there", spec=a_spec(gpus=1, **asked)), {"n0": (0,)})
        comes = a_task("comes", spec=a_spec(gpus=1, **asked))
        plan = good(a_snapshot([comes], [a_node("n0")]))
        beside = changed(
            plan,
            "comes",
            lambda d: replace(d, placements=(d.placements[0].model_copy(update={"gpus": (1,)}),)),
        )
        snapshot = a_snapshot([there, comes], [a_node("n0", **offered)])
        assert faults(snapshot, beside) == {Fault.TOO_FULL}
        place = (Placement(rank=0, role="worker", node_id="n0", gpus=(1,)),)
        hold = Hold(comes.id, WHY, accepted=True, reserved=place, level=Priority.NORMAL)
        assert faults(snapshot, replace(plan, decisions=(hold,))) == {Fault.TOO_FULL}


def plain(cpus: float = 2.0, **fields: Any) -> list[Any]:
    """One node without GPUs."""
    return [a_node("plain", gpus=0, cpus=cpus, **fields)]


def ranks(*roles: str) -> tuple[Placement, ...]:
    """A rank on the node without GPUs for each of these roles."""
    return tuple(
        Placement(rank=rank, role=role, role_index=roles[:rank].count(role), node_id="plain")
        for rank, role in enumerate(roles)
    )


def given(snapshot: Snapshot, task: Task, placements: tuple[Placement, ...]) -> list[Plan]:
    """Two plans: one starts the task on these nodes, one promises them to it."""
    empty = replace(decide(snapshot, at(10)), decisions=(), scans=())
    start = Assign(task.id, 1, task.level, placements, at(99), None, WHY)
    hold = Hold(task.id, WHY, accepted=True, reserved=placements, level=Priority.NORMAL)
    return [replace(empty, decisions=(each,)) for each in (start, hold)]


def a_role(name: str, replicas: int = 1, **fields: Any) -> Role:
    return Role(name=name, replicas=replicas, command=("true",), **fields)


@pytest.mark.parametrize(
    ("roles", "places"),
    [
        ((a_role("a"), a_role("b", spread=True)), ("a", "b")),
        ((a_role("a", 2), a_role("b", auxiliary=True)), ("a", "a", "b")),
        ((a_role("a"), a_role("b", gpus=0)), ("a", "b")),
    ],
)
def test_a_rank_with_a_whole_node_shares_it_with_no_rank_of_its_gang(
    roles: tuple[Role, ...], places: tuple[str, ...]
) -> None:
    task = a_task("gang", spec=a_spec(roles=roles))
    snapshot = a_snapshot([task], plain(8.0))
    start, promise = given(snapshot, task, ranks(*places))
    assert faults(snapshot, start) >= {Fault.GANG, Fault.NOT_FREE}
    assert Fault.GANG in faults(snapshot, promise)


def test_roles_of_one_size_that_is_a_whole_node_have_a_node_each() -> None:
    """Neither shares: the sizes of two such roles may differ in their memory alone."""
    task = a_task("gang", spec=a_spec(roles=(a_role("a"), a_role("b", memory_bytes=5))))
    snapshot = a_snapshot([task], plain())
    for plan in given(snapshot, task, ranks("a", "b")):
        assert Fault.GANG in faults(snapshot, plan)


def test_more_cpu_only_ranks_are_promised_than_a_node_has_places() -> None:
    comes = a_task("comes", gpus=0)
    low = a_task("low", gpus=0, priority=Priority.LOW)
    stays = running(low, {"plain": ()}, since=0)
    kept = replace(low, promised=ranks("worker"), level=Priority.LOW)
    for other in (stays, kept):
        for cpus, found in ((2.0, set[Fault]()), (1.0, {Fault.PROMISED})):
            snapshot = a_snapshot([comes, other], plain(cpus))
            _, promise = given(snapshot, comes, ranks("worker"))
            assert faults(snapshot, promise) == found
    # A start takes no place that is promised to another task.
    start, _ = given(snapshot, comes, ranks("worker"))
    assert faults(snapshot, start) == {Fault.PROMISED}
    # One gang alone may be too many.
    pair = a_task("pair", spec=a_spec(roles=(a_role("a", 2, gpus=0),)))
    snapshot = a_snapshot([pair], plain(1.0))
    _, promise = given(snapshot, pair, ranks("a", "a"))
    assert faults(snapshot, promise) == {Fault.PROMISED}


def test_a_place_that_a_run_leaves_may_be_promised() -> None:
    low = running(a_task("low", gpus=0, priority=Priority.LOW), {"plain": ()}, since=0)
    waits = a_task("waits", gpus=0, priority=Priority.HIGH)
    snapshot = a_snapshot([low, waits], plain(1.0))
    plan = good(snapshot)
    assert {type(each) for each in plan.decisions} >= {Preempt, Hold}


def test_a_node_without_gpus_is_promised_whole_only_if_nobody_stays_there() -> None:
    whole = a_task("whole")
    for there in (a_task("there", gpus=0), a_task("there")):
        stays = running(there, {"plain": ()}, since=0)
        kept = replace(there, promised=ranks("worker"), level=Priority.NORMAL)
        for other in (stays, kept):
            snapshot = a_snapshot([whole, other], plain())
            _, promise = given(snapshot, whole, ranks("worker"))
            assert faults(snapshot, promise) == {Fault.PROMISED}
    # And a CPU-only rank is promised nothing beside a run that has the node whole.
    small = a_task("small", gpus=0)
    snapshot = a_snapshot([small, running(whole, {"plain": ()}, since=0)], plain())
    _, promise = given(snapshot, small, ranks("worker"))
    assert faults(snapshot, promise) == {Fault.PROMISED}
