"""The order in which roles start: what is filled in, and which orders are refused, with what."""

from __future__ import annotations

import pytest

from libs.contracts.messages import (
    FieldError,
    Port,
    ReadyProbe,
    Refusal,
    Role,
    StartCondition,
    StartsAfter,
    TaskSpec,
)
from services.submit.domain.facts import Defaults, Facts, Limits
from services.submit.domain.fill import fill_in
from services.submit.domain.start_fields import PATH_CHARACTERS_MAX
from services.submit.domain.validate import validate
from tests.kit.specs import TASK_ID, asked

READY = StartCondition.READY


def a_role(name: str, *after: str | StartsAfter, ready: ReadyProbe | None = None) -> Role:
    return Role(
        name=name,
        replicas=1,
        command=("x",),
        ports=(Port(name="rpc"),),
        starts_after=tuple(
            each if isinstance(each, StartsAfter) else StartsAfter(role=each) for each in after
        ),
        ready=ready,
    )


def validated(*roles: Role, limits: Limits | None = None) -> TaskSpec | Refusal:
    filled = fill_in(asked(roles=roles), task_id=TASK_ID, defaults=Defaults())
    return validate(filled, owner="ann", team="", facts=Facts(), limits=limits or Limits())


def errors(*roles: Role, limits: Limits | None = None) -> list[FieldError]:
    found = validated(*roles, limits=limits)
    assert isinstance(found, Refusal), found
    assert all(each.message and each.fix for each in found.errors)
    return list(found.errors)


def test_what_is_left_out_is_filled_in_and_stays() -> None:
    probe = ReadyProbe(port="rpc")
    found = validated(a_role("ps", ready=probe), a_role("worker", "ps"))
    assert isinstance(found, TaskSpec), found
    assert found.roles[1].starts_after == (
        StartsAfter(role="ps", condition=StartCondition.RUNNING),
    )
    filled = found.roles[0].ready
    assert filled == ReadyProbe(port="rpc", period_seconds=2, within_seconds=600)
    assert fill_in(found, task_id=TASK_ID, defaults=Defaults()) == found


def test_a_role_without_an_order_stays_as_it_is() -> None:
    found = validated(a_role("ps"), a_role("worker"))
    assert isinstance(found, TaskSpec), found
    assert found.roles[0].ready is None


def test_a_role_may_wait_for_the_readiness_of_one_without_a_probe() -> None:
    after = StartsAfter(role="ps", condition=READY)
    found = validated(a_role("ps"), a_role("worker", after))
    assert isinstance(found, TaskSpec), found
    assert found.roles[1].starts_after == (after,)


@pytest.mark.parametrize(
    ("role", "field", "value", "fix"),
    [
        (a_role("worker", "pss"), "roles[1].starts_after[0].role", "pss", "did you mean ps?"),
        (a_role("worker", "worker"), "roles[1].starts_after[0].role", "worker", "another role"),
        (a_role("worker", "ps", "ps"), "roles[1].starts_after[1].role", "ps", "once"),
        (a_role("worker", ready=ReadyProbe(port="rcp")), "roles[1].ready.port", "rcp", "rpc"),
        (a_role("worker", ready=ReadyProbe(path="/x")), "roles[1].ready.path", "/x", "port"),
        (
            a_role("worker", ready=ReadyProbe(port="rpc", path="x")),
            "roles[1].ready.path",
            "x",
            "begin it with /: /x",
        ),
        (
            a_role("worker", ready=ReadyProbe(port="rpc", path="/ä b")),
            "roles[1].ready.path",
            "/ä b",
            "encode them: /%C3%A4%20b",
        ),
        (
            a_role("worker", ready=ReadyProbe(port="rpc", path="/a b")),
            "roles[1].ready.path",
            "/a b",
            "encode",
        ),
        (
            a_role("worker", ready=ReadyProbe(port="rpc", path="/" * (PATH_CHARACTERS_MAX + 1))),
            "roles[1].ready.path",
            f"{PATH_CHARACTERS_MAX + 1} characters",
            "at most",
        ),
        (
            a_role("worker", ready=ReadyProbe(within_seconds=90_000)),
            "roles[1].ready.within_seconds",
            "90000.0",
            "range",
        ),
        (
            a_role("worker", ready=ReadyProbe(period_seconds=0.5)),
            "roles[1].ready.period_seconds",
            "0.5",
            "range",
        ),
    ],
)
def test_a_condition_that_cannot_be_met_is_refused(
    role: Role, field: str, value: str, fix: str
) -> None:
    (error,) = errors(a_role("ps"), role)
    assert (error.field, error.value) == (field, value)
    assert fix in error.fix


@pytest.mark.parametrize(
    ("after", "cycle"),
    [
        ({"a": "b", "b": "a", "c": ""}, "a -> b -> a"),
        ({"a": "b", "b": "c", "c": "b"}, "b -> c -> b"),
        ({"a": "b", "b": "c", "c": "a"}, "a -> b -> c -> a"),
    ],
)
def test_a_cycle_is_refused_and_named(after: dict[str, str], cycle: str) -> None:
    (error,) = errors(*(a_role(name, *others) for name, others in after.items()))
    assert error.value == cycle
    assert error.field == f"roles[{'abc'.index(cycle[0])}].starts_after"


def test_a_role_that_several_wait_for_is_no_cycle() -> None:
    found = validated(a_role("a"), a_role("b", "a"), a_role("c", "a"), a_role("d", "b", "c"))
    assert isinstance(found, TaskSpec), found


def test_a_role_names_at_most_as_many_roles_as_a_task_has() -> None:
    role = a_role("worker", *["ps"] * 4)
    first = errors(a_role("ps"), role, limits=Limits(roles_max=3))[0]
    assert (first.field, first.value) == ("roles[1].starts_after", "4 roles")
