"""Rules for success and failure over the ends of ranks."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from libs.contracts.completion import (
    RankEnd,
    Rules,
    Verdict,
    decide,
    has_own,
    parse,
    rules_of,
    text_of,
)
from libs.contracts.messages import Completion, Contract, Role
from tests.kit.builders import a_spec

ROLES = (
    Role(name="chief", replicas=1, command=("a",)),
    Role(name="worker", replicas=3, command=("b",)),
    Role(name="ps", replicas=2, command=("c",)),
)


def rules(success: str = "", failure: str = "") -> Rules:
    own = Completion(
        success=tuple(filter(None, success.split(", "))),
        failure=tuple(filter(None, failure.split(", "))),
    )
    return rules_of(a_spec(roles=ROLES).model_copy(update={"completion": own}))


def ends(text: str) -> list[RankEnd]:
    """``c0+ w1-``: chief 0 succeeded, then worker 1 failed."""
    names = {role.name[0]: role.name for role in ROLES}
    return [RankEnd(names[each[0]], int(each[1]), ok=each[2] == "+") for each in text.split()]


S, F = Verdict.SUCCEEDED, Verdict.FAILED


@pytest.mark.parametrize(
    ("success", "failure", "history", "verdict"),
    [
        # The default: all succeed, or any fails.
        ("", "", "", None),
        ("", "", "c0+ w0+ w1+ w2+ p0+", None),
        ("", "", "c0+ w0+ w1+ w2+ p0+ p1+", S),
        ("", "", "c0+ w0-", F),
        # A chief decides alone; parameter servers never exit.
        ("chief[0]", "", "w0+ w1+", None),
        ("chief[0]", "", "w0+ c0+", S),
        ("chief[0]", "", "c0+ w1-", S),
        ("chief[0]", "", "w1- c0+", F),
        ("chief[0]", "chief[0]", "w1- p0- c0+", S),
        ("chief[0]", "chief[0]", "w1- c0-", F),
        # Workers may fail below a threshold.
        ("worker[2+]", "worker[2+]", "w0- w1+", None),
        ("worker[2+]", "worker[2+]", "w0- w1+ w2+", S),
        ("worker[2+]", "worker[2+]", "w0- w1+ w2-", F),
        ("chief[all] and worker[any]", "ps[all]", "c0+", None),
        ("chief[all] and worker[any]", "ps[all]", "c0+ p0- w2+", S),
        ("chief[all] and worker[any]", "ps[all]", "c0+ p0- p1-", F),
        # Any of several rules.
        ("chief[0], worker[all]", "chief[0]", "w0+ w1+ w2+", S),
        # Every one has ended, in whatever way.
        ("worker[ended]", "chief[0]", "w0- w1+ w2-", S),
        ("worker[ended]", "chief[0]", "w0- c0- w1+ w2-", F),
        # No rule for success can be met any more.
        ("chief[0]", "ps[all]", "c0-", F),
        ("chief[0], worker[2+]", "ps[all]", "c0- w0-", None),
        ("chief[0], worker[2+]", "ps[all]", "c0- w0- w1-", F),
        ("worker[any]", "ps[all]", "w0- w2-", None),
        ("worker[any]", "ps[all]", "w0- w2- w1-", F),
        # Nothing fails it.
        ("worker[ended]", "never", "c0- w0- w1-", None),
        ("worker[ended]", "never", "c0- w0- w1- w2-", S),
        # Failure comes first if one end meets both.
        ("worker[ended]", "worker[2+]", "w0- w1+ w2-", F),
    ],
)
def test_the_rule_that_is_met_first_decides(
    success: str, failure: str, history: str, verdict: Verdict | None
) -> None:
    found = decide(rules(success, failure), ROLES, ends(history))
    assert (found.verdict if found else None) is verdict


def test_auxiliary_roles_and_workers_of_mpi_need_not_exit() -> None:
    board = Role(name="board", replicas=1, auxiliary=True, command=("d",))
    spec = a_spec(roles=(*ROLES[:2], board))
    found = decide(rules_of(spec), spec.roles, ends("c0+ w0+ w1+ w2+"))
    assert found is not None
    assert found.verdict is S
    assert has_own(spec)
    assert not has_own(a_spec(roles=ROLES))
    launcher = Role(name="launcher", replicas=1, command=("mpirun",))
    mpi = a_spec(roles=(launcher, ROLES[1])).model_copy(update={"contract": Contract.MPI})
    found = decide(rules_of(mpi), mpi.roles, [RankEnd("launcher", 0, ok=True)])
    assert found is not None
    assert found.verdict is S


everyone = [(role.name, number) for role in ROLES for number in range(role.replicas)]
histories = st.permutations(everyone).flatmap(
    lambda order: st.lists(st.booleans(), min_size=len(order), max_size=len(order)).map(
        lambda ok: [RankEnd(*who, ok=each) for who, each in zip(order, ok, strict=True)]
    )
)


conditions = st.builds(
    "{0.name}[{1}]".format,
    st.sampled_from(ROLES),
    st.sampled_from(["any", "all", "ended", "0", "1+"]),
)
several = st.lists(st.lists(conditions, min_size=1, max_size=3).map(" and ".join), max_size=3)


def meets(condition: tuple[str, str], seen: list[RankEnd], *, ok: bool) -> bool:
    """Whether ends meet a condition, from its meaning."""
    role, which = condition
    replicas = next(each.replicas for each in ROLES if each.name == role)
    so = [end.number for end in seen if end.role == role and end.ok is ok]
    return {
        "any": len(so) >= 1,
        "all": len(so) == replicas,
        "ended": len([end for end in seen if end.role == role]) == replicas,
        "0": 0 in so,
        "1+": len(so) >= 1,
    }[which]


@given(several, several, histories)
def test_what_is_counted_is_what_the_rules_mean(
    success: list[str], failure: list[str], history: list[RankEnd]
) -> None:
    own = rules(", ".join(success), ", ".join(failure))
    expected: Verdict | None = None
    for length in range(1, len(history) + 1):
        seen = history[:length]
        failed, succeeded = (
            any(all(meets(each, seen, ok=ok) for each in rule) for rule in of)
            for of, ok in ((own.failure, False), (own.success, True))
        )
        # What is left could not help, even if all of it succeeded or all failed.
        left = [each for each in everyone if each not in {end[:2] for end in seen}]
        best = [*seen, *(RankEnd(*each, ok=True) for each in left)]
        hopeless = not any(all(meets(each, best, ok=True) for each in rule) for rule in own.success)
        expected = F if failed else S if succeeded else F if hopeless else None
        if expected is not None:
            break
    found = decide(own, ROLES, history)
    assert (found.verdict if found else None) is expected
    if found is not None:
        assert found.end == history[length - 1]


@given(histories, st.integers(0, 6))
def test_the_default_is_all_or_any_in_every_history(history: list[RankEnd], length: int) -> None:
    seen = history[:length]
    found = decide(rules(), ROLES, seen)
    if any(not end.ok for end in seen):
        assert found is not None
        assert found.verdict is F
    else:
        assert (found is not None) == (length == len(everyone))


@given(histories, st.integers(0, 6), st.integers(0, 6))
def test_a_decision_stands_whatever_ends_later(
    history: list[RankEnd], some: int, more: int
) -> None:
    own = rules("chief[0] and worker[2+], ps[ended]", "worker[2+], ps[1] and chief[0]")
    first = decide(own, ROLES, history[:some])
    if first is not None:
        assert decide(own, ROLES, history[: some + more]) == first


@pytest.mark.parametrize(
    "text", ["chief[0]", "a[all] and b-2[any]", "w[3+]", "ps[ended]", "r-and-d[0] and and[1]"]
)
def test_rules_are_written_as_they_are_read(text: str) -> None:
    assert text_of(parse(text)) == text
    assert parse(f"  {text.replace('[', ' [ ')} ") == parse(text)


@pytest.mark.parametrize(
    "text",
    ["", "chief", "chief[]", "chief[-1]", "[0]", "a[0] or b[0]", "a[0] and", "a[some]", "a[٢]"],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match="is no condition"):
        parse(text)
