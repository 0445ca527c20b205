"""Guarantees hold although small runs of others lie on every node."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from libs.contracts.messages import ExitKind, Priority, ReasonCode, TaskState
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.check.violations import Fault
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Plan, Preempt
from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_snapshot, a_spec, a_task, running
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

GPUS = 4


def two(red: float = 1.0, blue: float = 1.0) -> GroupPolicy:
    clusters = (
        VirtualCluster("red", red, teams=("red",)),
        VirtualCluster("blue", blue, teams=("blue",)),
    )
    return GroupPolicy("default", policy="timeshare", virtual_clusters=clusters)


def blue(task_id: str, node_id: str, *gpus: int, **spec: int) -> Task:
    task = a_task(task_id, team="blue", owner="bea", spec=a_spec(gpus=len(gpus), **spec))
    return running(task, {node_id: gpus})


RED = a_task("red", team="red", owner="rob")


def moved(snapshot: Snapshot) -> tuple[dict[str, str], Plan]:
    """Which runs are moved, and to which nodes."""
    plan = decide(snapshot, at(0))
    assert check(snapshot, plan, deep=True) == check(snapshot, plan) == []
    found = [each for each in plan.decisions if isinstance(each, Preempt | Kill)]
    return {each.task_id: each.moves_to[0].node_id for each in found if each.moves_to}, plan


def test_a_covered_whole_node_task_moves_the_fewest_covered_small_runs() -> None:
    runs = [blue("b1", "n0", 0), blue("b2", "n1", 0), blue("b3", "n1", 1)]
    snapshot = a_snapshot(
        [*runs, RED], [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)], policies=[two()]
    )
    found, plan = moved(snapshot)
    assert found == {"b1": "n1"}
    (kept,) = [each for each in plan.decisions if isinstance(each, Hold) and each.reserved]
    assert (kept.task_id, kept.reserved and kept.reserved[0].node_id) == ("red", "n0")


def test_the_place_of_a_run_that_moves_is_kept_from_others_in_the_round() -> None:
    runs = [blue("b1", "n0", 0), blue("b2", "n1", 0), blue("b3", "n1", 1)]
    # It would fit beside those on the second node, but not beside the one that moves there, too.
    late = a_task("late", team="green", spec=a_spec(gpus=2), submitted=1)
    snapshot = a_snapshot(
        [*runs, RED, late], [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)], policies=[two()]
    )
    found, plan = moved(snapshot)
    assert found == {"b1": "n1"}
    assert "late" not in {each.task_id for each in plan.decisions if isinstance(each, Assign)}


def test_the_owner_of_a_guarantee_is_served_by_the_deadline_and_the_moved_run_goes_on() -> None:
    harness = DomainHarness([a_node(f"n{i}", gpus=2) for i in (0, 1)], policies=[two()])
    harness.put(blue("b1", "n0", 0), blue("b2", "n1", 0))
    harness.submit(RED)
    harness.rounds()
    (gone,) = [each for each in harness.tasks.values() if each.state is TaskState.PREEMPTING]
    assert gone.reason.code is ReasonCode.MOVED_FOR
    harness.exit(gone.id, ExitKind.PREEMPTED)
    harness.rounds()
    assert harness.tasks["red"].state is TaskState.STARTING
    assert harness.tasks[gone.id].state is TaskState.STARTING
    harness.until(86_400.0)
    assert harness.tasks[gone.id].attempt == 2


def test_borrowers_are_preempted_and_covered_runs_move_together() -> None:
    """Without the borrowers neither node is whole, and without the move neither is."""
    borrows = [running(a_task(f"g{i}", team="green", gpus=3), {f"n{i}": (1, 2, 3)}) for i in (0, 1)]
    runs = [blue("b0", "n0", 0), blue("b1", "n1", 0)]
    snapshot = a_snapshot(
        [*borrows, *runs, RED], [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)], policies=[two()]
    )
    found, plan = moved(snapshot)
    assert len(found) == 1
    gone = {each.task_id for each in plan.decisions if isinstance(each, Preempt | Kill)}
    assert {"g0", "g1"} < gone


def test_no_run_moves_where_it_would_not_fit() -> None:
    runs = [blue("b0", "n0", 0, 1, 2), blue("b1", "n1", 0, 1, 2)]
    policy = two(1.0, 1.5)
    nodes = [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)]
    assert moved(a_snapshot([*runs, RED], nodes, policies=[policy]))[0] == {}
    # With one node more there is a place.
    nodes.append(a_node("n2", gpus=GPUS, schedulable=False))
    assert moved(a_snapshot([*runs, RED], nodes, policies=[policy]))[0] == {}


def test_memory_counts_for_the_new_place_of_a_moved_run() -> None:
    runs = [blue("b0", "n0", 0, memory_bytes=6), blue("b1", "n1", 0, memory_bytes=6)]
    nodes = [a_node(f"n{i}", gpus=GPUS, memory_bytes=10) for i in (0, 1)]
    assert moved(a_snapshot([*runs, RED], nodes, policies=[two()]))[0] == {}


def test_a_task_that_no_guarantee_covers_moves_no_run() -> None:
    runs = [blue("b1", "n0", 0), blue("b2", "n1", 0)]
    other = a_task("other", team="green", priority=Priority.EXTREME_HIGH)
    snapshot = a_snapshot(
        [*runs, other], [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)], policies=[two()]
    )
    assert moved(snapshot)[0] == {}


def test_a_protected_run_is_not_moved() -> None:
    policy = replace(two(), protected_seconds=7200.0)
    runs = [blue("b1", "n0", 0), blue("b2", "n1", 0)]
    nodes = [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)]
    assert moved(a_snapshot([*runs, RED], nodes, policies=[policy]))[0] == {}


def test_the_check_refuses_a_move_without_a_place() -> None:
    """None, one that another run keeps, and one for which nobody is covered."""
    runs = [blue("b1", "n0", 0), blue("b2", "n1", 0), blue("b3", "n1", 1)]
    nodes = [a_node(f"n{i}", gpus=GPUS) for i in (0, 1)]
    snapshot = a_snapshot([*runs, RED], nodes, policies=[two()])
    _, plan = moved(snapshot)

    def faults(where: Snapshot = snapshot, **changes: object) -> set[Fault]:
        decisions = tuple(
            replace(each, **changes) if isinstance(each, Preempt) else each
            for each in plan.decisions
        )
        return {each.fault for each in check(where, replace(plan, decisions=decisions))}

    (move,) = [each for each in plan.decisions if isinstance(each, Preempt)]
    held = (move.moves_to[0].model_copy(update={"gpus": (1,)}),)
    assert faults() == set()
    assert faults(moves_to=()) == {Fault.VICTIM_NOT_LOWER}
    assert faults(moves_to=held) == {Fault.PROMISED}
    poor = a_snapshot([*runs, RED], nodes, policies=[two(0.5, 1.0)])
    assert Fault.VICTIM_NOT_LOWER in faults(poor)


def packs(sizes: list[int], bins: list[int]) -> bool:
    """True if runs of these sizes fit into what is free, tried in every way."""
    for places in product(range(len(bins)), repeat=len(sizes)):
        used = [0] * len(bins)
        for size, place in zip(sizes, places, strict=True):
            used[place] += size
        if all(one <= free for one, free in zip(used, bins, strict=True)):
            return True
    return False


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(st.integers(1, 2), max_size=2), min_size=2, max_size=3))
def test_a_guaranteed_node_is_given_whenever_the_other_runs_fit_on_the_rest(
    layout: list[list[int]],
) -> None:
    # All of them are within their own guarantee; what is not is taken back anyway.
    assume(sum(map(sum, layout)) <= GPUS * (len(layout) - 1))
    runs: list[Task] = []
    for index, sizes in enumerate(layout):
        first = 0
        for size in sizes:
            gpus = tuple(range(first, first + size))
            runs.append(blue(f"b{len(runs)}", f"n{index}", *gpus))
            first += size
    nodes = [a_node(f"n{index}", gpus=GPUS) for index in range(len(layout))]
    policy = two(1.0, len(layout) - 1.0)
    plan = decide(a_snapshot([*runs, RED], nodes, policies=[policy]), at(0))
    possible = any(
        packs(sizes, [GPUS - sum(rest) for other, rest in enumerate(layout) if other != index])
        for index, sizes in enumerate(layout)
    )
    served = any(each.task_id == "red" and not isinstance(each, Hold) for each in plan.decisions)
    kept = any(
        isinstance(each, Hold) and each.task_id == "red" and each.reserved
        for each in plan.decisions
    )
    assert possible == (served or kept)


def four_on_three_nodes(first_level: Priority) -> DomainHarness:
    """Four guarantees of three GPUs each on three nodes of four: the last finds no place, ever."""
    guarantees = tuple(VirtualCluster(name, 0.75, users=(name,)) for name in "abcd")
    harness = DomainHarness(
        [a_node(f"n{place}", gpus=4) for place in range(3)],
        policies=[GroupPolicy("default", virtual_clusters=guarantees)],
    )
    for name in "abcd":
        level = first_level if name == "b" else Priority.NORMAL
        harness.submit(
            a_task(name, owner=name, team="", gpus=3, priority=level, submitted=harness.seconds)
        )
        harness.rounds()
        if harness.tasks[name].state is TaskState.STARTING:
            harness.start(name)
        harness.until(harness.seconds + 10.0)
    return harness


def test_a_run_that_cannot_be_moved_is_preempted_at_once_if_its_level_is_lower() -> None:
    harness = four_on_three_nodes(Priority.LOW)
    assert harness.tasks["b"].state is TaskState.PREEMPTING
    assert harness.tasks["b"].preempted_for == "d"


def test_a_run_that_cannot_be_moved_shares_time_slices_if_its_level_is_the_same() -> None:
    harness = four_on_three_nodes(Priority.NORMAL)
    assert harness.tasks["d"].state is TaskState.QUEUED
    assert all(harness.tasks[name].state is TaskState.RUNNING for name in "abc")
    harness.until(2 * 3600.0)
    going = [task for task in harness.tasks.values() if task.state is TaskState.KILLING]
    going += [task for task in harness.tasks.values() if task.state is TaskState.PREEMPTING]
    assert [task.preempted_for for task in going] == ["d"]
