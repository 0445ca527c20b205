"""At which level a task counts: AUTO, and demotions."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.limits.quota_usage import Need, QuotaUsage, auto_level
from services.scheduler.domain.model.group_policy import Demotion, GroupPolicy
from services.scheduler.domain.model.rows import Limit
from tests.kit.builders import a_limit, a_node, a_task
from tests.services.scheduler.domain.domain_harness import DomainHarness

EXTREME, HIGH, NORMAL, LOW = (
    Priority.EXTREME_HIGH,
    Priority.HIGH,
    Priority.NORMAL,
    Priority.LOW,
)
NODE = Need(gpus=8, nodes=1)
CHAIN = (
    Demotion(HIGH, Priority.ABOVE_NORMAL, 60.0),
    Demotion(Priority.ABOVE_NORMAL, NORMAL, 600.0),
    Demotion(NORMAL, LOW, 3600.0),
)


def auto(*limits: Limit) -> Priority:
    quota_usage = QuotaUsage({limit.key: limit for limit in limits})
    return auto_level(a_task(priority=Priority.AUTO), NODE, quota_usage, NORMAL)


@pytest.mark.parametrize("group", ["", "default"])
@pytest.mark.parametrize("level", [EXTREME, HIGH])
def test_a_cap_for_each_user_does_not_lift_auto_tasks(level: Priority, group: str) -> None:
    assert auto(a_limit(1, priority=level, unit=Unit.NODES, group=group)) is NORMAL


def test_a_row_that_names_the_owner_or_the_team_opens_its_level() -> None:
    assert auto(a_limit(8, user="ann", priority=EXTREME)) is EXTREME
    assert auto(a_limit(8, team="vision", priority=HIGH)) is HIGH
    # It opens no other level, and nobody else's row opens any.
    assert auto(a_limit(8, user="bob", priority=HIGH)) is NORMAL
    assert auto(a_limit(8, user="ann")) is NORMAL


def test_a_cap_for_each_user_still_bounds_a_level_that_a_row_of_the_owner_opens() -> None:
    own = a_limit(8, user="ann", priority=HIGH)
    assert auto(own, a_limit(4, priority=HIGH)) is NORMAL


def test_a_cap_lowers_auto_tasks() -> None:
    assert auto(a_limit(0, priority=NORMAL)) is Priority.BELOW_NORMAL


@pytest.mark.parametrize("demotions", list(permutations(CHAIN)))
def test_the_order_in_which_demotions_are_listed_does_not_matter(
    demotions: tuple[Demotion, ...],
) -> None:
    policy = GroupPolicy("default", demotions=demotions)
    harness = DomainHarness([a_node()], policies=[policy])
    for seconds, level in (
        (0.0, HIGH),
        (59.0, HIGH),
        (60.0, Priority.ABOVE_NORMAL),
        (600.0, NORMAL),
        (3600.0, LOW),
    ):
        task = replace(a_task("t", priority=HIGH), run_seconds=seconds)
        assert harness.index.pool("default").level(task) is level


@pytest.mark.parametrize("demotions", list(permutations(CHAIN)))
def test_a_run_sinks_along_the_whole_chain(demotions: tuple[Demotion, ...]) -> None:
    harness = DomainHarness([a_node()], policies=[GroupPolicy("default", demotions=demotions)])
    harness.submit(a_task("t", priority=HIGH))
    harness.rounds()
    harness.start("t")
    harness.until(4000.0)
    assert harness.tasks["t"].level is LOW
