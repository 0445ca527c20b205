from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.grants import scope_of
from libs.contracts.messages import Placement, Priority, Quota, RefusalCode, SetQuota, Unit
from services.quota.domain import Holder, Use, check, group_token, held, removes, usage
from tests.kit.clock import START, at

GOOD: dict[str, Any] = {"group": "train", "user": "ann", "unit": Unit.GPUS, "limit": 8}


def a_quota(**changes: Any) -> Quota:
    return Quota(**(GOOD | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"group": ""},
        {"user": "", "team": "red"},
        {"team": "red"},
        {"user": ""},
        {"priority": Priority.EXTREME_HIGH},
        {"limit": 0},
        {"unit": Unit.NODES},
    ],
)
def test_a_sensible_limit_is_accepted(changes: dict[str, Any]) -> None:
    assert check(SetQuota(quota=a_quota(**changes)), at(0)) is None


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"group": "Train"}, "group", "Train"),
        ({"user": "a/b"}, "user", "a/b"),
        ({"team": "x" * 64}, "team", "x" * 64),
        ({"priority": Priority.AUTO}, "priority", "auto"),
        ({"unit": Unit.UNSPECIFIED}, "unit", ""),
        ({"limit": -1}, "limit", "-1"),
        ({"limit": 10**9 + 1}, "limit", "1000000001"),
    ],
)
def test_a_wrong_limit_is_reported_with_its_field(
    changes: dict[str, Any], field: str, value: str
) -> None:
    refused = check(SetQuota(quota=a_quota(**changes)), at(0))
    assert refused is not None
    assert refused.code is RefusalCode.INVALID
    (error,) = refused.errors
    assert (error.field, error.value) == (field, value)
    assert error.message
    assert error.fix


def test_all_errors_are_reported_at_once() -> None:
    refused = check(SetQuota(quota=a_quota(group="A", user="B", limit=-1)), at(0))
    assert refused is not None
    assert [error.field for error in refused.errors] == ["group", "user", "limit"]
    assert refused.detail.endswith("(and 2 more)")


def test_removing_a_limit_needs_no_number() -> None:
    quota = a_quota(unit=Unit.UNSPECIFIED, limit=-5)
    for command in (
        SetQuota(quota=quota, remove=True),
        # As gateways before ``remove`` send it.
        SetQuota(quota=quota, unlimited=True),
    ):
        assert check(command, at(0)) is None
        assert removes(command)


texts = st.sampled_from(["", "a", "b"])
scopes = st.builds(
    Quota, group=texts, user=texts, team=texts, priority=st.sampled_from(list(Priority))
)


@given(scopes, scopes)
def test_scopes_never_collide(one: Quota, two: Quota) -> None:
    assert (scope_of(one) == scope_of(two)) == (one == two)


def test_a_limit_over_every_group_has_a_subject() -> None:
    assert group_token(Quota()) == "all"
    assert group_token(Quota(group="train")) == "train"


def test_a_gang_holds_the_gpus_and_nodes_of_its_placements() -> None:
    held_gpus = ((0, 1), (3,), ())
    gang = [Placement(rank=n, node_id=f"n{n}", gpus=gpus) for n, gpus in enumerate(held_gpus)]
    assert held(gang) == (3, 3)


@given(st.floats(-1e6, 1e6), st.integers(0, 64), st.integers(1, 64))
def test_use_is_time_times_size_and_never_negative(seconds: float, gpus: int, nodes: int) -> None:
    ended_at = START + timedelta(seconds=seconds)
    use = Use("t1", 1, gpus, nodes, started_at=START, ended_at=ended_at)
    entry = usage(use, Holder("ann", "red", "train"))
    lasted = (entry.ended_at - entry.started_at).total_seconds()
    assert lasted == max(0.0, (ended_at - START).total_seconds())
    assert entry.gpu_seconds == lasted * gpus
    assert entry.node_seconds == lasted * nodes


@pytest.mark.parametrize(
    "quota",
    [
        a_quota(grant=True),
        a_quota(grant=True, unit=Unit.UNSPECIFIED, limit=0, unlimited=True),
        a_quota(expires_at=at(10)),
        Quota(grant=True, unlimited=True, level_max=Priority.NORMAL),
        Quota(grant=True, unit=Unit.GPUS_OR_NODES, limit=8),
        Quota(grant=True, unit=Unit.GPUS_OR_NODES, limit=8, level_max=Priority.NORMAL),
    ],
)
def test_a_sensible_grant_is_accepted(quota: Quota) -> None:
    assert check(SetQuota(quota=quota), at(0)) is None


@pytest.mark.parametrize(
    ("quota", "field", "fix"),
    [
        (a_quota(grant=True, team="vision"), "team", "leave one of them out"),
        (a_quota(unit=Unit.UNSPECIFIED, limit=0, unlimited=True), "unlimited", "remove the cap"),
        (a_quota(grant=True, unlimited=True), "limit", "give a number and its unit, or unlimited"),
        (a_quota(grant=True, level_max=Priority.NORMAL), "level_max", "the site's default"),
        (a_quota(expires_at=at(0)), "expires_at", "give a time to come"),
        (Quota(grant=True), "unit", "give a number of GPUs or of nodes"),
    ],
)
def test_the_error_of_a_bad_grant_names_field_and_fix(quota: Quota, field: str, fix: str) -> None:
    refused = check(SetQuota(quota=quota), at(0))
    assert refused is not None
    assert [error.field for error in refused.errors] == [field]
    assert fix in refused.errors[0].fix
