from __future__ import annotations

from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.limits.quota_usage import Need, QuotaUsage, auto_level
from services.scheduler.domain.model.rows import Limit, Task
from tests.kit.builders import a_limit, a_task, running


def a_quota_usage(*limits: Limit, held: list[Task] | None = None) -> QuotaUsage:
    return QuotaUsage({limit.key: limit for limit in limits}, held or [])


HIGH, NORMAL = Priority.HIGH, Priority.NORMAL
EIGHT = Need(gpus=8, nodes=1)
RUNS = [running(a_task("r", owner="ann", team="vision"), {"n0": tuple(range(8))})]


def test_no_row_is_no_limit() -> None:
    assert a_quota_usage().excess(a_task(), NORMAL, Need(10**6, 10**6)) is None


def test_all_rows_that_match_apply_and_the_smallest_is_named() -> None:
    quota_usage = a_quota_usage(
        a_limit(10, user="ann"), a_limit(9, team="vision"), a_limit(99), held=RUNS
    )
    excess = quota_usage.excess(a_task(), NORMAL, EIGHT)
    assert excess is not None
    assert (excess.limit.team, excess.limit.limit, excess.held) == ("vision", 9, 8)
    assert quota_usage.excess(a_task(), NORMAL, Need(1, 1)) is None


def test_rows_of_others_do_not_apply() -> None:
    rows = [
        a_limit(0, user="bob"),
        a_limit(0, team="speech"),
        a_limit(0, group="dev"),
        a_limit(0, priority=HIGH),
        a_limit(0, user="ann", removed=True),
    ]
    quota_usage = a_quota_usage(*rows)
    assert quota_usage.excess(a_task(), NORMAL, EIGHT) is None
    assert quota_usage.excess(a_task(), HIGH, EIGHT) is not None


def test_a_row_for_every_user_counts_each_by_themselves() -> None:
    quota_usage = a_quota_usage(a_limit(8), held=RUNS)
    assert quota_usage.excess(a_task(owner="bob"), NORMAL, EIGHT) is None
    assert quota_usage.excess(a_task(owner="ann"), NORMAL, EIGHT) is not None


def test_a_row_for_a_team_counts_its_members_together() -> None:
    quota_usage = a_quota_usage(a_limit(8, team="vision"), held=RUNS)
    assert quota_usage.excess(a_task(owner="bob"), NORMAL, EIGHT) is not None


def test_a_row_without_a_level_counts_all_levels_and_one_with_it_only_that() -> None:
    assert a_quota_usage(a_limit(8), held=RUNS).excess(a_task(), HIGH, EIGHT) is not None
    quota_usage = a_quota_usage(a_limit(8, priority=HIGH), held=RUNS)
    assert quota_usage.excess(a_task(), HIGH, EIGHT) is None


def test_nodes_are_counted_where_the_row_has_the_unit_nodes() -> None:
    quota_usage = a_quota_usage(a_limit(1, unit=Unit.NODES), held=RUNS)
    assert quota_usage.excess(a_task(gpus=0), NORMAL, Need(0, 1)) is not None
    assert a_quota_usage(a_limit(0)).excess(a_task(gpus=0), NORMAL, Need(0, 1)) is None


def test_assignments_of_the_current_round_count() -> None:
    quota_usage = a_quota_usage(a_limit(8))
    quota_usage.charge(a_task(), NORMAL, EIGHT)
    assert quota_usage.excess(a_task(), NORMAL, Need(1, 1)) is not None


def test_auto_is_the_highest_level_with_quota_left() -> None:
    rows = [a_limit(4, user="ann", priority=HIGH), a_limit(8, user="ann", priority=NORMAL)]
    quota_usage, task = a_quota_usage(*rows), a_task()
    assert auto_level(task, Need(4, 1), quota_usage, NORMAL) is HIGH
    assert auto_level(task, Need(8, 1), quota_usage, NORMAL) is NORMAL
    assert auto_level(task, Need(9, 1), quota_usage, NORMAL) is Priority.BELOW_NORMAL


def test_auto_does_not_rise_to_levels_nobody_gave_it() -> None:
    assert auto_level(a_task(), EIGHT, a_quota_usage(), NORMAL) is NORMAL


def test_auto_without_any_quota_left_is_idle() -> None:
    assert auto_level(a_task(), EIGHT, a_quota_usage(a_limit(0)), NORMAL) is Priority.IDLE
