"""Grants: which row decides, what it counts, and the same from a naive oracle after any history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.grants import deciding, grant_text, permitted
from libs.contracts.messages import Priority, Unit
from services.scheduler.domain.limits.quota_usage import (
    Account,
    Need,
    QuotaUsage,
    auto_level,
    held_need,
)
from services.scheduler.domain.model.rows import Limit, LimitKey, Task
from services.scheduler.domain.model.values import LEVELS
from tests.kit.builders import a_limit, a_task, running
from tests.kit.strategies import LIMIT, drawn_limit

HIGH, NORMAL = Priority.HIGH, Priority.NORMAL
EIGHT = Need(gpus=8, nodes=1)
RUNS = [running(a_task("r", owner="ann", team="vision"), {"n0": tuple(range(8))})]


def a_grant(limit: int = 4, **fields: Any) -> Limit:
    return a_limit(limit, grant=True, **fields)


SITE = a_limit(0, unit=Unit.UNSPECIFIED, grant=True, unlimited=True, level_max=NORMAL)


def a_quota_usage(*limits: Limit, held: list[Task] | None = None) -> QuotaUsage:
    return QuotaUsage({limit.key: limit for limit in limits}, held or [])


# The most specific first; each must decide over all that follow.
BY_SPECIFICITY = [
    a_grant(user="ann", group="default", priority=NORMAL),
    a_grant(user="ann", group="default"),
    a_grant(user="ann", priority=NORMAL),
    a_grant(user="ann"),
    a_grant(team="vision", group="default", priority=NORMAL),
    a_grant(team="vision", group="default"),
    a_grant(team="vision", priority=NORMAL),
    a_grant(team="vision"),
    a_grant(group="default", priority=NORMAL),
    a_grant(group="default"),
    a_grant(priority=NORMAL),
    a_grant(),
]


@pytest.mark.parametrize("place", range(len(BY_SPECIFICITY)))
def test_the_most_specific_grant_decides(place: int) -> None:
    rows = BY_SPECIFICITY[place:]
    task = a_task(owner="ann", team="vision")
    assert a_quota_usage(*reversed(rows)).deciding(task, NORMAL) == rows[0]


def test_a_named_users_grant_replaces_the_default_up_and_down() -> None:
    rows = [a_grant(8), a_grant(16, user="ann"), a_grant(4, user="bob")]
    usage = a_quota_usage(*rows)
    assert usage.excess(a_task(owner="ann"), NORMAL, Need(16, 2)) is None
    assert usage.excess(a_task(owner="bob"), NORMAL, Need(5, 1)) is not None
    assert usage.excess(a_task(owner="cat"), NORMAL, Need(9, 1)) is not None


def test_a_cap_applies_whatever_is_granted() -> None:
    usage = a_quota_usage(a_grant(16, user="ann"), a_limit(8))
    excess = usage.excess(a_task(owner="ann"), NORMAL, Need(9, 2))
    assert excess is not None
    assert excess.limit == a_limit(8)


def test_a_grant_without_a_group_holds_in_each_group_by_itself() -> None:
    usage = a_quota_usage(a_grant(8), held=RUNS)
    assert usage.excess(a_task(owner="ann"), NORMAL, Need(1, 1)) is not None
    assert usage.excess(a_task(owner="ann", group="dev"), NORMAL, EIGHT) is None
    assert not usage.across


def test_a_teams_grant_counts_each_member_by_themselves() -> None:
    usage = a_quota_usage(a_grant(8, team="vision"), held=RUNS)
    assert usage.excess(a_task(owner="bob", team="vision"), NORMAL, EIGHT) is None
    assert usage.excess(a_task(owner="ann", team="vision"), NORMAL, Need(1, 1)) is not None


def test_a_grant_counts_only_the_levels_that_it_decides() -> None:
    usage = a_quota_usage(a_grant(8), a_grant(2, priority=HIGH), held=RUNS)
    assert usage.excess(a_task(owner="ann"), HIGH, Need(2, 1)) is None
    assert usage.excess(a_task(owner="ann"), HIGH, Need(3, 1)) is not None
    assert usage.excess(a_task(owner="ann"), Priority.LOW, Need(1, 1)) is not None


@pytest.mark.parametrize("need", [Need(1, 1), Need(0, 1)])
def test_a_grant_of_nothing_permits_no_task_at_all(need: Need) -> None:
    assert a_quota_usage(a_grant(0)).excess(a_task(gpus=0), NORMAL, need) is not None
    assert a_quota_usage(a_grant(4)).excess(a_task(gpus=0), NORMAL, Need(0, 1)) is None


def test_an_unlimited_grant_is_a_row_that_replaces_the_default() -> None:
    usage = a_quota_usage(a_grant(0), a_grant(0, user="ann", unlimited=True))
    assert usage.excess(a_task(owner="ann"), NORMAL, Need(10**6, 10**6)) is None
    assert usage.excess(a_task(owner="bob"), NORMAL, Need(1, 1)) is not None


def test_the_site_setting_normal_permits_nothing_above_it_but_what_a_grant_permits() -> None:
    usage = a_quota_usage(SITE, a_grant(4, user="ann", priority=HIGH))
    task = a_task(owner="bob")
    assert usage.excess(task, NORMAL, Need(10**6, 10**6)) is None
    assert usage.excess(task, HIGH, Need(1, 1)) is not None
    assert usage.excess(a_task(owner="ann"), HIGH, Need(4, 1)) is None


def test_a_number_for_the_site_counts_gpus_or_else_nodes() -> None:
    usage = a_quota_usage(a_grant(2, unit=Unit.GPUS_OR_NODES))
    assert usage.excess(a_task(), NORMAL, Need(2, 9)) is None
    assert usage.excess(a_task(), NORMAL, Need(3, 1)) is not None
    assert usage.excess(a_task(gpus=0), NORMAL, Need(0, 3)) is not None


def test_auto_rises_only_where_the_deciding_grant_names_the_level() -> None:
    task = a_task(owner="ann")
    for rows, level in (
        ([a_grant(8, user="ann")], NORMAL),
        ([a_grant(8, user="ann", priority=HIGH)], HIGH),
        ([a_grant(8, priority=HIGH)], HIGH),
        ([a_grant(4, priority=HIGH)], NORMAL),
        ([a_grant(8, priority=HIGH), a_grant(0, user="ann")], Priority.IDLE),
        ([a_grant(8, user="ann", priority=HIGH), a_limit(4, priority=HIGH)], NORMAL),
        ([a_grant(0, user="ann", priority=HIGH, unlimited=True)], HIGH),
    ):
        assert auto_level(task, EIGHT, a_quota_usage(*rows), NORMAL) is level, rows


@pytest.mark.parametrize(
    ("grant", "text"),
    [
        (
            a_grant(4, user="ann", priority=HIGH, group="default"),
            "ann's grant of 4 GPUs at high in group default",
        ),
        (
            a_grant(1, team="vision", unit=Unit.NODES),
            "the grant of 1 node for each member of team vision in each group",
        ),
        (a_grant(0, priority=HIGH), "the grant of 0 GPUs for each user at high in each group"),
        (SITE, "the site's default (any amount, nothing above normal)"),
        (
            a_grant(8, unit=Unit.GPUS_OR_NODES),
            "the site's default (8 GPUs, or nodes for runs without GPUs)",
        ),
        (a_grant(0, user="ann", unlimited=True), "ann's grant of any amount in each group"),
    ],
)
def test_a_grant_is_named_in_words(grant: Limit, text: str) -> None:
    assert grant_text(grant) == text


# HAI's names of quota resources, and the rows that they become.
HAI = [
    ("ann", "node-train-HIGH", 4, a_grant(4, user="ann", group="train", priority=HIGH)),
    ("ann", "node-train-NORMAL", 0, a_grant(0, user="ann", group="train", priority=NORMAL)),
    (
        "ann",
        "node-train-EXTREME_HIGH",
        2,
        a_grant(2, user="ann", group="train", priority=Priority.EXTREME_HIGH),
    ),
    (
        "team:vision",
        "node-train-BELOW_NORMAL",
        8,
        a_grant(8, team="vision", group="train", priority=Priority.BELOW_NORMAL),
    ),
    ("ann", "node_limit-train-HIGH", 2, a_limit(2, user="ann", group="train", priority=HIGH)),
    ("ann", "node_limit[a]-train-HIGH", 3, a_limit(3, user="ann", group="train", priority=HIGH)),
]


def from_hai(who: str, resource: str, value: int) -> Limit:
    """The row of a HAI resource: ``KIND-GROUP-PRIORITY``, in nodes."""
    kind, group, priority = resource.split("-")
    name = {"team": who[5:]} if who.startswith("team:") else {"user": who}
    fields: dict[str, Any] = {
        **name,
        "group": group,
        "priority": Priority[priority],
        "unit": Unit.NODES,
    }
    return a_limit(value, grant=kind == "node", **fields)


@pytest.mark.parametrize(("who", "resource", "value", "row"), HAI)
def test_quotas_of_hai_map_onto_rows_in_nodes(
    who: str, resource: str, value: int, row: Limit
) -> None:
    assert from_hai(who, resource, value) == replace(row, unit=Unit.NODES)


def test_quotas_of_hai_permit_what_hai_permits() -> None:
    """The own row wins over that of the team; a limit only lowers it; no row is no permission."""
    rows = [
        from_hai("ann", "node-train-HIGH", 4),
        from_hai("team:vision", "node-train-HIGH", 1),
        from_hai("ann", "node_limit-train-HIGH", 3),
        a_grant(0, unit=Unit.NODES),
    ]
    usage = a_quota_usage(*rows)
    ann, bob, eve = (
        a_task(owner=owner, team=team, group="train")
        for owner, team in (("ann", "vision"), ("bob", "vision"), ("eve", ""))
    )
    for task, level, most in ((ann, HIGH, 3), (bob, HIGH, 1), (eve, HIGH, 0), (ann, NORMAL, 0)):
        for nodes in range(1, 6):
            admitted = usage.excess(task, level, Need(0, nodes)) is None
            assert admitted is (nodes <= most), (task.owner, level, nodes)


def test_a_site_default_counts_runs_above_its_highest_level_after_each_change() -> None:
    task = replace(running(a_task("t0", owner="ann"), {"n0": (0, 1)}), level=HIGH)
    usage = QuotaUsage({}, [task])
    rows: dict[LimitKey, Limit] = {}
    for most, counted in ((NORMAL, 2), (HIGH, 0), (NORMAL, 2), (Priority.UNSPECIFIED, 0)):
        row = a_limit(0, unit=Unit.UNSPECIFIED, grant=True, unlimited=True, level_max=most)
        rows[row.key] = row
        usage.change([row], lambda _: iter([task]))
        assert sum(usage.counted_accounts().values()) == counted
        assert usage.counted_accounts() == naive_held(rows, {"t0": task})


# The oracle: every row against every task, without an index.


def _rank(row: Limit, task: Task, level: Priority) -> tuple[int, bool, bool] | None:
    """How specific a grant is for a task; None: it does not apply."""
    for has, wanted in (
        (task.group, row.group),
        (task.owner, row.user),
        (task.team, row.team),
        (level, "" if row.priority is Priority.UNSPECIFIED else row.priority),
    ):
        if wanted not in {"", has}:
            return None
    who = 2 if row.user else 1 if row.team else 0
    return who, bool(row.group), row.priority is not Priority.UNSPECIFIED


def naive_grant(rows: dict[LimitKey, Limit], task: Task, level: Priority) -> Limit | None:
    ranked = [
        (rank, row)
        for row in rows.values()
        if row.grant and not row.removed and (rank := _rank(row, task, level)) is not None
    ]
    return max(ranked, key=lambda each: each[0])[1] if ranked else None


def naive_held(rows: dict[LimitKey, Limit], tasks: dict[str, Task]) -> dict[Account, int]:
    found: Counter[Account] = Counter()
    for task in tasks.values():
        need = held_need(task)
        grant = naive_grant(rows, task, task.level)
        if grant is not None and permitted(grant, task.level) is not None:
            unit = Unit.GPUS if grant.unlimited else grant.unit
            found[grant.key, f"{task.group}/{task.owner}"] += need.of(unit)
        for row in rows.values():
            if not row.grant and not row.removed and _rank(row, task, task.level) is not None:
                whose = "" if row.user or row.team else task.owner
                found[row.key, whose] += need.of(row.unit)
    return {account: amount for account, amount in found.items() if amount}


LEVEL = st.sampled_from([Priority.IDLE, Priority.BELOW_NORMAL, NORMAL, HIGH])
CHANGES = st.lists(
    st.one_of(
        st.builds(drawn_limit, **LIMIT, removed=st.booleans()),
        # Rows of one batch, such as those that expire together.
        st.lists(st.builds(drawn_limit, **LIMIT, removed=st.booleans()), max_size=4),
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(["ann", "bob"]),
            st.sampled_from(["", "vision"]),
            st.sampled_from(["default", "dev"]),
            LEVEL,
            st.integers(0, 4),
        ),
    ),
    max_size=25,
)


@settings(max_examples=300, deadline=None)
@given(CHANGES)
def test_what_is_counted_agrees_with_every_row_against_every_task(changes: list[Any]) -> None:
    rows: dict[LimitKey, Limit] = {}
    tasks: dict[str, Task] = {}
    usage = QuotaUsage({})

    def held(owners: Collection[str] | None) -> Iterator[Task]:
        return (task for task in tasks.values() if owners is None or task.owner in owners)

    for change in changes:
        if isinstance(change, tuple):
            _move(usage, tasks, Run(*change))
        else:
            batch = {row.key: row for row in (change if isinstance(change, list) else [change])}
            rows |= batch
            usage.change(batch.values(), held)
        assert usage.counted_accounts() == naive_held(rows, tasks)
        fork = usage.fork()
        for task in tasks.values():
            for level in LEVELS:
                assert fork.deciding(task, level) == naive_grant(rows, task, level)


class Run(NamedTuple):
    """A run that begins, ends (no GPUs), or counts at another level."""

    number: int
    owner: str
    team: str
    group: str
    level: Priority
    gpus: int


def _move(usage: QuotaUsage, tasks: dict[str, Task], run: Run) -> None:
    task_id = f"t{run.number}"
    old = tasks.pop(task_id, None)
    if old is not None:
        need = held_need(old)
        usage.charge(old, old.level, Need(-need.gpus, -need.nodes))
    if run.gpus:
        task = a_task(task_id, owner=run.owner, team=run.team, group=run.group)
        task = replace(running(task, {"n0": tuple(range(run.gpus))}), level=run.level)
        tasks[task_id] = task
        usage.charge(task, run.level, held_need(task))


def test_deciding_is_one_lookup_for_each_name() -> None:
    asked: list[Any] = []
    assert deciding(asked.append, "ann", "vision", "default", HIGH) is None
    assert len(asked) == 12


def test_a_number_with_a_highest_level_permits_nothing_above_it() -> None:
    usage = a_quota_usage(a_grant(4, level_max=NORMAL))
    task, need = a_task(owner="ann"), Need(gpus=4, nodes=1)
    assert usage.excess(task, NORMAL, need) is None
    assert usage.excess(task, Priority.LOW, need) is None
    excess = usage.excess(task, Priority.HIGH, need)
    assert excess is not None
    assert excess.limit.limit == 0


@pytest.mark.parametrize("level", [Priority.UNSPECIFIED, Priority.AUTO])
@pytest.mark.parametrize("grant", [a_grant(), SITE], ids=["a number", "up to a level"])
def test_without_a_level_nothing_is_answered(grant: Limit, level: Priority) -> None:
    """A grant that names a priority would silently not match."""
    with pytest.raises(ValueError, match=level.name):
        permitted(grant, level)
    with pytest.raises(ValueError, match=level.name):
        a_quota_usage(grant).rows(a_task("a"), level)
