"""The scheduler's own decisions against the hand-worked schedules, and what the lab must not break.

``schedules.py`` calls the slices of one hour ``rotation``; the scheduler's name for them is
``roundrobin``. Its own ``rotation`` is the turns between users, worked out by hand below.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.domain.model.group_policy import Timeshare
from services.scheduler.lab import drive as lab
from services.scheduler.lab.record import RunRecord
from services.scheduler.lab.run_options import Options
from services.scheduler.lab.workload import Cluster, Job, RoleSize, Workload, uniform
from tests.services.scheduler.lab.schedules import (
    HOUR,
    NODES,
    RESERVING,
    SCHEDULES,
    SENT_AWAY,
    Schedule,
)

Stretches = list[list[tuple[float, float]]]
DISCIPLINES = {"rotation": "roundrobin"}

# Where two jobs of las were submitted at one time, neither comes later, and the one that runs is
# not preempted: preempting one for the other would gain nothing and cost a restart. The
# computation of ``schedules.py`` lets the smaller number take the other's nodes.
#
# RESERVING: C (3 nodes) and D (1) both come at 1. 1: A, B run, one node is free: D 1-6. 2: B ends,
#   two are free; only D could make the third, and D did not come later. E comes: 2-4. 3: F comes:
#   3-6. E and F came later than C, but with them it is two nodes. 4: E ends: one free, F: two. 6:
#   A, D and F end: C 6-10.
# SENT_AWAY: D (3 nodes) and E (1) both come at 1. 1: A, B run, two are free: E 1-6. 3: A ends: two
#   free, and E is left alone. 6: E ends: three free: D 6-8.
TIES = {
    RESERVING.name: (((0, 6),), ((0, 2),), ((6, 10),), ((1, 6),), ((2, 4),), ((3, 6),)),
    SENT_AWAY.name: (((0, 3),), ((0, 8),), ((0, 1),), ((6, 8),), ((1, 6),)),
}

CASES = [
    pytest.param(schedule, policy, id=f"{schedule.name}: {policy}")
    for schedule in SCHEDULES
    for policy in schedule.runs
]


def driven(
    workload: Workload, policy: str, options: Options, monkeypatch: pytest.MonkeyPatch
) -> tuple[Stretches, RunRecord]:
    """The stretches of running of each job, in hours; two that touch are one."""
    found: Stretches = [[] for _ in workload.jobs]
    real = RunRecord.stretch

    def listening(
        self: RunRecord, number: int, start: float, end: float, *more: object, **named: object
    ) -> None:
        began, ended = round(start / HOUR, 6), round(end / HOUR, 6)
        if found[number] and found[number][-1][1] == began:
            began = found[number].pop()[0]
        found[number].append((began, ended))
        real(self, number, start, end, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(RunRecord, "stretch", listening)
    # Every plan is checked.
    monkeypatch.setattr(lab, "CHECK_EVERY", 1)
    record = lab.drive(workload, policy, options, lambda _: None)
    return found, record


def exactly(runs: tuple[tuple[tuple[float, float], ...], ...]) -> Stretches:
    return [[(round(start, 6), round(end, 6)) for start, end in each] for each in runs]


@pytest.mark.parametrize(("schedule", "policy"), CASES)
def test_decide_follows_the_schedule_worked_out_by_hand(
    schedule: Schedule, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = schedule.runs[policy]
    if policy == "las":
        expected = TIES.get(schedule.name, expected)
    options = Options(restart_cost_s=0.0, with_limits=True)
    name = DISCIPLINES.get(policy, policy)
    found, record = driven(schedule.workload(), name, options, monkeypatch)
    assert found == exactly(expected)
    assert record.finished == len(schedule.jobs)
    assert record.refused_plans == 0


def jobs_of(*rows: tuple[str, float, float, int]) -> Workload:
    """Jobs of (user, submission, duration in hours, nodes) on four nodes."""
    jobs = [
        Job(number, submit * HOUR, duration * HOUR, nodes, user=user)
        for number, (user, submit, duration, nodes) in enumerate(rows)
    ]
    return Workload("turns", jobs, Cluster((uniform("default", NODES, 8),)))


# Every job takes the whole machine, so that one runs at a time. The first slice of a job is a
# quarter of an hour, every later one four hours, use counts half after an hour.
#
# Job      A    B    C    D
# user     ann  bob  ann  cat
# submit   0    0.1  0.1  4
# hours    1    1.5  0.5  0.5
#
# 0: A. 0.1: B and C come; A is in its first slice. 0.25: A's slice is over. Bob had nothing, Ann a
#   quarter of an hour: B takes A's place; C, of Ann, would not have, however long she waits.
# 0.5: B's first slice is over. Bob's quarter has just been, Ann's is a quarter of an hour old and
#   counts a little less: Ann's turn, and of hers the first that came: A, which has had its first
#   slice, so this one is of four hours. It is done at 1.25, having had 0-0.25 and 0.5-1.25.
# 1.25: Ann had three quarters of an hour just now, Bob his quarter long ago: B, which has had its
#   first slice: four hours, done at 2.5 (0.25-0.5, 1.25-2.5). Nobody takes its place before that.
# 2.5: C, alone: 2.5-3.
# 4: D, alone: 4-4.5.
USERS_TAKE_TURNS = (
    (("ann", 0, 1, 4), ("bob", 0.1, 1.5, 4), ("ann", 0.1, 0.5, 4), ("cat", 4, 0.5, 4)),
    (((0, 0.25), (0.5, 1.25)), ((0.25, 0.5), (1.25, 2.5)), ((2.5, 3),), ((4, 4.5),)),
)

# One's own tasks are never interrupted for each other; another user's is, when the slice is over.
#
# Job      A    B    C
# user     ann  ann  bob
# submit   0    0.1  2
# hours    3    1    0.5
#
# 0: A. 0.25: its first slice is over; only B waits, of the same user: A runs on. 2: C comes; Bob
#   had nothing, Ann two hours, and A is open since 0.25: C takes its place at once: 2-2.25 is its
#   first slice. 2.25: Bob had a quarter of an hour just now, Ann's two hours count more: C goes on,
#   and is done at 2.5. Then A, which came before B: 2.5-3.5; then B 3.5-4.5.
OWN_ARE_SPARED = (
    (("ann", 0, 3, 4), ("ann", 0.1, 1, 4), ("bob", 2, 0.5, 4)),
    (((0, 2), (2.5, 3.5)), ((3.5, 4.5),), ((2, 2.5),)),
)


@pytest.mark.parametrize("case", [USERS_TAKE_TURNS, OWN_ARE_SPARED], ids=["turns", "own"])
def test_users_take_turns_as_worked_out_by_hand(
    case: tuple[
        tuple[tuple[str, float, float, int], ...], tuple[tuple[tuple[float, float], ...], ...]
    ],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, expected = case
    options = Options(restart_cost_s=0.0)
    found, record = driven(jobs_of(*rows), "rotation", options, monkeypatch)
    assert found == exactly(expected)
    assert record.refused_plans == 0


FLOOD = 3000
FLOODED_NODES = 16


def flooded(*, guard: bool) -> Workload:
    """One owner sends everything at once; ten others come now and then for two days."""
    rows = [("flo", 0.0, 1.0, 1)] * FLOOD
    rows += [(f"u{k % 10}", 0.2 + k * 0.3, 0.5 + (k % 5) * 0.4, 1 + k % 3) for k in range(160)]
    jobs = [
        Job(number, submit * HOUR, duration * HOUR, nodes, user=user)
        for number, (user, submit, duration, nodes) in enumerate(sorted(rows, key=lambda r: r[1]))
    ]
    group = uniform("default", FLOODED_NODES, 8)
    # No slices: the test compares which users get the nodes that become free.
    numbers = Timeshare(flood_guard=guard, budget_share=0.0)
    group = replace(group, policy=replace(group.policy, timeshare=numbers))
    return Workload("flood", jobs, Cluster((group,)))


@pytest.mark.slow
def test_a_guarded_flood_delays_others_by_a_small_part_of_what_it_would() -> None:
    waits: dict[bool, float] = {}
    for guard in (False, True):
        workload = flooded(guard=guard)
        record = lab.drive(workload, "ours", Options(restart_cost_s=60.0), lambda _: None)
        assert record.finished == len(workload.jobs)
        assert record.refused_plans == 0
        others = [
            seen.first_start_s - job.submit_s
            for job, seen in zip(workload.jobs, record.jobs, strict=True)
            if job.user != "flo"
        ]
        waits[guard] = sum(others) / len(others)
        # Nothing idles for it: all is done when all could be.
        work = sum(job.duration_s * job.nodes for job in workload.jobs) / FLOODED_NODES
        assert max(seen.finish_s for seen in record.jobs) < 1.1 * work
    assert waits[True] < HOUR
    assert waits[True] < 0.1 * waits[False]


def test_ranks_that_share_a_node_run_beside_each_other() -> None:
    """Four nodes of four GPUs: a gang of four ranks of one GPU takes one of them, so that two
    more gangs of whole nodes run at the same time."""
    packed = (
        RoleSize("worker", 4, 1, spread=False, auxiliary=False),
        RoleSize("board", 1, 0, spread=False, auxiliary=True),
    )
    jobs = [
        Job(0, 0.0, 100.0, 1, 4, roles=packed),
        Job(1, 0.0, 100.0, 3),
        Job(2, 0.0, 50.0, 4),
    ]
    workload = Workload("packed", jobs, Cluster((uniform("default", 4, 4),)))
    record = lab.drive(workload, "fifo", Options(), lambda _: None)
    assert [job.first_start_s for job in record.jobs] == [0.0, 0.0, 100.0]
    assert record.refused_plans == 0
