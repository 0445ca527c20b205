"""The simulation finds what it is there to find: each planted defect, within so many worlds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest

from tests.sim import planted
from tests.sim.plan import Plan
from tests.sim.world import World, run_world


def as_drawn(plan: Plan) -> Plan:
    return plan


# (defect, worlds of this kind, their plans, a judge that finds it, how many worlds at most)
DEFECTS = {
    "double assignment": (
        planted.double_assignment,
        World,
        as_drawn,
        "slots_never_double_booked",
        10,
    ),
    "reply before storing": (
        planted.reply_before_storing,
        World,
        as_drawn,
        "acknowledged_checkpoints_survive",
        40,
    ),
    "unfenced attempt": (
        planted.unfenced_attempts,
        World,
        planted.repeated_facts,
        "attempts_count_up",
        10,
    ),
    "cursor outbox": (nullcontext, planted.CursorWorld, as_drawn, "no_task_is_lost", 10),
    "failed commits forgotten": (
        planted.failed_commits_forgotten,
        World,
        planted.failing_commits,
        "no_task_is_lost",
        30,
    ),
    "no republishing": (
        planted.forgotten_republishing,
        World,
        as_drawn,
        "no_task_is_lost",
        30,
    ),
    "inbox apart": (planted.inbox_apart, World, as_drawn, "the_event_log_is_whole", 30),
    "mark before publishing": (
        planted.mark_before_publishing,
        World,
        as_drawn,
        "no_task_is_lost",
        30,
    ),
    "ack before commit": (planted.ack_before_commit, World, as_drawn, "no_task_is_lost", 20),
    "timers for rows": (
        planted.deadlines_in_memory,
        World,
        planted.hanging_programs,
        "no_task_is_lost",
        30,
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name: str) -> None:
    defect: Callable[[], AbstractContextManager[None]]
    defect, world, bend, judge, worlds = DEFECTS[name]
    with defect():
        for seed in range(worlds):
            complaints = run_world(seed, world, bend).complaints
            if any(judge in text for text in complaints):
                print(f"{name}: found in world {seed} by {judge}")
                return
    pytest.fail(f"{judge} found nothing in {worlds} worlds")


def test_interleaved_commits_alone_do_no_harm() -> None:
    for seed in range(5):
        assert not run_world(seed, planted.InterleavedWorld).complaints


@pytest.mark.parametrize(
    "bend", [planted.repeated_facts, planted.hanging_programs, planted.failing_commits]
)
def test_bent_worlds_without_a_defect_are_right(bend: Callable[[Plan], Plan]) -> None:
    for seed in range(5):
        assert not run_world(seed, World, bend).complaints
