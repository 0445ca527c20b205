from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.domain.disciplines.timeshare.discipline import TIMESHARE
from services.scheduler.domain.disciplines.timeshare.rule import (
    Account,
    Budget,
    Load,
    RuleSettings,
    delay,
    flood_share,
    grant_budget,
    grant_cost,
    hold_seconds,
    is_big,
    margin_seconds,
    preemption_budget,
    sample_due,
    sampled,
    scale,
    slice_seconds,
    spent,
    tag,
)
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.group_policy import Timeshare
from tests.kit.builders import a_task, some_nodes
from tests.kit.clock import at
from tests.services.scheduler.domain.domain_harness import DomainHarness

RULE, NUMBERS = RuleSettings(), Timeshare()
HOUR, DAY = 3600.0, 86_400.0
shares = st.floats(1e-5, 1.0)
times = st.floats(0.0, 1e8)


# --- delay, slice, hold ---


def test_delay_worked_by_hand() -> None:
    # A gang of a sixteenth: 30 s for each second it may still need. What it had has no part in it.
    assert delay(RULE, 1 / 16, 1000.0, 500.0) == pytest.approx(15_000.0)
    assert delay(RULE, 1 / 16, 0.0, 500.0) == pytest.approx(15_000.0)
    # Unless it is given one: 30 * (.2 * 1000 + .8 * 500).
    part = replace(RULE, attained_part=0.2)
    assert delay(part, 1 / 16, 1000.0, 500.0) == pytest.approx(18_000.0)
    # An eighth is set back by 2^.35 = 1.2746 more; a quarter and more by 4^.35, however big.
    assert delay(RULE, 1 / 8, 1000.0, 500.0) == pytest.approx(19_118.4, abs=0.1)
    assert delay(RULE, 1 / 4, 1000.0, 500.0) == pytest.approx(24_367.6, abs=0.1)
    assert delay(RULE, 1 / 2, 1000.0, 500.0) == delay(RULE, 1 / 4, 1000.0, 500.0)
    # Below .006 no less: .096^.35 = exp(.35 x -2.3434) = .44035.
    assert delay(RULE, 0.006, 0.0, 500.0) == pytest.approx(6605.2, abs=0.1)
    assert delay(RULE, 0.006, 0.0, 500.0) == delay(RULE, 0.001, 0.0, 500.0)
    # The cap: 35 days for a quarter, a quarter of that for the whole pool.
    assert delay(RULE, 1 / 4, 1e9, 1e9) == 3e6
    assert delay(RULE, 1.0, 1e9, 1e9) == 0.75e6
    assert delay(RULE, 1 / 100, 1e12, 1e12) == 75e6


@settings(max_examples=40)
@given(shares, times, st.floats(0.001, 1e10))
def test_delay_is_positive_capped_and_grows_with_both(
    share: float, attained: float, index: float
) -> None:
    found = delay(RULE, share, attained, index)
    assert 0.0 < found <= 3e6 / (4 * share) * (1 + 1e-12)
    assert delay(RULE, share, attained * 2, index) >= found
    assert delay(RULE, share, attained, index * 2) >= found


def test_a_pool_without_nodes_divides_by_nothing() -> None:
    assert 0.0 < delay(RULE, 0.0, 10.0, 10.0) < inf
    assert preemption_budget(RULE, NUMBERS, 0.0, 60.0).ceiling == 0.0


def test_slices_grow_with_what_was_attained() -> None:
    assert slice_seconds(NUMBERS, 0.0) == HOUR
    assert slice_seconds(NUMBERS, 10 * HOUR) == 6 * HOUR


@pytest.mark.parametrize(
    ("share", "age", "attained", "restart", "held"),
    [
        # Smaller ones are easily put together again.
        (0.2499, 10 * DAY, 0.0, 60.0, 0.0),
        # A new one is owed nothing but its restart.
        (0.25, 0.0, 0.0, 60.0, 60.0),
        # In 12 h it should have run .40, that is 4.8 h: it has them when it is 8 h older, because
        # .40 x (12 + 8) = 8.
        (0.25, 12 * HOUR, 0.0, 60.0, 60.0 + 8 * HOUR),
        # (4.8 - 2.4) / .60 = 4.
        (0.25, 12 * HOUR, 2.4 * HOUR, 60.0, 60.0 + 4 * HOUR),
        # It had its part.
        (0.25, 12 * HOUR, 4.8 * HOUR, 60.0, 60.0),
        (0.25, 12 * HOUR, 30 * HOUR, 900.0, 900.0),
        # At most 16 h in all, and at a time: after 10.6 h (16 - 10.6) / .60 = 9 h more.
        (1.0, 10 * DAY, 0.0, 300.0, 300.0 + 16 * HOUR),
        (1.0, 10 * DAY, 10.6 * HOUR, 300.0, 300.0 + 9 * HOUR),
        (1.0, 10 * DAY, 16 * HOUR, 300.0, 300.0),
    ],
)
def test_big_gangs_are_held_until_they_caught_up(
    share: float, age: float, attained: float, restart: float, held: float
) -> None:
    assert hold_seconds(
        RULE,
        NUMBERS,
        share=share,
        age_seconds=age,
        attained_seconds=attained,
        restart_seconds=restart,
    ) == pytest.approx(held)
    assert is_big(RULE, share) == (held > 0.0)


@settings(max_examples=40)
@given(times, times, times, st.floats(0.0, 3600.0))
def test_a_hold_grows_with_age_and_shrinks_with_service(
    age: float, attained: float, more: float, restart: float
) -> None:
    def held(age: float, attained: float) -> float:
        return hold_seconds(
            RULE,
            NUMBERS,
            share=0.5,
            age_seconds=age,
            attained_seconds=attained,
            restart_seconds=restart,
        )

    now = held(age, attained)
    assert restart <= now <= restart + NUMBERS.hold_seconds
    assert held(age + more, attained) >= now
    assert held(age, attained + more) <= now
    # One that ran all the time is not held: what it is owed is less than what it had.
    assert held(age, age) == restart


# --- the margin ---


def margin(delay_seconds: float, scale: float, restart: float, ratio: float) -> float:
    return margin_seconds(
        RULE, delay_seconds=delay_seconds, scale=scale, restart_seconds=restart, ratio=ratio
    )


def test_margins_worked_by_hand() -> None:
    # All its nodes from others: 1.5 delays, and 20 restarts of 60 s that count like 30 s each.
    assert margin(10_000.0, 1.0, 60.0, 1.0) == pytest.approx(15_000.0 + 36_000.0)
    # Half of them: half of it. At twice the scale delays come in twice as long.
    assert margin(20_000.0, 2.0, 60.0, 0.5) == pytest.approx((30_000.0 + 72_000.0) / 2)
    # What costs nothing to move only has to be later than its delay by the part.
    assert margin(10_000.0, 4.0, 0.0, 1.0) == pytest.approx(15_000.0)
    # All but nothing from others: whatever was submitted later may go.
    assert margin(10_000.0, 1.0, 60.0, 0.0) == 0.0


@settings(max_examples=40)
@given(times, st.floats(1.0, 64.0), st.floats(0.0, 3600.0), st.floats(0.0, 1.0))
def test_margins_grow_with_everything(
    seconds: float, scale: float, restart: float, ratio: float
) -> None:
    found = margin(seconds, scale, restart, ratio)
    assert 0.0 <= found <= margin(seconds, scale, restart, 1.0)
    assert margin(seconds + 1.0, scale, restart, ratio) >= found
    assert margin(seconds, 2.0 * scale, restart, ratio) >= found
    assert margin(seconds, scale, restart + 1.0, ratio) >= found
    # Two equal tasks never take each other's nodes in turn: all of them cost more than a delay.
    assert margin(seconds, scale, restart, 1.0) >= seconds


# --- the load scale ---


def test_scale_goes_in_half_octaves() -> None:
    ages = [0.0, 2.5e5, 2.9e5, 3.1e5, 5e5, 2.5e5 * 2**1.24, 2.5e5 * 2**1.26, 1e6]
    found = [scale(RULE, Load(age, 0.0)) for age in ages]
    assert found == pytest.approx([1, 1, 1, 2**0.5, 2, 2, 2**1.5, 4])


def test_the_load_is_smoothed_over_half_a_day() -> None:
    load = sampled(RULE, Load(0.0, 0.0), 1000.0, 12 * HOUR)
    assert (load.mean_age_seconds, load.sampled_at) == (500.0, 12 * HOUR)
    # Unevenly sampled, the same: two halves of a half-life.
    halves = sampled(RULE, sampled(RULE, Load(0.0, 0.0), 1000.0, 2 * HOUR), 1000.0, 12 * HOUR)
    assert halves.mean_age_seconds == pytest.approx(500.0)
    assert sampled(RULE, load, 9e9, load.sampled_at - DAY).mean_age_seconds == 500.0
    assert not sample_due(RULE, load, load.sampled_at + 1799.0)
    assert sample_due(RULE, load, load.sampled_at + 1800.0)
    assert sample_due(RULE, load, load.sampled_at - DAY)


@settings(max_examples=40)
@given(times, times, times, times)
def test_the_smoothed_load_lies_between(old: float, new: float, start: float, later: float) -> None:
    found = sampled(RULE, Load(old, start), new, start + later).mean_age_seconds
    assert min(old, new) * (1 - 1e-12) <= found <= max(old, new) * (1 + 1e-12)
    assert scale(RULE, Load(found, 0.0)) >= 1.0


# --- tags ---


class Tags:
    """What a pool keeps of its users between their tasks: how many live ones, and the finish."""

    def __init__(self) -> None:
        self.live: Counter[str] = Counter()
        self.finish: dict[str, float] = {}

    def __len__(self) -> int:
        return len(+self.live)

    def arrived(
        self, user: str, now: float, *, share: float, mean_seconds: float, weight: float = 1.0
    ) -> float:
        self.live[user] += 1
        found, self.finish[user] = tag(
            RULE,
            now,
            self.finish.get(user, 0.0),
            share=share,
            mean_seconds=mean_seconds,
            users=len(self),
            weight=weight,
        )
        return found

    def left(self, user: str) -> None:
        if self.live[user]:
            self.live[user] -= 1
        if not self.live[user]:
            self.finish.pop(user, None)


def test_tags_worked_by_hand() -> None:
    tags = Tags()
    submit = {"share": 0.25, "mean_seconds": 4000.0}
    # Alone: each quarter of the pool for 4000 s sets the next one back by 1000 s.
    assert tags.arrived("ann", 100.0, **submit) == 0.0
    assert tags.arrived("ann", 100.0, **submit) == 1000.0
    # Bob is new: not set back; but now they are two, and each has half of the pool.
    assert tags.arrived("bob", 100.0, **submit) == 0.0
    assert tags.arrived("ann", 100.0, **submit) == 2000.0
    assert tags.arrived("ann", 100.0, **submit) == 4000.0
    # What was owed is served with time.
    assert tags.arrived("bob", 5000.0, **submit) == 0.0
    assert tags.arrived("ann", 5100.0, **submit) == 1000.0
    assert len(tags) == 2


def test_a_users_weight_divides_what_they_owe() -> None:
    tags = Tags()
    submit = {"share": 1.0, "mean_seconds": 3000.0}
    tags.arrived("ann", 0.0, weight=3.0, **submit)
    assert tags.arrived("ann", 0.0, weight=3.0, **submit) == 1000.0
    tags.arrived("bob", 0.0, weight=0.0, **submit)
    assert tags.arrived("bob", 0.0, **submit) == RULE.tag_seconds_max


def test_with_the_last_task_what_was_owed_is_forgotten() -> None:
    tags = Tags()
    submit = {"share": 1.0, "mean_seconds": 3000.0}
    tags.arrived("ann", 0.0, **submit)
    tags.arrived("ann", 0.0, **submit)
    tags.left("ann")
    assert tags.arrived("ann", 0.0, **submit) == 6000.0
    tags.left("ann")
    tags.left("ann")
    assert len(tags) == 0
    assert tags.arrived("ann", 0.0, **submit) == 0.0
    tags.left("nobody")


def test_tags_survive_a_restart() -> None:
    """The order keys of the users' tasks contain the tags, so the rows alone restore them."""
    harness = DomainHarness([*some_nodes(2)])
    for place, owner in enumerate(("ann", "ann", "bob", "ann")):
        harness.submit(a_task(f"t{place}", owner=owner, submitted=0))
        harness.rounds()
    rows = harness.index
    before = rows.pools["default"]
    again = Snapshot.of(
        tasks=rows.tasks.values(), nodes=rows.nodes.values(), ledgers=rows.ledgers.values()
    )
    after = again.pools["default"]
    assert before.finishes["ann"] > before.finishes["bob"] > 0.0
    assert after.finishes == before.finishes
    newcomer = a_task("t9", owner="ann", submitted=0)
    now, finish = at(harness.seconds), before.finishes["ann"]
    order_keys = [TIMESHARE.waiting(pool, newcomer, now, finish) for pool in (before, after)]
    assert order_keys[0] == order_keys[1]
    assert order_keys[0].tag > 0.0


arrivals = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "eve"]),
        st.booleans(),
        st.floats(-1e6, 1e6),
        shares,
        st.floats(0.0, 1e6),
        st.floats(0.0, 10.0),
    ),
    max_size=40,
)


@settings(max_examples=30)
@given(arrivals)
def test_tags_lie_between_nothing_and_three_days_at_any_clock(
    rows: list[tuple[str, bool, float, float, float, float]],
) -> None:
    tags = Tags()
    for user, leaves, now, share, mean, weight in rows:
        if leaves:
            tags.left(user)
        else:
            found = tags.arrived(user, now, share=share, mean_seconds=mean, weight=weight)
            assert 0.0 <= found <= RULE.tag_seconds_max * (1 + 1e-9)
    assert len(tags) <= 3


# --- accounts ---


def test_budgets_by_policy() -> None:
    budget = preemption_budget(RULE, NUMBERS, 100.0, 60.0)
    assert budget.rate == pytest.approx(1.8)
    assert (budget.ceiling, budget.reserved) == (24_000.0, 6000.0)
    grants = grant_budget(RULE, NUMBERS, 100.0)
    # .015 of 100 nodes; at most an hour and a half of all of them.
    assert grants == Budget(rate=1.5, ceiling=540_000.0)
    assert grant_cost(RULE, 10.0, 60.0) == 9600.0


def test_paying_worked_by_hand() -> None:
    budget = Budget(rate=2.0, ceiling=400.0, reserved=100.0)
    account = budget.accrued(Account(0.0, 0.0), 100.0)
    assert account == Account(200.0, 100.0)
    # The last quarter is for the entitled.
    assert budget.covers(account, 200.0)
    assert not budget.covers(account, 200.0, entitled=False)
    assert budget.covers(account, 100.0, entitled=False)
    assert budget.covered_at(account, 200.0, entitled=False) == 150.0
    assert budget.covered_at(account, 200.0) == 100.0
    assert spent(account, 150.0) == Account(50.0, 100.0)
    assert budget.opened(7.0) == Account(400.0, 7.0)
    assert Budget(0.0, 400.0).covered_at(account, 300.0) is None
    # A full account does not help where there is none.
    assert not Budget(0.0, 400.0).covers(Account(400.0, 0.0), 1.0)


def test_a_cost_above_a_full_account_is_delayed_but_never_impossible() -> None:
    budget = Budget(rate=2.0, ceiling=400.0, reserved=100.0)
    full = budget.opened(0.0)
    assert budget.covers(full, 1e6)
    assert budget.covers(full, 1e6, entitled=False)
    owing = spent(full, 1000.0)
    assert not budget.covers(owing, 0.1)
    # 600 owed at 2 a second.
    assert budget.accrued(owing, 300.0).tokens == 0.0
    assert budget.covered_at(owing, 1e6) == 500.0


def a_budget(rate: float, ceiling: float, part: float) -> Budget:
    return Budget(rate, ceiling, part * ceiling)


budgets = st.builds(
    a_budget,
    st.floats(0.001, 1e3),
    st.floats(0.0, 1e7),
    st.floats(0.0, 0.9),
)
accounts = st.builds(Account, st.floats(-1e7, 1e8), times)


@settings(max_examples=40)
@given(budgets, accounts, st.lists(st.floats(0.0, 1e5), max_size=10))
def test_accrual_is_lazy_monotone_and_never_above_its_ceiling(
    budget: Budget, account: Account, pauses: list[float]
) -> None:
    stepped, now = account, account.counted_at
    for pause in pauses:
        now += pause
        before, stepped = stepped, budget.accrued(stepped, now)
        assert stepped.tokens <= budget.ceiling
        assert stepped.tokens >= min(before.tokens, budget.ceiling)
    if pauses:
        at_once = budget.accrued(account, now)
        assert at_once.counted_at == stepped.counted_at
        assert at_once.tokens == pytest.approx(stepped.tokens, rel=1e-6, abs=1e-3)


@settings(max_examples=40)
@given(budgets, accounts, st.floats(0.0, 1e6))
def test_time_that_ran_backwards_adds_nothing(
    budget: Budget, account: Account, back: float
) -> None:
    found = budget.accrued(account, account.counted_at - back)
    assert found.tokens == min(account.tokens, budget.ceiling)
    assert found.counted_at == account.counted_at - back


@settings(max_examples=40)
@given(budgets, accounts, st.floats(0.0, 1e8), st.booleans())
def test_what_is_reported_as_covered_then_is(
    budget: Budget, account: Account, cost: float, entitled: bool
) -> None:
    account = budget.accrued(account, account.counted_at)
    at = budget.covered_at(account, cost, entitled=entitled)
    assert at is not None
    then = budget.accrued(account, at + 1e-3)
    assert budget.covers(then, cost, entitled=entitled)
    if budget.covers(account, cost, entitled=False):
        assert budget.covers(account, cost, entitled=True)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.floats(0.0, 7200.0), st.floats(1.0, 5e4)), max_size=60))
def test_overhead_is_bounded_by_the_budget(rows: list[tuple[float, float]]) -> None:
    budget = preemption_budget(RULE, NUMBERS, 100.0, 60.0)
    account, paid, now, dearest = Account(0.0, 0.0), 0.0, 0.0, 0.0
    for pause, cost in rows:
        now += pause
        account = budget.accrued(account, now)
        if budget.covers(account, cost):
            account, paid = spent(account, cost), paid + cost
            dearest = max(dearest, cost)
    assert paid <= 0.018 * 100 * now + max(dearest - budget.ceiling, 0.0) + 1e-3


# --- the flood guard ---


def test_floods_hold_less_the_bigger_they_are() -> None:
    assert flood_share(RULE, 24 * HOUR) == 1.0
    assert flood_share(RULE, 48 * HOUR) == pytest.approx(0.125)
    assert flood_share(RULE, 480 * HOUR) == 0.05


@pytest.mark.parametrize(
    "change",
    [
        {"reference_share": 0.0},
        {"scale_steps": 0.0},
        {"share_max": 0.001},
        {"budget_restarts_max": 1.0},
    ],
)
def test_numbers_that_cannot_be_meant_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above|at least"):
        replace(RULE, **change)
